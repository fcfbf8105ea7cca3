"""`sphere verify` and `sphere bench`: what they print, how they judge, what they say of themselves."""

import re
import subprocess
import sys

import numpy as np
import pytest

from sphere.cli.main import main
from sphere.cli.verify import GOLDEN


def test_bench_env_as_a_user_calls_it():
    """Through the command line in a process of its own: what worker processes import is found from there only."""
    words = ["bench", "env", "--tasks", "faucet-close", "--envs", "2", "--seconds", "0.1", "--rounds", "1"]
    command = [sys.executable, "-m", "sphere", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("faucet-close"))
    numbers = [float(word.replace(",", "")) for word in row.split()[1:]]
    assert len(numbers) == 8
    assert min(numbers) > 0


def test_verify_update_prints_and_judges(tmp_path, capsys):
    assert main(["verify", "update"]) == 0
    assert "102 of 102 within their targets" in capsys.readouterr().out
    with np.load(GOLDEN / "ppo_update.npz") as file:
        arrays = {name: file[name] for name in file.files if name.startswith("none/")}
    arrays["none/critic_after/layer0/bias"] = arrays["none/critic_after/layer0/bias"] + 1e-4
    np.savez(tmp_path / "wrong.npz", **arrays)
    with pytest.raises(SystemExit) as end:
        main(["verify", "update", str(tmp_path / "wrong.npz")])
    assert end.value.code == 1
    assert "TOO FAR" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["env", "methods", "ntk", "penalty", "pool", "train", "update", "worker"])
def test_benchmarks_tell_about_themselves(name, capsys):
    with pytest.raises(SystemExit) as end:
        main(["bench", name, "--help"])
    assert end.value.code == 0
    assert "usage" in capsys.readouterr().out


def test_verify_says_what_there_is_and_names_the_nearest(capsys):
    assert main(["verify"]) == 0
    assert "sphere verify metaworld" in capsys.readouterr().out
    assert main(["verify", "metaword"]) == 1
    assert "did you mean metaworld?" in capsys.readouterr().err
    assert main(["verify", "metaworld", "--tasks", "hamer"]) == 1
    assert "did you mean hammer?" in capsys.readouterr().err
    assert main(["verify", "humanoidbench", "one.npz", "two.npz"]) == 1
    assert "sphere verify humanoidbench [FILE]" in capsys.readouterr().err
    assert main(["assets", "humanoidbenc"]) == 1
    assert "did you mean humanoidbench?" in capsys.readouterr().err


@pytest.mark.parametrize("check", ["update", "metaworld", "humanoidbench"])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_check_tells_about_itself(check, option, capsys):
    with pytest.raises(SystemExit) as end:
        main(["verify", check, option])
    assert end.value.code in (0, None)
    said = capsys.readouterr().out
    assert f"usage: sphere verify {check}" in said
    assert "exit" in said


def test_verify_metaworld_prints_a_row_per_task(capsys):
    assert main(["verify", "metaworld", "--tasks", "metaworld/window-close", "--steps", "100"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"window-close +1,000 +4 +\d+ +0.0e\+00 +\d\.\de-1\d +0$", out, re.MULTILINE)
