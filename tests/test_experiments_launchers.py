"""Fleets on a real local Ray, one of whose workers is killed, and by submitit: the numbers are those of a local run."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import fleets
import jax
import processes
import pytest
from fleets import TINY, Hold, changed
from processes import PATIENCE, descendants, title, until, wait_until_gone

from sphere.experiments.schedule import schedule
from sphere.launch import launchers, on_ray
from sphere.launch.jobs import Job, work
from sphere.launch.launchers import Resources
from sphere.launch.on_slurm import SlurmTask, submit
from sphere.training.loop import Interrupted, Training
from sphere.training.settings import Evaluation

ROOT = Path(__file__).parents[1]
LONG = changed(
    TINY,
    steps_per_task=64 * 12,
    seeds=(0,),
    rho=(0.1,),
    workers=1,
    checkpoint_every=4,
    evaluation=Evaluation(every=64 * 6, episodes=2, heldout=0),
)
CONFIGS = [LONG, changed(LONG, seeds=(2,), rho=(0.2,))]

RAY_LIMITS = {
    "gcs_server_port_wait_time_s": 1,
    "gcs_server_request_timeout_seconds": 1,
    "worker_register_timeout_seconds": 1,
    "agent_register_timeout_ms": 1000,
    "health_check_timeout_ms": 1000,
}
"""Times that Ray gives its own processes to start or to answer, seconds to a minute, which a busy machine may not keep;
with their units in a second."""

DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from test_experiments_launchers import CONFIGS
from sphere.training.loop import Interrupted
from sphere.experiments.schedule import schedule
from sphere.launch.launchers import LAUNCHERS, Resources
jobs = [job for config in CONFIGS for job in schedule([config], Path(sys.argv[1])).open]
try:
    failed = LAUNCHERS[sys.argv[2]](jobs, Resources(cpus=1, at_once=2), Path(sys.argv[1]))
except Interrupted as stopped:
    sys.exit(str(stopped))
sys.exit(len(failed))
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same fleets, one after another in this process."""
    root = tmp_path_factory.mktemp("alone")
    jobs = [job for config in CONFIGS for job in schedule([config], root).open]
    assert launchers.local(jobs, Resources(), root) == []
    return jobs


def jobs_in(root: Path) -> list[Job]:
    return [job for config in CONFIGS for job in schedule([config], root).jobs]


def driver(root: Path, launcher: str, hold: Hold | None = None) -> subprocess.Popen:
    if launcher == "ray":
        pytest.importorskip("ray")
    environment = {
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",  # as in the tests' own process
        "PYTHONPATH": fleets.python_path(ROOT),
        "RAY_TMPDIR": "/tmp",  # paths of sockets must be short
        **{f"RAY_{name}": str(int(PATIENCE) * unit) for name, unit in RAY_LIMITS.items()},
        **(hold.environment if hold else {}),
    }
    return processes.start(
        [sys.executable, "-c", DRIVER, str(root), launcher],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def assert_same(ours: list[Job], theirs: list[Job]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.finished
        fleets.assert_same(one.directory, other.directory)


def test_ray_with_a_killed_worker_gives_the_same_numbers(alone, tmp_path):
    hold = Hold(tmp_path / "hold", iterations=6)  # a checkpoint comes every 4
    process = driver(tmp_path, "ray", hold)
    first, second = jobs_in(tmp_path)
    until(lambda: hold.reached(first.directory), process)
    workers = {pid: title(pid) for pid in descendants(process.pid)}
    (victim,) = [pid for pid, name in workers.items() if f"ray::{first.directory.name}" in name]
    listening = ray_sockets(set(workers) | {process.pid})
    os.kill(victim, signal.SIGKILL)
    assert not first.finished
    hold.release()
    said = processes.ended(process)
    assert process.returncode == 0, said
    resumed = list((first.directory / "rho0.1-seed0").glob("events*"))
    assert len(resumed) == 2  # a second one was begun: the fleet went on from a checkpoint
    assert len(list((second.directory / "rho0.2-seed2").glob("events*"))) == 1
    assert_same([first, second], alone)
    wait_until_gone(workers)
    assert all(place.rsplit(":", 1)[0] in ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]") for place in listening), (
        listening
    )


def ray_sockets(pids: set[int]) -> list[str]:
    """Where these processes listen, address and port; nothing where there is no ss."""
    try:
        lines = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=False).stdout.splitlines()
    except FileNotFoundError:
        return []
    return [line.split()[3] for line in lines if any(f"pid={pid}," in line for pid in pids)]


def test_nothing_outlives_a_driver_that_is_killed(tmp_path):
    hold, jobs = Hold(tmp_path / "hold", iterations=1), jobs_in(tmp_path)
    process = driver(tmp_path, "ray", hold)
    until(lambda: any(hold.reached(job.directory) for job in jobs), process)
    # all but two agents of Ray's own, which notice it in a minute and hold nothing
    workers = {pid for pid in descendants(process.pid) if "Agent" not in title(pid)}
    assert any("ray::probe" in title(pid) for pid in workers)
    process.kill()
    wait_until_gone(workers)


