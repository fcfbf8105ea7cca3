"""Names that tell modules and classes apart, and files of a size that can be read: both from the source alone."""

import ast
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sphere"

ALIKE = {
    ("experiment", "experiments"): "a package, and the module that says what one of them is",
    ("method", "methods"): "a package, and the module that says what one of them is",
    ("launch", "launchers"): "a package, and the module that has them by name",
    ("train", "training"): "a command, and the package that carries it out",
    ("batch", "watch"): "two words",
    ("reader", "render"): "two words",
    ("Batch", "Watch"): "two words",
    ("Block", "Clock"): "two words",
}
"""Pairs that may stay, and why."""

SHARED = {
    "streams": "data that come as a stream of tasks, and the paper's experiments on them",
    "sphere": "the package, and the method that it is called after",
    "Task": "every suite's own: what it knows of a task",
    "Differences": "of every suite that is compared with its package",
    "LayerNorm": "the layer, and the method that puts it in",
}
"""Names that several modules or classes have, and why."""

APART = ("sphere/torch/", "sphere/cli/")
MOST_LINES, MEDIAN_LINES, SCREEN = 300, 150, 50


def modules() -> dict[str, list[str]]:
    """Name -> where modules and packages of that name are."""
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.parent if path.stem == "__init__" else path
        if path.stem != "__main__":
            found[where.stem].append(str(where.relative_to(ROOT)))
    return found


def classes() -> dict[str, list[str]]:
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def stem(word: str) -> str:
    """Without the ending of a plural, a tense, or a noun made of a verb."""
    for ending in ("ings", "ing", "ers", "ors", "ions", "ies", "ed", "er", "or", "es", "ion", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word


def words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def one_letter_apart(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    if len(short) == len(long):
        return sum(a != b for a, b in zip(short, long, strict=True)) == 1
    return any(long[:place] + long[place + 1 :] == short for place in range(len(long)))


def alike(one: str, other: str) -> bool:
    """Whether names differ, and only by a letter, a plural or a tense."""
    if one.lower() == other.lower():
        return one != other
    return one_letter_apart(one.lower(), other.lower()) or [*map(stem, words(one))] == [*map(stem, words(other))]


def pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(one, other) for one, other in combinations(sorted(names), 2) if alike(one, other)]


def twice(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Names in several places. `sphere/torch` has the names of what it is the PyTorch form of, and files of the
    command line have the names of their commands: each of these rooms is looked at by itself."""
    wrong = {}
    for name, places in found.items():
        rooms = Counter(place.split("/")[1] if place.startswith(APART) else "" for place in places)
        if max(rooms.values()) > 1:
            wrong[name] = places
    return wrong


@pytest.mark.parametrize("found", [modules(), classes()], ids=["modules", "classes"])
def test_no_two_names_differ_by_a_letter_a_plural_or_a_tense(found):
    wrong = [pair for pair in pairs(found) if pair not in ALIKE]
    assert not wrong, [(pair, *(found[name] for name in pair)) for pair in wrong]


@pytest.mark.parametrize("found", [modules(), classes()], ids=["modules", "classes"])
def test_no_name_stands_for_two_things(found):
    wrong = {name: places for name, places in twice(found).items() if name not in SHARED}
    assert not wrong


def test_exceptions_are_needed():
    names = [modules(), classes()]
    assert set(ALIKE) == {pair for found in names for pair in pairs(found)}
    assert set(SHARED) == {name for found in names for name in twice(found)}


def test_the_scan_finds_what_it_looks_for():
    for one, other in [
        ("record", "records"),
        ("record", "recorded"),
        ("record", "recorder"),
        ("claim", "claims"),
        ("Worlds", "Words"),
        ("Evaluated", "Evaluation"),
        ("Run", "Running"),
        ("RunName", "RunNames"),
        ("entry", "entries"),
        ("measure", "measured"),
        ("DataSet", "Dataset"),
    ]:
        assert alike(one, other), (one, other)
    for one, other in [("claim", "paper_claims"), ("Rollout", "RolloutDriver"), ("frames", "frame_log"), ("a", "a")]:
        assert not alike(one, other), (one, other)
    places = {"Gram": ["sphere/penalty.py", "sphere/torch/penalty.py"], "Row": ["sphere/a.py", "sphere/b.py"]}
    assert list(twice(places)) == ["Row"]
    assert twice({"Bank": ["sphere/torch/moe.py", "sphere/torch/hooks.py"]})


def lines(path: Path) -> int:
    return path.read_text().count("\n")


def length(function: ast.FunctionDef) -> int:
    """Lines of a function, its docstring aside."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    told = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - told


def test_files_and_functions_can_be_read():
    """No file, also of tests, above 300 lines; half of the package's at most 150; its functions fit a screen."""
    sizes = {
        path.relative_to(ROOT): lines(path)
        for folder in ("sphere", "tests", "benchmarks", "scripts", "examples")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert not {path: size for path, size in sizes.items() if size > MOST_LINES}
    assert statistics.median(size for path, size in sizes.items() if path.parts[0] == "sphere") <= MEDIAN_LINES
    functions = [
        (str(path.relative_to(ROOT)), node.name, length(node))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    assert not [one for one in functions if one[2] > SCREEN]


def test_the_length_of_a_function_is_that_of_its_code():
    (function,) = ast.parse('def f():\n    """Two\n    lines."""\n    x = 1\n    return x\n').body
    assert isinstance(function, ast.FunctionDef)
    assert length(function) == 3
