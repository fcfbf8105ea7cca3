"""Where simulators live: defaults on the command line, what is refused before training, and workers with a MuJoCo of
their own."""

import dataclasses
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from fleets import ROOT, TINY, changed, python_path
from reach_worlds import ReachWorlds

from benchmarks import train as benchmark
from sphere import envs, registry
from sphere.cli.main import main
from sphere.cli.train import settings
from sphere.envs import humanoidbench_mjx, simulators, worker_path
from sphere.envs.environments import Environments
from sphere.errors import UserError
from sphere.storage.files import read_json
from sphere.training import loop
from sphere.training.plan import plan
from sphere.training.settings import from_json, to_json

PRESET = ["--preset", "humanoidbench-crl-released"]


@pytest.fixture
def ready(monkeypatch):
    """A machine that has all that GPU simulators need, as far as anybody asks."""
    monkeypatch.setattr(humanoidbench_mjx, "check_installed", lambda: None)
    monkeypatch.setattr(humanoidbench_mjx, "check_gpu", lambda: None)
    monkeypatch.setattr(worker_path, "mujoco_version", lambda: "3.3.0")


def simulator_of(*words):
    (asked,) = settings([*PRESET, *words])
    return asked.config.source.simulator


def test_the_default_is_the_gpu_where_all_it_needs_is_there(ready, monkeypatch):
    assert simulator_of() == "gpu"
    assert simulator_of("--simulator", "cpu") == simulator_of("--simulator=cpu") == "cpu"

    def missing():
        raise UserError("not here")

    monkeypatch.setattr(humanoidbench_mjx, "check_gpu", missing)
    assert simulator_of() == "cpu"
    with pytest.raises(UserError, match="not here"):
        simulator_of("--simulator", "gpu")


def test_suites_without_a_gpu_form_stay_as_they_are(ready):
    (asked,) = settings(["--preset", "probe-crl"])
    assert asked.config.source.simulator == "cpu"
    with pytest.raises(
        UserError, match=r"probe has no simulator on a GPU, only humanoidbench has; use --simulator cpu"
    ):
        settings(["--preset", "probe-crl", "--simulator", "gpu"])


def test_settings_are_what_records_say_and_older_records_mean_the_cpu(ready):
    (asked,) = settings(PRESET)
    data = to_json(asked.config)
    assert data["source"]["simulator"] == "gpu"
    assert from_json(data) == asked.config
    del data["source"]["simulator"], data["source"]["gpu_evaluation"]
    assert from_json(data).source.simulator == "cpu"


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU here")
def test_no_gpu_is_said_in_a_sentence_before_anything_is_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(humanoidbench_mjx, "check_installed", lambda: None)
    out = tmp_path / "out"
    assert main(["train", *PRESET, "--simulator", "gpu", "--out", str(out)]) != 0
    said = capsys.readouterr().err
    assert "needs an NVIDIA GPU" in said
    assert "--simulator cpu" in said
    assert "Traceback" not in said
    assert not out.exists()


def test_a_missing_extra_is_said_with_the_command_that_installs_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(humanoidbench_mjx.importlib.util, "find_spec", lambda name: None)
    assert main(["train", *PRESET, "--simulator", "gpu", "--out", str(tmp_path / "out")]) != 0
    assert "pip install 'sphere-rl[warp]', or use --simulator cpu" in capsys.readouterr().err


def test_too_many_worlds_are_refused_with_the_number_that_fits(monkeypatch):
    device = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 10 * 2**30, "bytes_in_use": 2**30})
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    simulators.check_room(2**20, 9 * 2**10)
    with pytest.raises(UserError, match=r"10,000 worlds take 9.8 GiB .* 9.0 GiB are free; use 9,216 at most"):
        simulators.check_room(2**20, 10_000)
    monkeypatch.setattr(ReachWorlds, "bytes_per_world", 2**40, raising=False)
    monkeypatch.setitem(registry.WORLDS, "probe", ReachWorlds)
    with pytest.raises(UserError, match="use 0 at most"):
        simulators.make("probe/reach-north", 4, {})


