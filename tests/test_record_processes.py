"""Records and other processes: killed in the middle, a second writer, a write that is interrupted."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import processes
import pytest
from fleets import without_wall

from sphere.storage import files, run_directory
from sphere.storage.run_directory import RunDirectory

WORKER = """
import signal, sys
from pathlib import Path
from sphere.storage.run_directory import RunDirectory
run = RunDirectory.{how}
print("ready", flush=True)
{then}
signal.pause()
"""


def start(how: str, then: str = "") -> subprocess.Popen:
    """A second process that opens a run directory and keeps it."""
    code = WORKER.format(how=how, then=then)
    process = processes.start([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


TRAINING = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from sphere.storage import checkpoint
from sphere.storage.run_directory import RunDirectory

def train(path, last):
    state, begun = {"step": 0, "sum": np.zeros(3, np.float32)}, (path / "config.json").exists()
    run = RunDirectory.resume(path) if begun else RunDirectory.create(path, {}, {})
    if begun:
        positions = {}
        if checkpoint.checkpoints(path):
            loaded = checkpoint.load_latest(path, state)
            state, positions = loaded.tree, loaded.meta
        run.truncate(positions)
    while state["step"] < last:
        step = state["step"] + 1
        draw = np.random.default_rng(step).normal(size=3).astype(np.float32)
        state = {"step": step, "sum": np.sin(state["sum"] * 3 + draw)}
        run.event(step, {"sum": state["sum"][0]}, task="t", task_index=0)
        run.episode(dict.fromkeys(%r, state["sum"][1]))
        if step %% 7 == 0:
            checkpoint.save(path, step, state, run.positions())

begun, begins = os.pipe()
for line in sys.stdin:
    seconds, last, path = line.split()
    child = os.fork()  # of a process in which jax is imported but was never started
    if child == 0:
        os.write(begins, b".")
        train(Path(path), int(last))
        while seconds != "undisturbed":
            signal.pause()  # until the kill comes
        os._exit(0)
    os.read(begun, 1)
    if seconds != "undisturbed":
        time.sleep(float(seconds))
        os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_records_of_a_run_killed_again_and_again_equal_those_of_an_undisturbed_one(tmp_path):
    random = np.random.default_rng()
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    command = [sys.executable, "-W", "ignore", "-c", TRAINING % (run_directory.EPISODE_FIELDS,)]
    with processes.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdin is not None
        assert trainer.stdout is not None
        for last in range(15, 150, 9):  # it waits there for a kill that comes late, and so never gets through
            print(random.uniform(0, 0.04), last, killed, file=trainer.stdin, flush=True)
            assert int(trainer.stdout.readline()) == -signal.SIGKILL
        for path in (killed, straight):
            print("undisturbed", 150, path, file=trainer.stdin, flush=True)
            assert int(trainer.stdout.readline()) == 0
        trainer.stdin.close()
    assert len(without_wall(run_directory.read_events(straight))) == 150
    assert without_wall(run_directory.read_events(killed)) == without_wall(run_directory.read_events(straight))
    assert (killed / "episodes.jsonl").read_bytes() == (straight / "episodes.jsonl").read_bytes()


def test_a_second_process_is_told_who_holds_the_lock_until_that_one_is_killed(tmp_path):
    path = tmp_path / "run"
    # It keeps writing, so that the kill comes in the middle of its work.
    loop = "while True: run.event(0, {'x': 1.0}, task='t', task_index=0)"
    holder = start(f"create(Path({str(path)!r}), {{}}, {{}})", loop)
    with pytest.raises(RuntimeError, match=rf"pid {holder.pid} on .*--out"):
        RunDirectory.resume(path)
    kill(holder)
    run = RunDirectory.resume(path)
    assert f"pid {os.getpid()} on " in (path / "lock").read_text()
    assert all(event["x"] == 1.0 for event in run_directory.read_events(path))
    with pytest.raises(RuntimeError, match=f"pid {os.getpid()}"):
        RunDirectory.resume(path)
    run.close()
    RunDirectory.resume(path).close()


def test_atomic_write_leaves_the_old_file_when_interrupted(tmp_path):
    path = tmp_path / "config.json"
    files.write_json(path, {"a": 1})

    def interrupted():
        with files.atomic_write(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]