def test_fleets_side_by_side_stopped_and_gone_on_with_give_the_same_numbers(alone, tmp_path):
    hold, jobs = Hold(tmp_path / "hold", iterations=6), jobs_in(tmp_path)
    process = driver(tmp_path, "local", hold)
    until(lambda: hold.reached(*(job.directory for job in jobs)), process)  # both: they run at the same time
    children = descendants(process.pid)
    process.terminate()
    said = processes.ended(process)
    assert process.returncode == 1, said
    assert "2 fleets stopped and saved; continue with the same command" in said
    wait_until_gone(children)
    assert not any(job.finished for job in jobs)
    assert {json.loads((job.directory / "fleet.json").read_text())["settings"]["sharing"] for job in jobs} == {2}
    assert {job.config.sharing for job in jobs_in(tmp_path)} == {1}  # a process that resumes it may be alone
    again = driver(tmp_path, "local")
    said = processes.ended(again)
    assert again.returncode == 0, said
    assert all(f"{job.directory.name}: probe/" in said for job in jobs)  # what each says is told under its name
    assert_same(jobs, alone)


def test_fleets_side_by_side_do_not_outlive_a_launcher_that_is_killed(tmp_path):
    hold, jobs = Hold(tmp_path / "hold", iterations=1), jobs_in(tmp_path)
    process = driver(tmp_path, "local", hold)
    until(lambda: hold.reached(*(job.directory for job in jobs)), process)
    children = descendants(process.pid)
    assert len(children) >= 4  # two fleets and their simulators
    process.kill()
    wait_until_gone(children)


def test_a_fleet_that_fails_beside_another_is_named(tmp_path, capsys):
    good, bad = jobs_in(tmp_path)
    good = Job(changed(good.config, steps_per_task=64), good.directory)
    bad = Job(bad.config, tmp_path / "file" / "below")
    (tmp_path / "file").write_text("not a directory")
    (failure,) = launchers.local([bad, good], Resources(at_once=2), tmp_path)
    assert failure.job is bad
    assert "Not a directory" in failure.reason
    assert good.finished
    assert "below: failed" in capsys.readouterr().err


def node(alive=True, **resources):
    return {"Alive": alive, "Resources": resources}


@pytest.mark.parametrize(
    ("nodes", "asked", "share"),
    [
        ([node(CPU=8.0), node(CPU=4.0)], Resources(), (4, 0)),
        ([node(CPU=16.0, GPU=2.0), node(CPU=64.0)], Resources(), (8, 1)),
        ([node(CPU=16.0, GPU=2.0), node(CPU=64.0)], Resources(cpus=3, gpus=0), (3, 0)),
        ([node(CPU=1.0), node(alive=False, CPU=64.0, GPU=8.0)], Resources(), (1, 0)),
    ],
)
def test_a_fleet_takes_a_node_or_a_gpus_share_of_it(nodes, asked, share):
    assert on_ray._share(nodes, asked) == share


def test_a_failing_fleet_does_not_keep_the_others_from_being_trained(tmp_path, monkeypatch, capsys):
    jobs = jobs_in(tmp_path)

    def broken(job, quiet=False):
        if job is jobs[0]:
            raise RuntimeError("NaN or infinity in rho0.1-seed0")

    monkeypatch.setattr(launchers, "work", broken)
    (failure,) = launchers.local(jobs, Resources(), tmp_path)
    assert failure.job is jobs[0]
    assert "fleet 2 of 2" in capsys.readouterr().err


def test_no_fleet_begins_after_a_stop_was_asked_for_also_if_it_went_wrong(tmp_path, monkeypatch):
    def fails(self):
        os.kill(os.getpid(), signal.SIGTERM)
        until(self.should_stop)
        raise OSError("no space left")

    monkeypatch.setattr(Training, "run", fails)
    jobs = [Job(TINY, tmp_path / name) for name in ("one", "two")]
    with pytest.raises(Interrupted, match="failed while stopping: no space left"):
        launchers.local(jobs, Resources(), tmp_path)
    assert not jobs[1].directory.exists()


def test_submitit_gives_the_same_numbers_also_when_a_job_is_preempted(alone, tmp_path, monkeypatch):
    """By its local executor, which runs what Slurm would run. The first job is told to leave, and is queued again."""
    monkeypatch.setenv("JAX_DEFAULT_MATMUL_PRECISION", "highest")
    pytest.importorskip("submitit")
    hold, jobs = Hold(tmp_path / "hold", iterations=5), jobs_in(tmp_path / "fleets")
    for name, value in hold.environment.items():
        monkeypatch.setenv(name, value)
    gpus = int(jax.default_backend() == "gpu")  # where the others were trained: submitit hides what is not asked for
    sent = submit(jobs, Resources(cpus=1, gpus=gpus), tmp_path / "slurm", cluster="local")
    try:
        until(lambda: hold.reached(jobs[0].directory))
        assert not jobs[0].finished
        (worker,) = [pid for pid in descendants(sent[0]._process.pid) if "_submit" in title(pid)]
        os.kill(worker, signal.SIGUSR2)  # as Slurm does before it takes the machine away
        wait_until_gone([worker])
        hold.release()
        for job in sent:
            job.result()
    finally:
        for job in sent:
            processes.end(job._process)
    assert len(list((jobs[0].directory / "rho0.1-seed0").glob("events*"))) == 2
    assert_same(jobs, alone)


def test_a_preempted_job_asks_for_the_same_work():
    pytest.importorskip("submitit")
    (job, _) = jobs_in(Path("nowhere"))
    again = SlurmTask().checkpoint(job)
    assert isinstance(again.function, SlurmTask)
    assert again.args == (job,)


def test_slurm_needs_slurm(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="finds no sbatch here"):
        submit(jobs_in(tmp_path), Resources(), tmp_path)


def test_work_is_what_a_launcher_does(tmp_path):
    (job,) = schedule([changed(LONG, steps_per_task=64, seeds=(0,))], tmp_path).jobs
    work(job, quiet=True)
    assert job.finished
