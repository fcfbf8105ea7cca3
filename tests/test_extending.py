"""The tutorials of methods, suites and learners, carried out from outside the package: their files, their commands, and
what they say of them."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import fleets
import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest

import sphere
from sphere import registry
from sphere.algos import rows
from sphere.algos.learner import Clock, DataSpec, made_up
from sphere.algos.ppo import PPO
from sphere.nets import NetConfig

DOCS = Path(__file__).parents[1] / "docs"
NAMES = ("method", "suite", "learner")
PAGE = "\n".join(
    page.read_text() for page in (*(DOCS / "tutorials" / f"{name}.md" for name in NAMES), DOCS / "extending.md")
)
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
TRAIN = dict(zip(NAMES, re.findall(r"^sphere (train --plugin .*)$", PAGE, re.MULTILINE), strict=True))
REPORTS = re.findall(r"^sphere (report .*?)(?: +#.*)?$", PAGE, re.MULTILINE)

PPO_SIZES = (
    "--ppo.num-envs 4 --ppo.rollout-steps 16 --ppo.batch-size 32 --ppo.epochs 2 --ppo.actor.width 8 "
    "--ppo.actor.depth 1 --ppo.critic.width 8 --ppo.critic.depth 1 --steps-per-task 640 --checkpoint-every 2"
)
OTHERS = "--evaluation.episodes 3 --evaluation.heldout 16 --quiet"
COMMANDS = {
    "method": f"{TRAIN['method']} {PPO_SIZES} --tasks reach-north reach-east --workers 0 {OTHERS}",
    "suite": f"{TRAIN['suite']} {PPO_SIZES} --workers 1 {OTHERS}",
    "learner": f"{TRAIN['learner']} --steps-per-task 48000 --checkpoint-every 5 --workers 0 {OTHERS}",
}
KILLED_AFTER = 13
"""Iterations; the last checkpoint is some iterations before."""
TABLES = {
    "method": ("probe-averages.txt", "Regenerate"),
    "suite": ("corridor-averages.txt", "SPHERE"),
    "learner": ("probe-averages.txt", "REINFORCE"),
}
"""Of a report, with what each calls its runs."""

SEVERAL = """
import shlex, sys
from sphere.cli.main import main
for line in sys.argv[1:]:
    if main(shlex.split(line)):
        sys.exit(f"failed: sphere {line}")
"""


def start(directory: Path, *words: str, hold: fleets.Hold | None = None) -> subprocess.Popen:
    """Python in that directory, which knows the package and nothing of where the examples are."""
    environment = {**os.environ, "PYTHONPATH": fleets.python_path(fleets.ROOT), **(hold.environment if hold else {})}
    return processes.start(
        [sys.executable, *words], env=environment, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def python(directory: Path, *words: str) -> str:
    process = start(directory, *words)
    said = processes.ended(process)
    assert process.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """A directory with the page's files and, in it, every example trained without a break (`runs/method`, as the page
    says) and killed in the middle and resumed (`cut/method`)."""
    place = tmp_path_factory.mktemp("outside")
    for name, text in FILES.items():
        (place / name).write_text(text)
    hold = fleets.Hold(place / "hold", KILLED_AFTER)
    try:
        words = {
            name: shlex.split(command.replace(f"runs/{name}", f"cut/{name}")) for name, command in COMMANDS.items()
        }
        for name in COMMANDS:
            process = start(place, "-m", "sphere", *words[name], hold=hold)
            processes.until(lambda name=name: hold.reached(place / "cut" / name), process)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            processes.end(process)
        hold.release()
        assert all(list((place / "cut" / name).glob("checkpoint-*.npz")) for name in COMMANDS)
        resumed = [f"resume cut/{name} --quiet" for name in COMMANDS]
        python(place, "-c", SEVERAL, *COMMANDS.values(), *resumed)
    finally:
        processes.end_all()
    return place


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_run_ends_with_the_numbers_of_an_undisturbed_one(outside, name):
    assert len(fleets.numbers(outside / "runs" / name)) == 2 * (2 if name == "suite" else 1)  # two files of each run
    fleets.assert_same(outside / "runs" / name, outside / "cut" / name)


def config_of(fleet: Path) -> dict:
    return json.loads(min(fleet.glob("*/config.json")).read_text())


def test_records_name_what_was_used(outside):
    config = {name: config_of(outside / "cut" / name) for name in COMMANDS}
    assert [one["plugins"] for one in config.values()] == [["regenerate"], ["corridor"], ["reinforce"]]
    assert config["method"]["method"] == "regenerate"
    assert config["method"]["settings"]["learner"]["methods"] == {"regenerate": {"weight": 0.5}}
    assert config["suite"]["suite"] == "corridor"
    assert config["learner"]["learner"] == "reinforce"
    assert any("methods/regenerate" in name for name in fleets.final_arrays(outside / "cut" / "method"))


def test_policies_of_plugins_are_evaluated_and_loaded(outside):
    """Neither names a plugin: the records do. The learner's policy has learned what is known to be best."""
    script = """
import json, sys
import numpy as np
import sphere
from sphere.envs.probes import target_action
obs = np.random.default_rng(0).uniform(-1, 1, (500, 2))
wrong = np.abs(sphere.load("cut/learner").act(obs) - target_action(obs)).mean()
fresh = np.abs(target_action(obs)).mean()
print(json.dumps([wrong, fresh, sphere.load("cut/learner").evaluate(episodes=5)]))
print(json.dumps(sphere.load("cut/suite", "rho0.1-seed0").evaluate("corridor/forward", episodes=2)))
"""
    said = python(outside, "-c", SEVERAL + script, "eval cut/method --episodes 2", "eval cut/suite --episodes 2")
    for task in ("probe/reach-north", "probe/reach-east", "corridor/forward", "corridor/backward"):
        assert task in said
    wrong, fresh, found = json.loads(said.splitlines()[-2])
    assert fresh > 0.2  # zero is not the answer
    assert wrong < 0.1
    assert found["success_at_end"] == 1
    assert found["return"] > 0.95  # 1 at best
    walked = json.loads(said.splitlines()[-1])
    assert walked["length"] == 20
    assert -40 <= walked["return"] <= 0  # twenty steps, each at most 2 from the flag


