"""A checkpoint is there whatever moment its process dies at, by a crash or by SIGKILL."""

import os
import signal
import subprocess
import sys

import numpy as np
import processes

from sphere.storage.checkpoint import load_latest, save


class Crash(BaseException):
    """The process is gone."""


def test_a_crash_at_any_system_call_leaves_a_checkpoint_to_load(tmp_path, monkeypatch):
    like = {"a": np.zeros(1000, int)}
    calls = 0

    def failing(real, last):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > last:  # and every later one too: no cleaning up after a crash
                raise Crash
            return real(*args, **kwargs)

        return call

    for step in (1, 2):
        save(tmp_path, step, {"a": np.full(1000, step)}, {})
    step, survived = 3, 0
    for last in range(20):
        calls = 0
        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "unlink"):
                patch.setattr(os, name, failing(getattr(os, name), last))
            try:
                save(tmp_path, step, {"a": np.full(1000, step)}, {})
                survived += 1
            except Crash:
                pass
        loaded = load_latest(tmp_path, like)
        assert loaded.notes == []
        assert loaded.step >= step - 1
        assert (loaded.tree["a"] == loaded.step).all()
        step = loaded.step + 1
        assert len(list(tmp_path.iterdir())) <= 3
    assert 10 < survived < 17  # four calls or five in a save: most of them were crashed in


SAVER = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from sphere.storage import checkpoint
directory = Path(sys.argv[1])
begun, begins = os.pipe()
for line in sys.stdin:
    seconds, latest = line.split()
    child = os.fork()  # of a process in which jax is imported but was never started
    if child == 0:
        step = int(latest)
        os.write(begins, b".")
        while True:
            step += 1
            checkpoint.save(directory, step, {"a": np.full(100_000, step), "n": step}, {"step": step})
    os.read(begun, 1)
    time.sleep(float(seconds))
    os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_kill_9_at_random_moments_never_costs_more_than_the_save_in_progress(tmp_path):
    like = {"a": np.zeros(100_000, int), "n": 0}
    random = np.random.default_rng()
    save(tmp_path, 0, like, {"step": 0})
    latest = halves = kills = 0
    command = [sys.executable, "-W", "ignore", "-c", SAVER, str(tmp_path)]
    with processes.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as saver:
        assert saver.stdin is not None
        assert saver.stdout is not None
        # On a busy machine or a slow disk it may take more of them, and later ones, until one has hit a save.
        while kills < 25 or (kills < 1000 and not (latest and halves)):
            kills += 1
            print(random.uniform(0.002, 0.06) * (1 + kills // 25), latest, file=saver.stdin, flush=True)
            assert int(saver.stdout.readline()) == -signal.SIGKILL

            loaded = load_latest(tmp_path, like)
            assert loaded.notes == []  # what bears a checkpoint's name is whole
            assert loaded.step >= latest
            assert loaded.meta == {"step": loaded.step}
            assert loaded.tree["n"] == loaded.step
            assert (loaded.tree["a"] == loaded.step).all()
            latest = loaded.step
            partial = list(tmp_path.glob("*.partial"))
            halves += len(partial)
            # Two and a half-written one, or three: the new one is on disk and the oldest not yet deleted.
            assert len(list(tmp_path.iterdir())) <= 3
        saver.stdin.close()
    assert latest > 0
    assert halves > 0
    save(tmp_path, latest + 1, like, {})
    assert len(list(tmp_path.iterdir())) == 2
