"""The memory of off-policy learners: the table on the device, the files beside it, and both after a resume."""

import hashlib
from collections import deque

import jax.numpy as jnp
import numpy as np
import pytest

from sphere.algos import replay
from sphere.algos.learner import Clock, DataSpec, Learner
from sphere.algos.rows import in_turns, side_by_side
from sphere.algos.td3 import TD3
from sphere.storage import appended
from sphere.storage.appended import AppendedRows
from sphere.training.memory import Memory


@pytest.mark.parametrize("pieces", [(3, 3, 3), (5, 7, 1, 2), (12,), (5, 5)])
def test_the_table_is_a_deque_that_forgets_the_oldest(pieces):
    capacity, table, want, end = 5, replay.empty(2, 5, 4), [deque(maxlen=5) for _ in range(2)], 0
    rng = np.random.default_rng(0)
    for count in pieces:
        new = rng.normal(size=(2, count, 4)).astype(np.float32)
        table = replay.write(table, jnp.asarray(new), np.int32(end % capacity))
        end += count
        for run in range(2):
            want[run].extend(map(tuple, new[run].tolist()))
    for run in range(2):
        filled = np.asarray(table[run])[: min(end, capacity)]
        assert sorted(map(tuple, filled.tolist())) == sorted(want[run])
        newest = np.asarray(table[run])[(end - 1) % capacity]
        assert tuple(newest.tolist()) == want[run][-1]


def test_rows_hold_transitions_and_give_them_back():
    rng = np.random.default_rng(1)
    time, env, obs, act = 3, 2, 4, 2
    shapes = ((time, env, obs), (time, env, act), (time, env), (time, env, obs), (time, env))
    given = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    table = replay.as_rows(given)
    assert table.shape == (6, replay.width(DataSpec((obs,), act)))
    for column, want in zip(replay.columns(table, act), given, strict=True):
        np.testing.assert_array_equal(column, want.reshape(6, *want.shape[2:]))


@pytest.fixture
def make(tmp_path):
    """Opens the rows in this directory; all are closed in the end."""
    opened = []

    def one():
        opened.append(AppendedRows(tmp_path, 3, rows=4))
        return opened[-1]

    yield one
    for file in opened:
        file.close()


def rows(first, last, width=3):
    return np.arange(first * width, last * width, dtype=np.float32).reshape(-1, width)


def test_files_give_back_what_was_appended_across_their_borders(make, tmp_path):
    file = make()
    for first, last in ((0, 3), (3, 9), (9, 10)):
        file.append(rows(first, last))
    assert sorted(path.stat().st_size for path in tmp_path.iterdir()) == [2 * 12, 4 * 12, 4 * 12]
    np.testing.assert_array_equal(file.read(2, 10), rows(2, 10))
    assert file.read(5, 5).shape == (0, 3)


@pytest.mark.parametrize("end", [0, 3, 4, 9])
def test_a_cut_takes_back_what_came_after(make, tmp_path, end):
    file = make()
    file.append(rows(0, 11))
    file.close()
    again = make()
    again.cut(end)
    again.append(100 + rows(0, 2))
    np.testing.assert_array_equal(again.read(0, end), rows(0, end))
    np.testing.assert_array_equal(again.read(end, end + 2), 100 + rows(0, 2))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == (end + 2) * 12


def test_whoever_does_not_write_removes_nothing(make, tmp_path):
    """A dry run beside a fleet that is there."""
    file = make()
    file.append(rows(0, 6))
    file.close()
    make().close()
    np.testing.assert_array_equal(make().read(0, 6), rows(0, 6))


def test_files_that_no_checkpoint_needs_go_and_others_stay(make, tmp_path):
    file = make()
    for i in range(60):
        file.append(rows(4 * i, 4 * i + 4))
        file.mark(first=4 * i)
    kept = sorted(int(path.stem.split("-")[1]) for path in tmp_path.iterdir())
    assert kept[-1] == 59
    assert kept == list(range(kept[0], 60))
    assert appended.LATER <= len(kept) <= appended.LATER + 2