def test_a_report_names_them(outside):
    """As the pages make it of each by itself, and of all together."""
    assert len(REPORTS) == 3
    python(outside, "-c", SEVERAL, *(f"{line} --no-figures" for line in [*REPORTS, "report cut -o report"]))
    for table, label in TABLES.values():
        assert any(label in path.read_text() for path in (outside / "report" / "tables").glob(f"*/{table}")), label
    assert "corridor" in (outside / "report" / "index.html").read_text()


def test_presets_and_entry_points(tmp_path):
    """An installed package, as its metadata say: no --plugin is named."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    metadata = tmp_path / "mylab-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mylab\nVersion: 1.0\n")
    table, line = re.search(r'^\[project.entry-points."([\w.]+)"\]\n(.*?)$', PAGE, re.MULTILINE).groups()
    (metadata / "entry_points.txt").write_text(f"[{table}]\n{line.replace(chr(34), '')}\n")
    said = python(
        tmp_path, "-m", "sphere", *f"train --preset corridor-crl --method regenerate --dry-run {PPO_SIZES}".split()
    )
    assert re.search(r"method +regenerate\n", said)
    assert re.search(r"tasks +corridor/forward, corridor/backward", said)


def test_a_plugin_that_is_not_found_is_named(outside, tmp_path):
    process = start(tmp_path, "-m", "sphere", "resume", str(outside / "cut" / "learner"))
    said = processes.ended(process)
    assert process.returncode == 1
    assert "'reinforce' cannot be imported; go to the directory it is in" in said


@pytest.fixture
def regenerate(monkeypatch):
    """The method of the page, registered for the length of a test."""
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))
    names = {"__name__": "regenerate"}
    exec(FILES["regenerate.py"], names)
    return names["Regenerate"]


def test_the_method_does_what_it_says(regenerate):
    assert registry.method("regenerate") is regenerate
    net = NetConfig(kind="mlp", width=8, depth=1)
    spec, seeds = DataSpec((3,), 2), np.zeros(1, np.uint32)
    numbers = {name: jnp.full(1, 1e-3) for name in ("rho", "learning_rate", "final_learning_rate")}
    rng = np.random.default_rng(0)
    data = {name: rng.normal(size=a.shape).astype(a.dtype) for name, a in made_up(spec, 1, (2, 8)).items()}
    data["log_prob"] = data["reward"] - 3

    def way(weight: float) -> float:
        """How far one update moves the actor."""
        own = (regenerate(weight=weight),)
        learner = PPO(num_envs=2, rollout_steps=8, batch_size=4, actor=net, critic=net, methods=own)
        state = rows.init(learner, spec, seeds, numbers)
        begin = jax.device_get(state.nets["actor"])
        state, _ = rows.update(learner, state, numbers, data, seeds, Clock(np.int32(0), np.float32(0)))
        pairs = zip(jax.tree.leaves(begin), jax.tree.leaves(jax.device_get(state.nets["actor"])), strict=True)
        return max(float(np.max(np.abs(a - b))) for a, b in pairs)

    assert way(1e3) < 0.5 * way(0.0)
    with pytest.raises(ValueError, match="use 0 or more"):
        regenerate(weight=-1)


def test_the_examples_are_short():
    length = {name: len([line for line in text.splitlines() if line.strip()]) for name, text in FILES.items()}
    assert length["corridor.py"] <= 30
    assert length["reinforce.py"] <= 70


def test_a_name_that_is_taken_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "SUITES", dict(registry.SUITES))
    with pytest.raises(ValueError, match="there is a suite 'probe' already; give yours another name"):
        sphere.register_suite("probe", object)
