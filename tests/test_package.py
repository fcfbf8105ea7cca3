"""The package: what it imports is what it asks for, its version stands in one place, and make installs what it says."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import sphere
from sphere.cli.main import main
from sphere.storage import provenance

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

DISTRIBUTIONS = {
    "mujoco_warp": "mujoco-warp",
    "sklearn": "scikit-learn",
    "stable_baselines3": "stable-baselines3",
    "warp": "mujoco-warp",  # which brings it
}
"""Of packages that are imported under another name."""
TOGETHER = {"report/figures.py": {"threadpoolctl": "scikit-learn"}}
"""Imported beside another, whose sentence and extra it shares."""
GIVEN = {"torch/huggingface.py": {"transformers"}}
"""Whoever calls these functions passes an object of that package, so it is there."""


def names(requirements):
    """Distributions of a list of requirements, those of our own extras included."""
    for line in requirements:
        name, inner = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", line).groups()
        if name == PROJECT["name"]:
            for extra in inner.split(","):
                yield from names(EXTRAS[extra])
        else:
            yield name


REQUIRED = set(names(PROJECT["dependencies"]))
OPTIONAL = {name for extra, lines in EXTRAS.items() if extra not in ("lint", "dev", "test") for name in names(lines)}


def imports(path):
    """Foreign packages that a file imports, by statement or by name, and the text of each one's surroundings."""
    for node in ast.walk(ast.parse(path.read_text())):
        found = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [node.module]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            found = [a.value for a in node.args if isinstance(a, ast.Constant)]
        for name in found:
            top = name.split(".")[0]
            if top not in sys.stdlib_module_names and top not in ("sphere", "benchmarks"):
                yield top


FILES = {str(path.relative_to(ROOT / "sphere")): path for path in sorted((ROOT / "sphere").rglob("*.py"))}


@cache
def all_imports():
    """Not where tests are collected, which every process of a run does."""
    return {(file, top) for file, path in FILES.items() for top in imports(path)}


def test_every_import_is_a_dependency_or_in_an_extra():
    assert len(all_imports()) > 100  # the walk has seen the package
    foreign = {DISTRIBUTIONS.get(top, top) for _, top in all_imports()}
    assert foreign - REQUIRED - OPTIONAL == set()
    assert REQUIRED - foreign == set()  # nothing is asked for that nothing imports


def lazily(path, top):
    """Whether all imports of a package in a file stand in functions."""
    outside = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return not any(
        top == (name or "").split(".")[0]
        for node in outside
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    )


def remedies(path):
    """What the sentences of a file say to install: distributions, by themselves or by an extra of ours."""
    found = set()
    for extra, name in re.findall(r"pip install '?(?:sphere-rl\[([\w-]+)\]|([\w-]+))", path.read_text()):
        found |= set(names(EXTRAS[extra])) if extra else {name}
    return found


def has_a_remedy(file, top):
    """It is imported when it is needed, and a sentence says what to install."""
    room = FILES[file].with_name("__init__.py")
    if file.startswith("torch/") or file == "envs/vec_env.py":  # imported by their package, which has the sentence
        told = remedies(room)
    else:
        assert lazily(FILES[file], top), (file, top)
        told = set().union(*(remedies(path) for path in room.parent.glob("*.py")))
    name = TOGETHER.get(file, {}).get(top) or DISTRIBUTIONS.get(top, top)
    return name in told or top in GIVEN.get(file, ())


def test_what_an_extra_brings_is_imported_when_it_is_needed_and_its_absence_says_what_to_install():
    optional = [(file, top) for file, top in all_imports() if DISTRIBUTIONS.get(top, top) not in REQUIRED]
    assert len(optional) > 20
    assert [one for one in optional if not has_a_remedy(*one)] == []


def test_every_extra_is_explained():
    """In pyproject.toml by the comment before it, and on the page for users if it is theirs."""
    text = (ROOT / "pyproject.toml").read_text()
    block = text[text.index("[project.optional-dependencies]") : text.index("[tool.")]
    page = (ROOT / "docs" / "install.md").read_text()
    for extra in EXTRAS:
        assert re.search(rf"^# .*\n{extra} = \[", block, re.MULTILINE), extra
        assert f"`{extra}`" in page, extra


