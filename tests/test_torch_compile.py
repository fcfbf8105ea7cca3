"""Models and penalties under `torch.compile`: the numbers of the same code without it, and what cannot be done."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'sphere-rl[torch]'")

from pages import ROOT

import sphere.torch as st


@pytest.fixture(scope="module")
def found():
    script = Path(__file__).with_name("torch_compiled.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("way", ["fixed", "loss-ratio", "gradient-norm"])
def test_a_compiled_model_gets_the_same_gradients(found, way):
    assert found[way] < 1e-5


def test_two_backward_passes_of_a_compiled_model_need_a_setting_of_pytorch(found):
    setting = "torch._functorch.config.donated_buffer = False"
    assert setting in found["refused"]
    assert "coefficient='fixed'" in found["refused"]
    assert found["untouched"]
    assert setting in (ROOT / "docs" / "pytorch.md").read_text()


@pytest.mark.parametrize("way", ["features", "samples", "drawn"])
def test_a_compiled_penalty_is_one_graph_with_the_same_value_and_gradient(found, way):
    assert found[way] < 1e-5


def test_values_are_not_looked_at_there(found):
    with pytest.raises(ValueError, match="too large"):
        st.sphere_penalty(torch.full((3, 4), 1e12))
    assert not math.isfinite(found["huge"])