def test_a_file_that_is_too_short_or_gone_is_named(make, tmp_path):
    file = make()
    file.append(rows(0, 6))
    file.close()
    with pytest.raises(ValueError, match=r"replay-000001.bin has 24 bytes, and the checkpoint was taken at 36"):
        make().cut(7)
    file.path(0).unlink()
    with pytest.raises(ValueError, match=r"replay-000000.bin cannot be read"):
        file.read(0, 6)


def test_files_of_others_are_left_alone(make, tmp_path):
    (tmp_path / "replay-mine.bin").write_bytes(b"mine")
    file = make()
    file.append(rows(0, 6))
    file.cut(0)
    assert [path.name for path in tmp_path.iterdir()] == ["replay-mine.bin"]


def test_checksums_are_those_of_the_files_that_a_mark_needs(make, tmp_path):
    file = make()
    file.append(rows(0, 6))
    file.mark(first=1)
    file.append(rows(6, 13))
    file.mark(first=5)
    for end, first in ((6, 0), (13, 1)):
        wanted = {
            f"replay-{number:06d}.bin": rows(4 * number, min(4 * number + 4, end)).tobytes()
            for number in range(first, -(-end // 4))
        }
        assert file.checksums(end) == {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in wanted.items()
        }
    again = make()
    again.cut(6, 1, file.checksums(6))
    again.append(rows(6, 13))
    again.mark(first=5)
    assert again.checksums(13) == file.checksums(13)  # what a resumed run goes on with
    (tmp_path / "replay-000001.bin").write_bytes(b"x" * 48)
    with pytest.raises(ValueError, match=r"replay-000001.bin was changed"):
        make().cut(13, 5, file.checksums(13))


class Newest(Learner):
    """Of nobody's package: it says what the newest row of its memory is."""

    def update(self, state, numbers, data, seed, clock):
        return state, {"row": data["table"][data["place"], data["filled"] - 1]}


@pytest.mark.parametrize("form", [side_by_side, in_turns])
def test_any_learner_gets_the_tables_of_all_runs_and_its_place_among_them(form):
    table = jnp.arange(12, dtype=jnp.float32).reshape(2, 3, 2)
    given = np.zeros(2), {}, replay.data(table, [1, 0], 3), np.zeros(2, np.uint32)
    found = form(Newest(), *given, Clock(np.int32(0), np.float32(0)))[1]["row"]
    np.testing.assert_array_equal(found, [table[1, 2], table[0, 2]])


def test_after_a_task_switch_only_rows_of_the_new_task_count(tmp_path):
    """Whatever was there before: the first `filled` rows of the table are the new ones, before and after a resume."""
    learner = TD3(num_envs=2, rollout_steps=3, buffer_size=16, batch_size=4, learning_starts=4, methods=())
    spec = DataSpec((1,), 1, (-1.0,), (1.0,))

    def data(value):
        column = np.full((1, 3, 2), value, np.float32)
        return {
            "obs": column[..., None],
            "action": column[..., None],
            "reward": column,
            "next_obs": column[..., None],
            "terminated": column > 0.5,
        }

    memory = Memory(learner, spec, [tmp_path])
    for _ in range(3):
        memory.extend(data(0.25))
    memory.forget()
    found = memory.extend(data(0.75))
    saved = memory.tree()
    memory.close()
    again = Memory(learner, spec, [tmp_path])
    again.restore(saved, {})
    for table in (found["table"], again.table):
        np.testing.assert_array_equal(np.asarray(table)[0, :6, :4], 0.75)
        np.testing.assert_array_equal(np.asarray(table)[0, :6, 4], 1)
    assert found["filled"].tolist() == [6]
    more = again.extend(data(0.5))
    again.close()
    assert more["filled"].tolist() == [12]
    np.testing.assert_array_equal(np.asarray(more["table"])[0, :12, 0], 6 * [0.75] + 6 * [0.5])