def test_the_version_stands_in_one_place(capsys):
    """In the package itself: a checkout or a copy without metadata knows it, and an old installation cannot lie."""
    assert "version" in PROJECT["dynamic"]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sphere {sphere.__version__}\n"
    assert provenance.describe()["versions"]["sphere-rl"] == sphere.__version__
    assert f"\nversion: {sphere.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] == sphere.__version__


def test_metadata_names_the_pythons_that_the_page_names():
    page = (ROOT / "docs" / "install.md").read_text()
    classified = re.findall(r"Python :: (3\.\d+)'", str(PROJECT["classifiers"]))
    assert classified == re.findall(r"^\| (3\.\d+)\.\d+ \|", page, re.MULTILINE)
    assert PROJECT["requires-python"] == f">={classified[0]}"


# make, with a python, a pip and an apt-get that only write down what they were asked for


@pytest.fixture
def checkout(tmp_path):
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for name in ("Makefile", "pyproject.toml", "sphere/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in (".venv/bin/python", ".venv/bin/sphere", "bin/python3", "bin/apt-get", "bin/id"):
        stub = tmp_path / name
        stub.parent.mkdir(parents=True, exist_ok=True)
        says = "echo 0" if name == "bin/id" else f'echo "{stub.name} $*" >> asked'
        stub.write_text(f"#!/bin/sh\n{says}\n")
        stub.chmod(0o755)
    for name in ("cat", "cksum", "grep", "rm", "touch", "tr"):  # and no browser
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    return tmp_path


def run_make(checkout, *words):
    (checkout / "asked").write_text("")
    words = [str(shutil.which("make")), *words]
    env = {"PATH": f"{checkout}/bin"}
    return subprocess.run(words, cwd=checkout, env=env, capture_output=True, text=True, check=False)


def make(checkout, *words):
    """What was asked for, a line each."""
    done = run_make(checkout, *words)
    assert done.returncode == 0, done.stderr
    return (checkout / "asked").read_text().splitlines()


def installs(asked):
    return [line for line in asked if "pip install" in line]


def test_setup_installs_once(checkout):
    (line,) = installs(make(checkout, "setup"))
    assert line.endswith("--editable .[metaworld]")
    assert installs(make(checkout, "setup")) == []


@pytest.mark.parametrize("file", ["pyproject.toml", "sphere/__init__.py"])
def test_setup_installs_again_when_the_project_is_another_whatever_the_clock_says(checkout, file):
    make(checkout, "setup")
    path = checkout / file
    path.write_text(
        path.read_text().replace("cli.main:run", "cli.main:start").replace('__version__ = "', '__version__ = "9.')
    )
    os.utime(path, (0, 0))  # older than what was installed from it
    assert len(installs(make(checkout, "setup"))) == 1


def test_setup_installs_again_in_a_copy_of_the_checkout(checkout):
    """The scripts of a virtual environment name their python by its full path."""
    make(checkout, "setup")
    other = checkout / "other"
    shutil.copytree(checkout, other, ignore=shutil.ignore_patterns("other"))
    assert len(installs(make(other, "setup"))) == 1


def test_a_script_that_does_not_start_is_told_and_setup_is_not_done(checkout):
    script = checkout / ".venv" / "bin" / "sphere"
    script.write_text("#!/bin/sh\necho ImportError >&2\nexit 1\n")
    for _ in range(2):
        done = run_make(checkout, "setup")
        assert done.returncode != 0
        assert "ImportError" in done.stderr


def test_only_make_browser_installs_by_apt(checkout):
    asked = make(checkout, "setup", "lint", "test")
    assert any("pytest" in line for line in asked)
    assert not any("apt-get" in line for line in asked)
    assert make(checkout, "browser") == ["apt-get update -qq", "apt-get install -y -qq chromium"]
    (checkout / "bin" / "chromium").symlink_to("id")
    assert make(checkout, "browser") == []
