"""`scripts/kills.py`: what it kills, what it compares, and what it says."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[1] / "scripts" / "kills.py"


@pytest.fixture(scope="module")
def kills():
    spec = importlib.util.spec_from_file_location("kills", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(root: Path, loss: float = 0.5, weight: float = 1.0, row: float = 2.0) -> Path:
    run = root / "seed0"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text(f'{{"step": 1, "wall": {hash(root) % 100}, "train/loss": {loss}}}\n')
    (run / "replay-000000.bin").write_bytes(np.float32(row).tobytes())
    np.savez(root / "checkpoint-000000000001.npz", **{"tree/state/weight": weight})
    return root


def test_every_kind_of_learner_is_killed(kills):
    learners = {config.learner.name for config in kills.configs().values()}
    assert learners == {"ppo", "td3", "classifier"}
    assert {config.suite for config in kills.configs().values()} >= {"probe", "squares"}


def test_records_networks_and_memory_are_compared_but_not_the_clock(kills, tmp_path):
    straight = made(tmp_path / "straight")
    assert kills.differences(straight, made(tmp_path / "same")) == []
    assert kills.differences(straight, made(tmp_path / "a", loss=0.25)) == ["seed0/metrics.jsonl"]
    assert kills.differences(straight, made(tmp_path / "b", weight=1.5)) == ["tree/state/weight"]
    assert kills.differences(straight, made(tmp_path / "c", row=2.5)) == ["seed0/replay-000000.bin"]
    (tmp_path / "same" / "seed0" / "metrics.jsonl").unlink()
    assert kills.differences(straight, tmp_path / "same") == ["seed0/metrics.jsonl"]


@pytest.mark.parametrize(
    ("wrong", "stopped", "left"),
    [(False, False, 0), (True, False, 1), (False, True, 130), (True, True, 1)],
)
def test_it_says_what_it_has_also_when_it_is_stopped(kills, monkeypatch, capsys, wrong, stopped, left):
    def one_fleet(name, config, count, number, root, tally):
        if stopped and number == 2:
            tally.open = 3
            raise KeyboardInterrupt
        tally.kills[name] += count
        tally.fleets[name] += 1
        tally.different[name] += wrong and number == 1

    monkeypatch.setattr(kills, "one_fleet", one_fleet)
    monkeypatch.setattr(kills, "as_in_other_processes", lambda cache: None)
    monkeypatch.setattr(kills.signal, "signal", lambda *_: None)
    monkeypatch.setattr(kills.sys, "argv", ["kills.py", "25"])
    with pytest.raises(SystemExit) as raised:
        kills.main()
    said = capsys.readouterr().out
    assert raised.value.code == left
    assert f"{20 if stopped else 25} of 25 kills" in said
    assert ("3 more in a fleet that was not finished" in said) == stopped
    assert "probe: 10 kills, fleets 1, all ends equal" in said
    assert f"td3: 10 kills, fleets 1, {'1 ENDS DIFFER' if wrong else 'all ends equal'}" in said
