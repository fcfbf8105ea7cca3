"""The shape of the package, read from its imports: layers, the pure core, and environments without jax."""

import ast
import re
from pathlib import Path

import pytest

from sphere import registry

ROOT = Path(__file__).resolve().parents[1]

LAYERS = (
    ("sphere",),  # the public names, imported when they are used
    ("checks", "errors"),
    ("registry",),
    ("values", "solvers"),
    ("spectrum",),
    ("bounds",),
    ("geometry",),
    ("nets",),
    ("penalty", "coefficient"),
    ("slq",),
    ("variants", "ntk"),
    ("diagnostics",),
    ("methods",),
    ("algos",),
    ("storage",),
    ("envs",),
    ("data",),
    ("training",),
    ("saved", "choices"),
    ("presets",),
    ("report",),
    ("launch",),
    ("experiments",),
    ("torch",),
    ("cli",),
    ("__main__",),
)
"""A module imports what stands in an earlier layer, or others of its own package."""

PURE = (
    *("checks", "errors", "values", "solvers", "spectrum", "bounds", "geometry", "nets"),
    *("penalty", "coefficient", "variants", "slq", "ntk", "diagnostics", "methods", "algos"),
)
GENERAL = ("training", "storage", "launch", "report")
PARTICULAR = re.compile(
    r"sphere\.(algos\.(ppo|td3|classifier)|methods|envs\.(metaworld|humanoidbench|probes)|presets|choices)"
)
"""Learners, methods and suites: the general rooms know none of them."""
LIBRARIES = {"jax", "numpy", "equinox", "optax", "jaxtyping"}
STANDARD = {"copy", "math", "operator", "difflib", "functools", "inspect", "dataclasses", "typing", "collections.abc"}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "breakpoint"}
IMPURE_MODULES = {"time", "os", "sys", "subprocess", "random", "pathlib", "io", "logging"}
IMPURE_ATTRIBUTES = {("np", "random"), ("numpy", "random"), ("jax", "debug"), ("jax", "experimental")}


