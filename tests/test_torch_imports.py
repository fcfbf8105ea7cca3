"""What sphere.torch may import, read from its files and seen in a fresh process."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "sphere" / "torch").glob("*.py"))
STANDARD = {"collections", "contextlib", "itertools", "math", "struct", "typing", "warnings"}


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_imports_torch_and_itself_alone(path):
    tree = ast.parse(path.read_text())
    for name in imported(tree):
        top = name.split(".")[0]
        assert top in STANDARD | {"torch"} or name.startswith("sphere.torch") or top == "transformers", name
    outside = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert not any(name.startswith("transformers") for name in imported(ast.Module(outside, [])))


def fresh(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)


def test_a_fresh_import_brings_neither_jax_nor_the_host_libraries():
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'sphere-rl[torch]'")
    code = """
import sys, sphere.torch
heavy = {"jax", "jaxlib", "equinox", "optax", "transformers", "lightning", "stable_baselines3", "rsl_rl", "gymnasium"}
print(sorted(heavy & set(sys.modules)))
"""
    found = fresh(code)
    assert found.stdout == "[]\n", found.stderr


def test_without_torch_the_error_says_what_to_install_and_the_rest_works():
    code = """
import sys
sys.modules["torch"] = None
import sphere
print(float(sphere.effective_rank([[1.0, 0.0], [0.0, 1.0]])))
import sphere.torch
"""
    found = fresh(code)
    assert found.stdout.startswith("2.0")
    assert "sphere.torch needs PyTorch: pip install 'sphere-rl[torch]'" in found.stderr


def test_public_names_come_when_they_are_used():
    code = """
import sys, sphere
assert "jax" not in sys.modules
sphere.envs.make
assert "jax" not in sys.modules and "torch" not in sys.modules
from sphere import nets, ntk, routed_penalty, spectrum
print(sphere.routed_penalty is routed_penalty, sphere.ntk is ntk)
sphere.nothing
"""
    found = fresh(code)
    assert found.stdout == "True True\n"
    assert "module 'sphere' has no attribute 'nothing'" in found.stderr