def test_tasks_and_settings_that_worlds_lack_are_named(monkeypatch):
    monkeypatch.setitem(registry.WORLDS, "probe", ReachWorlds)
    with pytest.raises(UserError, match=r"no task with a simulator on a GPU 'time-limit'"):
        simulators.make("probe/time-limit", 4, {})
    with pytest.raises(UserError, match=r"have no setting 'goals'; use --simulator cpu"):
        simulators.make("probe/reach-north", 4, {"goals": "frozen"})


def test_strange_settings_are_refused():
    with pytest.raises(UserError, match="add --simulator gpu"):
        Environments(gpu_evaluation=True)


def test_the_benchmark_measures_both_or_says_at_once_why_not(monkeypatch, tmp_path, capsys):
    words = ["train", "--preset", "probe-crl", "--seeds", "0", "--rho", "0", "--iterations", "1", "--workers", "0"]
    monkeypatch.setattr(sys, "argv", [*words, "--simulator", "cpu", "gpu"])
    with pytest.raises(SystemExit):
        benchmark.main()
    printed = capsys.readouterr()
    assert "probe has no simulator on a GPU" in printed.err
    assert "steps/s" not in printed.out
    monkeypatch.setitem(registry.WORLDS, "probe", ReachWorlds)
    kept = tmp_path / "kept.json"
    sys.argv += ["--keep", str(kept)]
    benchmark.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["simulators", "cpu", "gpu"]
    rows = [dict(zip(benchmark.COLUMNS, row, strict=True)) for row in read_json(kept)["rows"]]
    assert all(row["steps/s"] == pytest.approx(row["steps, iteration"] / row["all together, s"]) for row in rows)
    assert all(min(row["evaluation, s"], row["collecting alone, s"]) > 0 for row in rows)
    sys.argv += ["--no-evaluation"]
    benchmark.main()
    assert [row[4] for row in read_json(kept)["rows"]] == [None, None]


