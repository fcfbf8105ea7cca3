"""Everything that can go wrong with a pool: failing, killed and hung processes on both sides, and misuse."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import processes
import pytest
from processes import PATIENCE, alive, wait_until_gone
from walk import TROUBLED, Walk, play

from sphere.envs import handles
from sphere.envs.pool import Pool, WorkerError

pytestmark = pytest.mark.usefixtures("no_orphans")


@pytest.fixture
def patient(monkeypatch):
    """Who leaves is waited for, however long that takes on a busy machine: none is killed on the way out."""
    monkeypatch.setattr(handles, "GRACE", PATIENCE)


@pytest.fixture
def pool():
    with Pool(Walk, "walk", 3, seeds=(5, 6), workers=0) as pool:
        yield pool


@pytest.mark.parametrize(
    ("trouble", "sentences"),
    [
        (
            "step",
            [
                "worker 0 of 2 (environments 0 to 2) failed in 'step'",
                "ZeroDivisionError: the robot fell apart",
            ],
        ),
        ("exit", ["worker 0 of 2", "died in 'step' with exit code 3"]),
        ("hang", ["worker 0 of 2", "has not answered 'step' for 0.7 s and was killed", "raise timeout"]),
    ],
)
def test_a_failing_worker_is_a_clean_error(trouble, sentences, monkeypatch):
    # who hangs never leaves by itself: the other one is not waited for
    monkeypatch.setattr(handles, "GRACE", 0.1 if trouble == "hang" else PATIENCE)
    pool = Pool(Walk, "walk", 6, workers=2, settings={"trouble": trouble}, timeout=PATIENCE)
    workers = [worker.process for worker in pool._workers]
    pool.reset()
    list(play(pool, TROUBLED - 1))
    if trouble == "hang":  # only now: no answer will come, so this time passes in any case
        pool._workers[0].timeout = 0.7
    with pytest.raises(WorkerError) as error:
        pool.step(np.zeros(pool.action_space.shape))
    assert all(sentence in str(error.value) for sentence in sentences)
    assert ("in step" in str(error.value)) == (trouble == "step")  # the traceback names file and line
    assert pool.closed
    assert all(worker.returncode is not None for worker in workers)
    with pytest.raises(RuntimeError, match="reset came to a pool that is closed; make a new one"):
        pool.reset()


def test_a_failure_is_seen_also_by_a_learner_that_looks_late():
    """A worker must not try a failed step again: the second time it may succeed, and nobody would know."""
    pool = Pool(Walk, "walk", 6, workers=2, settings={"trouble": "step"}, timeout=PATIENCE)
    pool.reset()
    list(play(pool, TROUBLED - 1))
    pool.step_async(np.zeros(pool.action_space.shape))
    wait_until_gone(worker.process.pid for worker in pool._workers)  # it leaves once it has failed
    with pytest.raises(WorkerError, match="worker 0 of 2"):
        pool.step_wait()


def test_a_failing_start_leaves_no_process():
    with pytest.raises(WorkerError, match=r"failed in 'begin':[^$]*OSError: no model file"):
        Pool(Walk, "walk", 4, workers=2, settings={"trouble": "begin"})


def test_a_failure_in_this_process_is_itself_and_closes_the_pool():
    pool = Pool(Walk, "walk", 4, workers=0, settings={"trouble": "step"})
    pool.reset()
    with pytest.raises(ZeroDivisionError, match="the robot fell apart"):
        list(play(pool))
    assert pool.closed


@pytest.mark.parametrize("during_step", [False, True])
def test_a_killed_worker_is_named(during_step, patient):
    with Pool(Walk, "walk", 4, workers=2) as pool:
        pool.reset()
        if during_step:
            os.kill(pool._workers[1].process.pid, signal.SIGSTOP)  # so that it dies before it can answer
            pool.step_async(np.zeros((4, 1)))
        os.kill(pool._workers[1].process.pid, signal.SIGKILL)
        died = r"worker 1 of 2 \(environments 2 to 3\) died in 'step' with exit code -9 \(SIGKILL\)"
        with pytest.raises(WorkerError, match=died):
            pool.step_wait() if during_step else pool.step(np.zeros((4, 1)))
        assert pool.closed


def test_closing_twice_by_with_and_by_collection(patient):
    with Pool(Walk, "walk", 2, workers=1) as pool:
        inside = pool._workers[0].process
        pool.step_async(pool.reset()[0][:, :1])  # closing does not wait for the answer
    pool.close()
    assert inside.returncode == 0
    forgotten = Pool(Walk, "walk", 2, workers=1)._workers[0].process
    gc.collect()
    assert forgotten.returncode == 0


def script(body, tmp_path, trouble="none"):
    """A learner, without any `if __name__`, that notes the ids of its two workers, then does `body`."""
    text = f"""
        import os, signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit "ignore"
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import numpy as np
        from walk import Walk
        from sphere.envs.pool import Pool
        pool = Pool(Walk, "walk", 4, workers=2, settings={{"trouble": sys.argv[1], "sign": sys.argv[2]}})
        pool.reset()
        with open(sys.argv[3], "w") as file:
            print(*[worker.process.pid for worker in pool._workers], file=file)
    """
    path = tmp_path / "learner.py"
    path.write_text(textwrap.dedent(text) + textwrap.dedent(body))
    words = [sys.executable, "-W", "ignore", str(path), trouble, str(tmp_path / "sign"), str(tmp_path / "pids")]
    learner = processes.start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    noted = tmp_path / "pids"  # not by its output: a line read from there may take the next one with it
    processes.until(lambda: noted.exists() and noted.read_text().endswith("\n"), learner)
    pids = [int(word) for word in noted.read_text().split()]
    assert len(pids) == 2
    return learner, pids


@pytest.mark.parametrize("trouble", ["none", "hang"])
def test_workers_leave_when_the_learner_is_killed(trouble, tmp_path):
    body = "while True:\n    pool.step(np.zeros((4, 1)))\n"
    learner, pids = script(body, tmp_path, trouble)
    processes.until((tmp_path / "sign").exists, learner)  # steps are under way, or hang
    assert all(map(alive, pids))
    learner.kill()
    learner.wait()
    wait_until_gone(pids)
    assert learner.communicate() == ("", "")


def test_a_learner_may_exit_without_closing(tmp_path):
    learner, pids = script("pool.step_async(np.zeros((4, 1)))\n", tmp_path)
    assert learner.communicate(timeout=PATIENCE) == ("", "")
    assert learner.returncode == 0
    wait_until_gone(pids)


def test_a_forked_copy_of_the_learner_leaves_the_workers_alone(tmp_path):
    body = """
        if os.fork() == 0:
            try:
                pool.step(np.zeros((4, 1)))
            except RuntimeError as error:
                print(error)
            pool.close()
            sys.exit()
        os.wait()
        pool.step(np.zeros((4, 1)))
        pool.close()
        print("closed")
    """
    learner, pids = script(body, tmp_path)
    out, err = learner.communicate(timeout=PATIENCE)
    assert out.splitlines() == [
        "step came to a pool that belongs to the process that made it; make a new one",
        "closed",
    ]
    assert err == ""
    wait_until_gone(pids)


def test_ctrl_c_is_heard_by_the_learner_alone(tmp_path):
    body = "while True:\n    pool.step(np.zeros((4, 1)))\n"
    learner, pids = script(body, tmp_path)
    processes.until((tmp_path / "sign").exists, learner)  # steps are under way
    for pid in pids:  # while it lives, so do they
        os.kill(pid, signal.SIGINT)
    os.killpg(learner.pid, signal.SIGINT)
    _, err = learner.communicate(timeout=PATIENCE)
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("KeyboardInterrupt")
    wait_until_gone(pids)


def test_misuse_is_answered_by_sentences(pool):
    zeros = np.zeros((6, 1))
    with pytest.raises(RuntimeError, match=r"step came before the first episode; call reset\(\)"):
        pool.step(zeros)
    with pytest.raises(RuntimeError, match="get_state came before the first episode"):
        pool.get_state()
    with pytest.raises(RuntimeError, match="step_wait came without a step under way; call step_async"):
        pool.step_wait()
    pool.reset()
    with pytest.raises(ValueError, match=r"shape \(6,\), want \(6, 1\): a row for each of 2 runs x 3 environments"):
        pool.step(np.zeros(6))
    with pytest.raises(ValueError, match=r"action of environment 4 is \[nan\], want finite numbers"):
        pool.step(np.where(np.arange(6)[:, None] == 4, np.nan, zeros))
    with pytest.raises(ValueError, match=r"options \['reset_mask'\]; this pool takes none"):
        pool.reset(options={"reset_mask": np.ones(6, bool)})
    with pytest.raises(ValueError, match=r"run seeds are \[3\]; want 2 whole numbers from 0 to 2\*\*64 - 1"):
        pool.reset(seed=3)
    pool.step_async(zeros)
    with pytest.raises(RuntimeError, match=r"step came while a step is under way; call step_wait\(\) first"):
        pool.step(zeros)
    with pytest.raises(RuntimeError, match="switch came while a step is under way"):
        pool.switch("run")
    pool.step_wait()
    with pytest.raises(ValueError, match="no task 'runn'; did you mean run"):
        pool.switch("runn")
    pool.step(zeros)  # none of these has harmed it
    with pytest.raises(ValueError, match="task 'wide' has other sizes"):
        pool.switch("wide")
    for use in (
        pool.step_wait,
        pool.reset,
        pool.get_state,
        pool.render,
        lambda: pool.step(zeros),
        lambda: pool.switch("run"),
    ):
        with pytest.raises(RuntimeError, match="a pool that is closed; make a new one"):
            use()


def test_a_wrong_state_is_answered_by_sentences(pool):
    pool.reset()
    state = pool.get_state()
    with pytest.raises(ValueError, match=r"is float64\(5,\), want float64\(6,\)"):
        pool.set_state(state | {"batch/x": np.zeros(5)})
    with pytest.raises(ValueError, match=r"the state holds \[.*\], want \[.*'stream'.*\]"):
        pool.set_state({name: array for name, array in state.items() if name != "stream"})
    pool.switch("run")
    with pytest.raises(ValueError, match="of another task than 'run'; switch to that task first"):
        pool.set_state(state)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"task": "wolk"}, "no task 'wolk'; did you mean walk"),
        ({"num_envs": 0}, "num_envs=0 for 1 run seeds; want at least one of each"),
        ({"seeds": []}, "num_envs=1 for 0 run seeds"),
        ({"seeds": [-1]}, r"run seeds are \[-1\]; want 1 whole numbers"),
        ({"workers": -1}, "workers=-1; want 0"),
        ({"timeout": 0}, "timeout=0; want a positive number of seconds"),
    ],
)
def test_impossible_pools_are_answered_by_sentences(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Pool(Walk, **{"task": "walk", **options})


def test_a_suite_that_workers_cannot_import_is_refused():
    class Inner(Walk):
        pass

    with pytest.raises(ValueError, match=r"workers cannot import .*Inner from .*; define it at the top level"):
        Pool(Inner, "walk", workers=1)
    with Pool(Inner, "walk", workers=0) as pool:
        pool.reset()
