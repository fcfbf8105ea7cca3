"""Damaged settings, archives and command lines, 500 of each by a seeded generator (records: test_damage.py): a
sentence, no silent change, nothing lost."""

import io
import shutil

import fleets
import numpy as np
from fleets import SPEC, TINY
from test_damage import bytes_changed, digit_changed, whole_changed, word_changed

from sphere.cli.main import main
from sphere.cli.resume import settings_of
from sphere.envs import heldout
from sphere.errors import UserError
from sphere.storage import checkpoint
from sphere.storage.files import flatten
from sphere.storage.fleet_directory import UNIMPORTANT, FleetDirectory
from sphere.training import loop, plan
from sphere.training.describe import run_records
from sphere.training.settings import to_json

CASES = 500


def important(config):
    return {name: value for name, value in flatten(to_json(config)).items() if name not in UNIMPORTANT}


def test_damaged_settings_are_refused_or_are_the_same(tmp_path, monkeypatch):
    """By fleet.json itself, or because the records of the runs say something else."""
    monkeypatch.setattr("sphere.storage.provenance.describe", dict)  # it asks git every time
    whole = tmp_path / "fleet"
    fleets.write(TINY, whole)
    (whole / "checkpoint-000000000001.npz").touch()  # there is something to go on from
    before, rng, refused = important(TINY), np.random.default_rng(1), 0
    for case in range(CASES):
        change = (bytes_changed, digit_changed, word_changed, whole_changed)[rng.integers(4)]
        directory = shutil.copytree(whole, tmp_path / "damaged")
        path = directory / "fleet.json"
        path.write_bytes(change(rng, path.read_bytes()))
        try:
            config = settings_of(directory)
            FleetDirectory(directory, run_records(config, SPEC), None, resume=True).close()
            assert important(config) == before, f"{case}: {change.__name__}"
        except (UserError, ValueError, FileNotFoundError):
            refused += 1
        for name in ("metrics.jsonl", "config.json"):  # nothing is lost
            for run in TINY.runs:
                assert (directory / run.name / name).read_bytes() == (whole / run.name / name).read_bytes()
        shutil.rmtree(directory)
    assert refused > CASES / 3


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    tree = {"a": np.arange(50.0), "n": 3}
    for step in (1, 2):
        checkpoint.save(tmp_path, step, tree | {"n": step}, {"step": step})
    newest = checkpoint.checkpoints(tmp_path)[-1]
    whole, rng = newest.read_bytes(), np.random.default_rng(2)
    for _ in range(CASES // 2):
        newest.write_bytes(cut_or_changed(rng, whole))
        found = checkpoint.load_latest(tmp_path, tree)
        same = newest.read_bytes() == whole
        assert (found.step, len(found.notes)) == ((2, 0) if same else (1, 1))
        np.testing.assert_array_equal(found.tree["a"], tree["a"])


def test_damaged_heldout_states_are_refused_or_are_the_same(tmp_path):
    states = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    heldout.save(tmp_path / "a.npz", states, {"from": "here"})
    whole, rng = (tmp_path / "a.npz").read_bytes(), np.random.default_rng(3)
    for _ in range(CASES // 2):
        (tmp_path / "a.npz").write_bytes(cut_or_changed(rng, whole))
        try:
            found = heldout.load(tmp_path / "a.npz")
        except ValueError:
            continue
        np.testing.assert_array_equal(found.states, states)
        assert found.provenance["from"] == "here"


def cut_or_changed(rng, data):
    how = rng.integers(4)
    if how == 0:
        return data[: rng.integers(len(data))]
    if how == 1:
        return data + rng.bytes(rng.integers(1, 100))
    return bytes_changed(rng, data)


COMMANDS = """train train train resume eval show report export watch experiment demo render heldout data verify assets
nothing""".split()
OPTIONS = """--preset --out --dry-run --quiet --seeds --rho --tasks --method --actor --vary --steps-per-task
--ppo.num-envs --ppo.batch-size --ppo.actor.width --ppo.actor.split --evaluation.every --evaluation.heldout
--sphere.variant --learner --checkpoint-every --protocol --workers --sharing --host --port --score --every -o --scale
--episodes --plugin""".split()
WORDS = """probe-crl metaworld-crl sphere none cbp+layernorm top-k soft-moe 0 1 -1 2.5 1e9 1e999 nan inf reach-north $x
'' / /dev/null . .. % \\ {} [] -- - = a=b learning_rate=1 learning_rate= rho=nan 0.1 crl rl plan run report list table-1
smoke \x00 é 🙂 99999999999999999999"""
VALUES = [*WORDS.split(), "", " ", "9" * 400, "a" * 5000]


def words(rng):
    count = rng.integers(8)
    found = [COMMANDS[rng.integers(len(COMMANDS))]]
    if found == ["train"] and rng.random() < 0.8:
        found += ["--preset", "probe-crl"]
    for _ in range(count):
        pool = OPTIONS if rng.random() < 0.5 else VALUES
        found.append(pool[rng.integers(len(pool))])
    return found


def test_no_command_line_ends_in_a_stack_trace(tmp_path, monkeypatch, capsys):
    """Whatever gets through to the work itself is left there: training, serving."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "train", lambda *_, **__: None)
    monkeypatch.setattr(plan, "plan", lambda *_: "")
    monkeypatch.setattr("sphere.report.watch.watch", lambda *_, **__: None)
    monkeypatch.setattr("sphere.launch.launchers.local", lambda *_: [])
    monkeypatch.setitem(__import__("sphere.launch.launchers").launch.launchers.LAUNCHERS, "local", lambda *_: [])
    monkeypatch.setattr("sys.stdin", io.StringIO())
    rng = np.random.default_rng(4)
    for _ in range(CASES):
        line = words(rng)
        try:
            code = main(line)
        except SystemExit as left:
            code = left.code
        said = capsys.readouterr().err
        assert code in (0, 1, 2, None), line
        assert "Traceback" not in said, line
        assert "SPHERE_DEBUG" not in said, f"{line}: {said}"
