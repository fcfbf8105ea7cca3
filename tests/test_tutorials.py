"""The tutorials do what they say; those of methods, suites and learners are in test_extending.py."""

import contextlib
import io
import os
import stat
from pathlib import Path

import fleets
import numpy as np
import pages
import pytest

import sphere
from sphere.experiments import gather
from sphere.launch import launchers

TUTORIALS = pages.ROOT / "docs" / "tutorials"


@pytest.fixture
def reader(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return pages.Reader(tmp_path)


def test_train_kill_resume_report(reader, capsys):
    reader.read(TUTORIALS / "train.md")
    assert [line.split()[1] for line in reader.said if line.startswith("sphere")] == (
        "train train show resume report eval export".split()
    )
    records = fleets.numbers(Path("runs/first"))
    assert len(records) == 2 * 4  # two files of each run
    tasks = {line["task"] for lines in records.values() for line in lines if "task" in line}
    assert len(tasks) == 2
    assert "nothing was written" not in capsys.readouterr().err
    assert Path("report/index.html").exists()
    assert list(Path("report/tables").glob("*.csv"))
    assert list(Path("published").glob("**/SHA256SUMS"))
    assert reader.names["policy"].act(np.zeros(6, np.float32)).shape == (2,)


def test_the_penalty_in_jax_code_raises_the_rank_of_the_features(reader, capsys):
    reader.read(TUTORIALS / "jax.md")
    names = reader.names
    ranks = [
        sphere.effective_rank(names["mixture"](names[which], names["others"])[1].reshape(64, -1))
        for which in ("plain", "spread")
    ]
    assert ranks[1] > ranks[0]
    assert names["spread_values"].coefficient > 0
    assert names["plain_values"].loss < np.var(names["targets"][:, -1])  # it has learned something
    assert "nan" not in capsys.readouterr().out


def test_the_penalty_in_pytorch_code_is_felt(reader, capsys):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.set_num_threads(1)  # threads of two test processes would wait for each other
    reader.read(TUTORIALS / "pytorch.md")
    assert 0.05 < reader.names["result"].felt < 0.2
    assert reader.names["loss"] < 0.25
    assert "nan" not in capsys.readouterr().out


STAND_IN = """#!/bin/sh
cat "$1" > {submitted}
echo Submitted batch job 7
"""


def test_a_cluster(reader, tmp_path, monkeypatch, models_compiled_once):
    """Slurm is a stand-in for sbatch, and Ray trains nothing: tests of the launchers do."""
    pytest.importorskip("metaworld", reason="MetaWorld is not installed")
    pytest.importorskip("submitit", reason="submitit is not installed")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sbatch", "srun"):
        (tools / name).write_text(STAND_IN.format(submitted=tmp_path / "submitted"))
        (tools / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    smoke = gather.at_scale
    monkeypatch.setattr(gather, "at_scale", lambda *a: fleets.changed(smoke(*a), steps_per_task=256, workers=0))
    sent = []
    monkeypatch.setitem(launchers.LAUNCHERS, "ray", lambda jobs, resources, folder: sent.append(jobs) or [])
    spoken = io.StringIO()  # not capsys: submitit's log keeps the stream that it finds, and capsys closes its own
    with contextlib.redirect_stdout(spoken), contextlib.redirect_stderr(spoken):
        reader.read(TUTORIALS / "cluster.md")
    said = spoken.getvalue()
    assert "1 run in 1 fleet, 0 finished" in said
    assert "submitted 1 job to Slurm, the first is 7" in said
    assert "--time=240" in (tmp_path / "submitted").read_text()
    assert [job.config.seeds for job in sent[0]] == [(0,)]
    assert Path("runs/experiments/smoke/reports/metaworld-crl/index.html").exists()