def test_a_policy_that_was_trained_on_a_gpu_is_evaluated_anywhere(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(registry.WORLDS, "probe", ReachWorlds)
    source = dataclasses.replace(TINY.source, simulator="gpu")
    config = changed(TINY, source=source, tasks=("probe/reach-north",), steps_per_task=64, seeds=(0,), rho=(0.0,))
    loop.train(config, tmp_path / "out", quiet=True)
    assert "steps/s" in plan(config, tmp_path / "plan")
    monkeypatch.delitem(registry.WORLDS, "probe")
    assert main(["eval", str(tmp_path / "out"), "--episodes", "2"]) == 0
    assert main(["resume", str(tmp_path / "out")]) != 0
    assert "probe has no simulator on a GPU" in capsys.readouterr().err


def test_records_say_what_simulates(monkeypatch, tmp_path):
    monkeypatch.setitem(registry.WORLDS, "probe", ReachWorlds)
    source = dataclasses.replace(TINY.source, simulator="gpu", gpu_evaluation=True)
    config = changed(TINY, source=source, tasks=("probe/reach-north",), steps_per_task=64, seeds=(0,), rho=(0.0,))
    loop.train(config, tmp_path / "out", quiet=True)
    run = tmp_path / "out" / "rho0-seed0"
    assert read_json(run / "environment.json")["simulators"] == {"training": "reach in jax"}
    told = read_json(run / "config.json")
    assert told["settings"]["source"]["simulator"] == "gpu"
    assert told["columns"][-4:] == ["gpu_return", "gpu_length", "gpu_success_once", "gpu_success_at_end"]
    metrics = (run / "metrics.jsonl").read_text()
    for name in (
        "train/success_at_end",
        "train/diverged",
        "evaluation/success_at_end",
        "evaluation/gpu_success_at_end",
    ):
        assert f'"{name}"' in metrics


# A MuJoCo of their own


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder for workers with a package that says where it is from."""
    folder = tmp_path / "workers"
    (folder / "mujoco-3.3.0.dist-info").mkdir(parents=True)
    (folder / "mujoco-3.3.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mujoco\nVersion: 3.3.0\n")
    (folder / "where_am_i.py").write_text("PLACE = 'workers'\n")
    here = tmp_path / "here"
    here.mkdir()
    (here / "where_am_i.py").write_text("PLACE = 'learner'\n")
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setenv(worker_path.VARIABLE, str(folder))
    return folder


def test_the_versions_are_those_of_the_extras():
    """One place says what workers need, another what pip installs."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(worker_path.PACKAGES) <= set(extras["metaworld"])
    for suite in ("metaworld", "humanoidbench"):
        assert f"mujoco=={envs.suite(suite).mujoco_version}" in extras[suite]
    assert not set(extras["warp"]) & set(extras["metaworld"]) - {"imageio>=2.34,<3"}


def test_where_workers_find_their_mujoco(own, monkeypatch, tmp_path):
    assert worker_path.folder() == own
    assert worker_path.mujoco_version() == "3.3.0"
    for suite in ("metaworld", "metaworld-pixels", "humanoidbench"):
        assert worker_path.first(envs.suite(suite)) == [str(own)], "its workers have this MuJoCo"
    assert worker_path.first(envs.suite("probe")) == []
    monkeypatch.setenv(worker_path.VARIABLE, "")
    assert worker_path.folder() is None
    monkeypatch.delenv(worker_path.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert worker_path.folder() is None
    (tmp_path / "cache" / "sphere" / "workers").mkdir(parents=True)
    assert worker_path.folder() == tmp_path / "cache" / "sphere" / "workers"
    monkeypatch.setenv(worker_path.VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"no folder; make it with: python.* -m pip install --no-deps --target"):
        worker_path.folder()


def test_another_mujoco_is_refused_with_the_one_command_that_sets_both_up(own):
    class Suite:
        mujoco_version = "3.3.0"

    worker_path.check_suite(Suite)
    (own / "mujoco-3.3.0.dist-info").rename(own / "mujoco-3.17.0.dist-info")
    meta = own / "mujoco-3.17.0.dist-info" / "METADATA"
    meta.write_text(meta.read_text().replace("3.3.0", "3.17.0"))
    words = r"would have mujoco 3.17.0.*pip install --no-deps --target \S+ mujoco==3.3.0 metaworld==3.1.1"
    with pytest.raises(UserError, match=words):
        worker_path.check_suite(Suite)
    with pytest.raises(UserError, match=words):
        envs.make("humanoidbench/walk")
    worker_path.check_suite(type("Other", (), {}))


def test_nothing_is_simulated_in_the_learner_where_workers_have_their_own(own):
    """With no workers asked for, there is one all the same, and it has the packages of the folder first."""
    from sphere.envs.pool import Pool

    with Pool(PlaceSuite, "here", 1, workers=0) as pool:
        assert [type(one).__name__ for one in pool._workers] == ["Process"]
        assert pool.reset()[0].tolist() == [[1.0]]
    with envs.make("probe/reach-north", workers=0) as pool:
        assert [type(one).__name__ for one in pool._workers] == ["Local"]  # it has no MuJoCo


class PlaceSuite:
    """An environment that observes 1 where it imports the workers' package and 0 where the learner's."""

    tasks = ("here",)
    mujoco_version = "3.3.0"
    observation_size, horizon = 1, 5

    def __init__(self, task, num_envs):
        import numpy as np
        import where_am_i

        self.place = np.full((num_envs, 1), float(where_am_i.PLACE == "workers"))
        self.action_low, self.action_high = -np.ones(1), np.ones(1)

    def reset(self, where, rngs):
        return self.place[where]

    def step(self, action):
        import numpy as np

        none = np.zeros(len(self.place))
        return self.place, none, none.astype(bool), none.astype(bool)

    def get_state(self):
        return {}

    def set_state(self, state):
        pass

    def close(self):
        pass


def test_verify_is_by_the_workers_mujoco(own):
    """A process of its own, with the folder first on its path; the folder's package here stands in for mujoco."""
    (own / "mujoco.py").write_text("raise ImportError('this is the one of the folder')\n")
    environment = os.environ | {"PYTHONPATH": python_path(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "sphere", "verify", "humanoidbench"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(own).parent,
    )
    assert done.returncode == 1
    assert f"by the MuJoCo of the simulator processes, in {own}" in done.stdout
    assert "this is the one of the folder" in done.stderr
