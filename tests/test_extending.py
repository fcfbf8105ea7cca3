"""The worked example of docs/extending.md, done: its file and its line in a copy of the package, trained by its name."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fleets
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "extending.md"
FILE, LINES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)

# How far one update moves the actor, with and without the method.
SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from sphere.algos import ppo
from sphere.methods import Mitigations, Regenerate
from sphere.nets import NetConfig

net = NetConfig(kind="mlp", width=8, depth=1)
rng = np.random.default_rng(0)
normal = lambda *more: rng.normal(size=(1, 8, 2, *more)).astype(np.float32)
rollout = ppo.Rollout(normal(3), normal(2), normal() - 3, normal(), normal(3), normal() > 9, normal() > 9)
hyper = ppo.Hyper(*(jnp.full(1, x, jnp.float32) for x in (0, 1e-3, 1e-3)))
for weight in (0.0, 1e3):
    config = ppo.PPOConfig(
        num_envs=2, rollout_steps=8, batch_size=4, actor=net, critic=net, penalty=None,
        mitigations=Mitigations(regenerate=Regenerate(weight=weight)),
    )
    state = ppo.init_fleet(config, 3, 2, np.zeros(1, np.uint32))
    begin = jax.device_get(state.actor)
    state, _ = ppo.update_fleet(config, state, hyper, rollout, np.zeros(1, np.uint32), np.int32(0), np.float32(0))
    pairs = zip(jax.tree.leaves(begin), jax.tree.leaves(jax.device_get(state.actor)))
    print(max(float(np.max(np.abs(a - b))) for a, b in pairs))
try:
    Regenerate(weight=-1)
except ValueError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of the package with one file and one line, and the import that the line needs, more."""
    copy = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "sphere", copy / "sphere", ignore=shutil.ignore_patterns("__pycache__", "heldout", "report"))
    (copy / "sphere" / "mitigations" / "regenerate.py").write_text(FILE)
    registry = copy / "sphere" / "mitigations" / "__init__.py"
    text, before = registry.read_text(), "    load_balance: LoadBalance | None = None\n"
    assert before in text
    needed, line = LINES.strip("\n").split("\n\n")
    text = text.replace(before, f"{before}{line}\n").replace("\n__all__", f"{needed}\n\n__all__", 1)
    registry.write_text(text)
    return copy


def python(copy, *words):
    environment = {**os.environ, "PYTHONPATH": fleets.python_path(copy)}
    return subprocess.run(
        [sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )


def test_the_example_is_trained_by_its_name_with_its_settings(extended):
    words = (
        "-m sphere train --preset probe-crl --method regenerate --regenerate.weight 0.5 --steps-per-task 128 "
        "--tasks reach-north reach-east --ppo.num-envs 4 --ppo.rollout-steps 16 --ppo.batch-size 32 --ppo.epochs 2 "
        "--ppo.actor.width 8 --ppo.actor.depth 1 --ppo.critic.width 8 --ppo.critic.depth 1 --evaluation.episodes 2 "
        "--evaluation.heldout 0 --workers 0 --quiet"
    )
    done = python(extended, *words.split())
    assert done.returncode == 0, done.stderr
    out = extended / "runs" / "probe-crl-regenerate"
    config = json.loads((out / "rho0-seed0" / "config.json").read_text())
    assert config["ppo"]["mitigations"]["regenerate"] == {"weight": 0.5}
    with np.load(max(out.glob("checkpoint-*.npz"))) as file:
        assert any("mitigation/regenerate" in name for name in file.files)
    assert python(extended, "-m", "sphere", "resume", str(out), "--quiet").returncode == 0


def test_the_example_does_what_it_says(extended):
    done = python(extended, "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    free, held, refusal = done.stdout.splitlines()
    assert float(held) < 0.5 * float(free)
    assert "use 0 or more" in refusal
