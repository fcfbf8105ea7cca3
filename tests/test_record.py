"""Records: strict JSON, read back to the same bits, cut and replayed exactly."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from fleets import without_wall

from sphere.storage import run_directory
from sphere.storage.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    run = RunDirectory.create(tmp_path / "run", {"seed": 1}, {"python": "3"})
    yield run
    run.close()


def episode(**changes):
    when = {"step": 7, "task": "push", "task_index": 0, "kind": "final", "seed": 3, "episode": 0}
    return when | {"return": 1.5, "length": 200, "success_once": True, "success_at_end": False} | changes


def strict(line: str) -> dict:
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(line, parse_constant=refuse)


def write(run: RunDirectory, steps: range) -> None:
    for step in steps:
        run.event(step, {"loss": np.float32(1 / (step + 1)), "rank": step * 3}, task="push", task_index=0)
        run.episode(episode(step=step))


def test_events_and_episodes_come_back(run):
    run.event(10, {"loss": 0.5, "rank": np.int32(3), "done": np.bool_(True)}, task="push", task_index=2, wall=1.25)
    run.episode(episode(extra="x"))
    assert run_directory.read_events(run.path) == [
        {"step": 10, "task": "push", "task_index": 2, "wall": 1.25, "loss": 0.5, "rank": 3, "done": True}
    ]
    assert run_directory.read_episodes(run.path) == [episode(extra="x")]
    assert run_directory.read_config(run.path) == {"seed": 1}


def test_numbers_of_any_library_are_plain_and_read_back_to_the_same_bits(run):
    values = {
        "float32": np.float32(0.1),
        "jax": jnp.float32(1 / 3),
        "tiny": np.float32(1e-45),
        "half": np.float16(0.1),
        "double": np.float64(0.1),
        "bfloat16": ml_dtypes.bfloat16(0.1),
        "long": np.longdouble(0.5),
        "big": 2**70,
        "uint8": jnp.uint8(200),
        "one": np.ones((1, 1), np.int64),
    }
    run.event(0, values, task="", task_index=0)
    line = (run.path / "metrics.jsonl").read_text()
    assert '"float32": 0.1,' in line
    back = strict(line)
    for name, value in values.items():
        kind = np.asarray(value).dtype
        assert type(back[name]) in (int, float)
        assert np.asarray(back[name]).astype(kind) == np.asarray(value), name


def test_random_float32_bits_survive(run):
    bits = np.random.default_rng(0).integers(0, 2**32, 500, np.uint32)
    for value in bits.view(np.float32):
        run.event(0, {"value": value}, task="", task_index=0, wall=0.0)
    read = np.array([event["value"] for event in run_directory.read_events(run.path)], np.float32)
    finite = np.isfinite(bits.view(np.float32))
    np.testing.assert_array_equal(read.view(np.uint32)[finite], bits[finite])
    np.testing.assert_array_equal(np.isnan(read), np.isnan(bits.view(np.float32)))


def test_non_finite_numbers_are_strict_json_and_read_back_as_floats(run):
    values = {"a": float("nan"), "b": np.float32("inf"), "c": jnp.float32(-jnp.inf)}
    run.event(0, values, task="inf", task_index=0)
    run.episode(episode(**{"return": float("-inf"), "task": "nan"}))
    assert strict((run.path / "metrics.jsonl").read_text())["b"] == "inf"
    (event,), (played,) = run_directory.read_events(run.path), run_directory.read_episodes(run.path)
    assert np.isnan(event["a"])
    assert (event["b"], event["c"]) == (np.inf, -np.inf)
    assert (event["task"], played["task"], played["return"]) == ("inf", "nan", -np.inf)


@pytest.mark.parametrize("value", ["nan", "text", None, [1, 2], np.zeros(2), Path("inf"), {}, b"x", object()])
def test_a_metric_is_one_number(run, value):
    with pytest.raises(TypeError):
        run.event(0, {"loss": value}, task="", task_index=0)
    assert run_directory.read_events(run.path) == []


def test_a_metric_cannot_take_the_name_of_a_field_and_an_episode_needs_all_of_its_own(run):
    with pytest.raises(ValueError, match="step"):
        run.event(0, {"step": 1}, task="", task_index=0)
    with pytest.raises(ValueError, match="task_index"):
        run.episode({k: v for k, v in episode().items() if k != "task_index"})


def test_config_may_be_a_dataclass_with_anything_sensible_in_it(tmp_path):
    @dataclass(frozen=True)
    class Inner:
        clip: float = float("inf")
        sizes: tuple[int, ...] = (256, 256)

    @dataclass(frozen=True)
    class Config:
        out: Path = Path("runs/a")
        inner: Inner = field(default_factory=Inner)
        name: str | None = None

    run = RunDirectory.create(tmp_path, Config(), {})
    run.close()
    strict((tmp_path / "config.json").read_text())
    want = {"out": "runs/a", "inner": {"clip": "inf", "sizes": [256, 256]}, "name": None}
    assert run_directory.read_config(tmp_path) == want


def test_create_refuses_an_existing_run_and_leaves_it_alone(run):
    write(run, range(3))
    run.close()
    before = {path.name: path.read_bytes() for path in run.path.iterdir() if path.name != "lock"}
    with pytest.raises(FileExistsError, match=r"sphere resume, or choose another"):
        RunDirectory.create(run.path, {"seed": 2}, {})
    assert before == {path.name: path.read_bytes() for path in run.path.iterdir() if path.name != "lock"}
    RunDirectory.resume(run.path).close()  # the refusal released the lock


def test_create_goes_on_where_a_killed_create_stopped(tmp_path):
    for name in ("lock", "metrics.jsonl", "episodes.jsonl", "config.json.partial"):
        (tmp_path / name).touch()
    RunDirectory.create(tmp_path, {"seed": 1}, {}).close()
    assert run_directory.read_config(tmp_path) == {"seed": 1}


def test_a_config_that_is_no_json_starts_no_run(tmp_path):
    with pytest.raises(TypeError, match="object"):
        RunDirectory.create(tmp_path, {"seed": object()}, {})
    RunDirectory.create(tmp_path, {"seed": 1}, {}).close()


def test_resume_needs_a_run_and_positions(run, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        RunDirectory.resume(tmp_path / "nothing")
    run.close()
    resumed = RunDirectory.resume(run.path)
    with pytest.raises(RuntimeError, match="truncate"):
        resumed.event(0, {}, task="", task_index=0)
    with pytest.raises(RuntimeError, match="truncate"):
        resumed.positions()
    resumed.close()


def test_truncate_and_replay_equals_straight_through(run, tmp_path):
    write(run, range(10))

    killed = RunDirectory.create(tmp_path / "killed", {}, {})
    write(killed, range(4))
    positions = killed.positions()
    write(killed, range(4, 7))
    killed.close()
    for name in ("metrics.jsonl", "episodes.jsonl"):
        path = killed.path / name
        path.write_bytes(path.read_bytes()[:-5])

    resumed = RunDirectory.resume(killed.path)
    resumed.truncate(json.loads(json.dumps(positions)))
    assert resumed.positions() == positions
    write(resumed, range(4, 10))
    resumed.close()
    assert without_wall(run_directory.read_events(resumed.path)) == without_wall(run_directory.read_events(run.path))
    assert (resumed.path / "episodes.jsonl").read_bytes() == (run.path / "episodes.jsonl").read_bytes()


def test_a_run_killed_before_its_first_checkpoint_starts_over(run):
    write(run, range(3))
    run.close()
    resumed = RunDirectory.resume(run.path)
    resumed.truncate({})
    assert resumed.positions() == {"metrics.jsonl": 0, "episodes.jsonl": 0}
    resumed.close()


def test_truncate_cuts_nothing_when_one_record_has_lost_lines_or_was_edited(run):
    write(run, range(3))
    positions = run.positions()
    write(run, range(3, 5))
    episodes = run.path / "episodes.jsonl"
    whole = episodes.read_bytes()
    metrics = (run.path / "metrics.jsonl").read_bytes()
    for damaged in (whole[:100], b" " + whole):
        episodes.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"episodes\.jsonl.*--out"):
            run.truncate(positions)
        assert (run.path / "metrics.jsonl").read_bytes() == metrics
    with pytest.raises(ValueError, match="other"):
        run.truncate({"other.jsonl": 3})


def test_readers_take_every_complete_line_whatever_the_length_of_the_file(run):
    write(run, range(3))
    path = run.path / "metrics.jsonl"
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        assert len(run_directory.read_events(run.path)) == whole[:length].count(b"\n")


@pytest.mark.parametrize("line", [b"{broken", b"[1]", b"", b"\xff\xfe", b'{"a": 1} {"b": 2}'])
def test_a_malformed_line_is_named(run, line):
    path = run.path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2"):
        run_directory.read_events(run.path)