def files(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted((root / "sphere").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = files()


def part(module: str) -> str:
    """The name by which the layers know a module: its first part below the package."""
    return "sphere" if module == "sphere" else module.split(".")[1]


def imported(module: str, tree: ast.AST, modules=MODULES) -> set[str]:
    """All that is imported anywhere in a file: dotted names, `from p import m` as p.m where that is a module."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively; write the full name"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names.add(full if full in modules else str(node.module))
    return names


def breaches_of_layers(module: str, tree: ast.AST, modules=MODULES) -> list[str]:
    rank = {name: height for height, layer in enumerate(LAYERS) for name in layer}
    own = part(module)
    if own not in rank:
        return [f"{module} has no layer; give it a place in LAYERS and in docs/architecture.md"]
    wrong = []
    for name in imported(module, tree, modules):
        if name.split(".")[0] != "sphere" or part(name) == own:
            continue
        if rank.get(part(name), len(LAYERS)) >= rank[own]:
            wrong.append(f"{module} imports {name}, which stands above or beside it")
    return wrong


def impurities(module: str, tree: ast.AST) -> list[str]:
    wrong = []
    for name in imported(module, tree):
        if name.split(".")[0] not in LIBRARIES | {"sphere"} and name not in STANDARD:
            wrong.append(f"{module} imports {name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            wrong.append(f"{module}:{node.lineno} calls {node.func.id}")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, name = node.value.id, node.attr
            if owner in IMPURE_MODULES or (owner, name) in IMPURE_ATTRIBUTES:
                wrong.append(f"{module}:{node.lineno} uses {owner}.{name}")
    return wrong


def parse(module: str) -> ast.AST:
    tree = ast.parse(MODULES[module].read_text())
    if module == "sphere":  # what only a type checker sees is not imported
        tree.body = [node for node in tree.body if "TYPE_CHECKING" not in ast.dump(node)]
    return tree


def workers_import() -> set[str]:
    """All that a worker process imports of the package, suites included."""
    found: set[str] = set()
    waiting = ["sphere.envs.worker", "sphere.envs.batch"]
    waiting += [suite.split(":")[0] for suite in registry.SUITES.values()]
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        tree = ast.parse(MODULES[module].read_text())
        for node in ast.walk(tree):  # a learner's side of a suite's module is not the worker's
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                node.body = []
        body = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
        waiting += [name for name in imported(module, body) if name in MODULES]
    return found


@pytest.mark.parametrize("module", MODULES)
def test_imports_never_point_upwards(module):
    assert not breaches_of_layers(module, parse(module))


@pytest.mark.parametrize("module", [module for module in MODULES if part(module) in PURE and module != "sphere"])
def test_the_core_is_pure(module):
    assert not impurities(module, parse(module))


@pytest.mark.parametrize("module", sorted(workers_import()))
def test_workers_import_no_jax(module):
    """Workers are started with `sphere` as a bare path: what they import of it must not bring jax."""
    tree = ast.Module([n for n in parse(module).body if isinstance(n, ast.Import | ast.ImportFrom)], [])
    for name in imported(module, tree):
        assert name.split(".")[0] not in {"jax", "jaxlib", "equinox", "optax"}, name
        if name.split(".")[0] == "sphere":
            assert part(name) in ("envs", "registry", "errors"), name


@pytest.mark.parametrize("module", [module for module in MODULES if part(module) in GENERAL])
def test_the_general_rooms_know_no_learner_no_suite_and_no_method(module):
    assert [name for name in imported(module, parse(module)) if PARTICULAR.match(name)] == []


def test_there_are_no_cycles_among_modules():
    """Of what is imported when a module is, functions and type checking aside."""

    def at_import(body):
        for node in body:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                continue
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield node

    edges = {}
    for module in MODULES:
        tree = ast.Module(list(at_import(ast.parse(MODULES[module].read_text()).body)), [])
        edges[module] = imported(module, tree) & MODULES.keys()
    done: set[str] = set()
    while ready := {module for module in edges if module not in done and edges[module] <= done}:
        done |= ready
    assert not edges.keys() - done


def test_the_scan_finds_what_it_looks_for():
    """Each rule, on a line that breaks it."""
    for line in [
        "import os",
        "from time import sleep",
        "import scipy",
        "print(1)",
        "x = np.random.rand()",
        "open('f')",
    ]:
        assert impurities("sphere.penalty", ast.parse(line)), line
    for line in ["import jax.numpy as jnp", "from collections.abc import Callable", "jax.random.normal(key)"]:
        assert not impurities("sphere.penalty", ast.parse(line)), line
    for module, line in [
        ("sphere.spectrum", "from sphere import nets"),
        ("sphere.nets.mlp", "from sphere.penalty import gram"),
        ("sphere.ntk", "import sphere.variants"),
        ("sphere.envs.pool", "def f():\n    from sphere.training import loop"),
        ("sphere.helpers", "import math"),
    ]:
        assert breaches_of_layers(module, ast.parse(line)), line
    for line in [
        "from sphere.algos.ppo import PPO",
        "from sphere.algos.td3_step import minibatch",
        "import sphere.methods",
        "from sphere.envs import metaworld",
    ]:
        assert any(PARTICULAR.match(name) for name in imported("sphere.training.loop", ast.parse(line))), line
    for line in ["from sphere.algos import rows", "from sphere.algos.learner import Learner"]:
        assert not any(PARTICULAR.match(name) for name in imported("sphere.training.loop", ast.parse(line))), line
    assert not breaches_of_layers("sphere.ntk", ast.parse("from sphere.nets.moe import MoE"))
    assert not breaches_of_layers("sphere.storage.run_directory", ast.parse("from sphere.storage import checkpoint"))


def test_the_architecture_page_names_the_layers_in_their_order():
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page[page.index("## Layers") : page.index("## Networks")]
    known = {name for layer in LAYERS for name in layer}
    named = [name for name in re.findall(r"`sphere/(\w+)(?:\.py|/)`", table) if name in known]
    rank = {name: height for height, layer in enumerate(LAYERS) for name in layer}
    assert [rank[name] for name in named] == sorted(rank[name] for name in named)
    assert known - set(named) == {"sphere", "__main__"}  # the public names and `python -m sphere`
