"""The benchmark beside SBX: both sides have the same networks and updates, and its table is made of costs."""

import dataclasses
import subprocess
import sys

import jax
import processes
import pytest

pytest.importorskip("metaworld")

from benchmarks import kept, sbx, update
from sphere.algos import rows

SIZES = sorted([39 * 256, 256, 256 * 256, 256, 256 * 4, 4, *2 * [43 * 256, 256, 256 * 256, 256, 256, 1]])
"""Actor and twin critics, two layers of 256."""


def small(ratio):
    config = sbx.settings("push", 2, ratio)
    learner = dataclasses.replace(config.learner, batch_size=16, rollout_steps=5, learning_starts=40, buffer_size=160)
    return dataclasses.replace(config, learner=learner, source=dataclasses.replace(config.source, workers=0))


def sizes(tree):
    return sorted(leaf.size for leaf in jax.tree.leaves(tree))


def test_our_side_learns_with_the_updates_and_networks_that_are_asked_for(tmp_path, monkeypatch):
    config = sbx.settings("push", 2, 0.125)
    assert config.learner.updates == config.learner.iteration_steps // 8
    assert sizes(update.shapes(config.learner).nets) == SIZES
    config = small(0.125)
    monkeypatch.setattr(sbx, "WARM_UP", 40)
    ours = sbx.Ours(config, str(tmp_path))
    try:
        (group,) = ours.fleet.groups
        before = jax.device_get(rows.policy(group.learner, group.state).actor)
        assert ours.steps(50) == 2 * 80  # whole iterations of 40 steps, two runs
        after = jax.device_get(rows.policy(group.learner, group.state))
        assert not after.warm.any()  # past the warm-up
        changed = [
            (one != other).any() for one, other in zip(*map(jax.tree.leaves, (before, after.actor)), strict=True)
        ]
        assert any(changed)
    finally:
        ours.fleet.close()


def test_a_row_has_speeds_and_their_ratios():
    table = kept.Table(sbx.COLUMNS)
    table.add(*sbx.row(0.125, 5, sbx.Cost(0.001, 0.0005), sbx.Cost(0.004, 0.0015)))
    assert table.cells(table.rows[0]) == ["0.125", "5", "1,000", "250", "4.0", "0.50", "1.50", "3.0"]


BUSY = """
import time
while time.process_time() < 0.5: pass
print("done", flush=True)
input()
"""


def test_costs_count_what_processes_do_that_were_started():
    before = sbx.processor_seconds()
    child = processes.start([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == "done\n"
    assert sbx.processor_seconds() - before >= 0.4


def test_their_networks_are_as_large():
    pytest.importorskip("sbx", reason="SBX is not installed")
    import gymnasium
    import sbx as theirs

    env = gymnasium.make("Pendulum-v1")
    model = theirs.TD3("MlpPolicy", env, policy_kwargs={"net_arch": [256, 256]})
    wanted = [3 * 256, 256, 256 * 256, 256, 256, 1, *2 * [4 * 256, 256, 256 * 256, 256, 256, 1]]
    found = sizes(model.policy.actor_state.params), sizes(model.policy.qf_state.params)
    assert sum(map(sum, found)) == sum(wanted)


def test_shares_of_updates_that_sbx_cannot_have_are_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sbx", "--ratios", "0.1"])
    with pytest.raises(SystemExit):
        sbx.main()
    assert "0.1 updates per step: SBX has whole updates for 8 steps" in capsys.readouterr().err
