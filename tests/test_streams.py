"""Streams of labelled tasks: which classes and examples a run gets, epochs, augmentation, evaluation, bad settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sphere import registry
from sphere.algos.source import Source, SourceSettings, Wanted
from sphere.data.labelled import Labelled, Split
from sphere.data.squares import Squares
from sphere.data.streams import Stream, cropped_and_flipped, epoch, outcomes_of

SPLIT = Stream(classes=4, per_class=10, test_per_class=5)
DRAWN = Stream(classes=4, per_class=10, test_per_class=5, drawn=True)


def opened(settings, tasks=("squares/0", "squares/1"), seeds=(0, 1), heldout=8, examples=40):
    (source,) = settings.open(Wanted(tuple(tasks), (1, examples), 1, heldout), [list(seeds)])
    return source


def test_it_is_a_source():
    assert isinstance(SPLIT, SourceSettings)
    assert isinstance(opened(SPLIT), Source)
    assert SPLIT.score("squares") in SPLIT.columns("squares")


def test_a_split_has_every_class_in_one_task_only():
    data = Squares.load(None)
    for seed in range(3):
        tasks = [SPLIT.task(data, seed, f"squares/{i}") for i in range(2)]
        classes = [set(np.flatnonzero(task.allowed)) for task in tasks]
        assert [len(some) for some in classes] == [4, 4]
        assert not classes[0] & classes[1]
        for task, some in zip(tasks, classes, strict=True):
            for split, number, whole in ((task.train, 10, data.train), (task.test, 5, data.test)):
                found, counts = np.unique(split.label, return_counts=True)
                assert set(found) == some
                assert set(counts) == {number}
                rows = {(image.tobytes(), int(label)) for image, label in zip(split.obs, split.label, strict=True)}
                assert len(rows) == 4 * number  # none twice
                assert rows <= {
                    (image.tobytes(), int(label)) for image, label in zip(whole.obs, whole.label, strict=True)
                }
    orders = [tuple(np.flatnonzero(SPLIT.task(data, seed, "squares/0").allowed)) for seed in range(6)]
    assert len(set(orders)) > 1  # by the run's seed


def test_drawn_classes_come_again_with_other_examples():
    data = Squares.load(None)
    tasks = [DRAWN.task(data, 0, f"squares/{i}") for i in range(30)]
    counts = np.sum([task.allowed for task in tasks], axis=0)
    assert all(task.allowed.sum() == 4 for task in tasks)
    assert counts.min() > 1
    one = int(np.argmax(counts))
    visits = [task.train.obs[task.train.label == one].tobytes() for task in tasks if task.allowed[one]]
    assert len(set(visits)) == len(visits)
    again = DRAWN.task(data, 0, "squares/17")
    np.testing.assert_array_equal(again.train.obs, tasks[17].train.obs)


def test_an_epoch_has_every_example_once_in_an_order_of_its_own():
    source = opened(SPLIT)
    source.enter("squares/0", None)
    data = Squares.load(None)
    first, _ = source.collect(None, 0)
    second, _ = source.collect(None, 1)
    again, _ = source.collect(None, 0)
    np.testing.assert_array_equal(first["obs"], again["obs"])
    assert not np.array_equal(first["label"], second["label"])
    for run, seed in enumerate((0, 1)):
        task = SPLIT.task(data, seed, "squares/0")
        np.testing.assert_array_equal(first["allowed"][run], task.allowed)
        want = (task.train.obs / np.float64(255) - 0.5) / 0.25
        got = np.asarray(first["obs"][run])
        place = [int(np.argmin(np.abs(want - row).sum(axis=1))) for row in got]
        assert sorted(place) == list(range(40))
        np.testing.assert_allclose(got, want[place], atol=1e-5)
        np.testing.assert_array_equal(first["label"][run], task.train.label[place])


def test_a_run_has_the_same_epochs_alone_and_in_a_fleet():
    together, alone = opened(SPLIT, seeds=(3, 4, 5)), opened(SPLIT, seeds=(4,))
    for source in (together, alone):
        source.enter("squares/1", None)
    one, two = together.collect(None, 7)[0], alone.collect(None, 7)[0]
    for name in one:
        np.testing.assert_array_equal(one[name][1], two[name][0])


def test_augmentation_moves_by_up_to_four_pixels_and_mirrors():
    """Every image is one of the 9 x 9 x 2 that can be; all moves and both sides occur."""
    rng = np.random.default_rng(0)
    images = rng.integers(1, 256, size=(400, 8, 8, 3)).astype(np.uint8)
    got = np.asarray(cropped_and_flipped(jnp.asarray(images.reshape(400, -1)), 3, jax.random.key(0)))
    moves = set()
    for image, found in zip(images, got.reshape(400, 8, 8, 3), strict=True):
        wide = np.zeros((16, 16, 3), np.uint8)
        wide[4:12, 4:12] = image
        options = {
            (y, x, flip): cut[:, ::-1] if flip else cut
            for y in range(9)
            for x in range(9)
            for flip in (False, True)
            for cut in [wide[y : y + 8, x : x + 8]]
        }
        (move,) = [name for name, option in options.items() if np.array_equal(option, found)]
        moves.add(move)
    assert {y for y, _, _ in moves} == {x for _, x, _ in moves} == set(range(9))
    assert {flip for *_, flip in moves} == {False, True}


def test_black_is_what_is_left_at_the_border():
    """Padding comes before the pixels are standardised, as in torchvision's order of transforms."""
    obs = jnp.full((1, 50, 192), 255, jnp.uint8)
    found, _ = epoch((0.5,) * 3, (0.25,) * 3, True, obs, jnp.zeros((1, 50), jnp.int32), np.zeros(1, np.uint32), 0)
    assert set(np.unique(np.round(np.asarray(found), 5))) == {-2.0, 2.0}


def test_accuracy_is_by_argmax_over_all_classes_and_within_the_task():
    rng = np.random.default_rng(0)
    kernels = rng.normal(size=(2, 192, 10)).astype(np.float32)

    policy = Fixed(jnp.asarray(kernels))
    data = Squares.load(None)
    tasks = [DRAWN.task(data, seed, "squares/3") for seed in (0, 1)]
    for argmax in ("all", "task"):
        settings = Stream(classes=4, per_class=10, test_per_class=5, drawn=True, argmax=argmax)
        found = outcomes_of(settings, policy, tasks, data)
        for run, task in enumerate(tasks):
            logits = (task.test.obs / np.float64(255) - 0.5) / 0.25 @ kernels[run]
            of_all = np.mean(np.argmax(logits, axis=1) == task.test.label)
            within = np.mean(np.argmax(np.where(task.allowed, logits, -np.inf), axis=1) == task.test.label)
            assert found.columns["accuracy_of_all"][run] == pytest.approx(of_all)
            assert found.columns["accuracy_within_task"][run] == pytest.approx(within)
            assert found.columns["accuracy"][run] == pytest.approx(of_all if argmax == "all" else within)
        assert list(found.run) == [0, 1]


def test_held_out_inputs_are_the_same_for_everybody():
    source, other = opened(SPLIT, heldout=10), opened(SPLIT, seeds=(7,), heldout=10)
    for one in (source, other):
        one.enter("squares/0", None)
    first, second = source.states().places["heldout"], other.states().places["heldout"]
    assert first.shape == (2, 10, 192)
    np.testing.assert_array_equal(first[0], first[1])
    np.testing.assert_array_equal(first[0], second[0])
    assert opened(SPLIT, heldout=0).states() is None


def test_networks_may_be_diagnosed_in_some_tasks_only():
    some = Stream(classes=4, per_class=10, test_per_class=5, drawn=True, diagnose_every=2)
    source = opened(some, tasks=[f"squares/{i}" for i in range(5)])
    due = []
    for i in range(5):
        source.enter(f"squares/{i}", None)
        due.append(source.states() is not None)
    assert due == [False, True, False, True, True]  # the last one always


@pytest.mark.parametrize(
    ("settings", "tasks", "message"),
    [
        (
            Stream(classes=4, per_class=50),
            ("squares/0",),
            "class 'pattern .' has 40 training examples, and a task asks for 50",
        ),
        (Stream(classes=4, per_class=10, test_per_class=50), ("squares/0",), "has 20 test examples"),
        (Stream(classes=4, per_class=11), ("squares/0",), "set --classifier.examples 44"),
        (
            SPLIT,
            ("squares/2",),
            "there is no task 'squares/2'; squares has 10 classes, 4 of a task: squares/0 to squares/1",
        ),
        (SPLIT, ("squares/first",), "there is no task 'squares/first'"),
        (SPLIT, ("circles/0",), "there is no labelled data set 'circles'"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(settings, tasks, message):
    examples = 40 if "44" in message else settings.classes * settings.per_class
    with pytest.raises(ValueError, match=message):
        opened(settings, tasks, examples=examples).enter(tasks[0], None)


def test_data_of_ones_own_are_found_by_name(monkeypatch):
    class Mine:
        classes = 2

        @staticmethod
        def load(settings):
            split = Split(np.ones((6, 3), np.int32), np.arange(6, dtype=np.int32) % 2)
            return Labelled(split, split, ("a", "b"), vocabulary=5)

    monkeypatch.setattr(registry, "STREAMS", dict(registry.STREAMS))
    registry.register_stream("mine", Mine)
    source = opened(Stream(classes=2, per_class=3, test_per_class=3), ("mine/0",), examples=6)
    source.enter("mine/0", None)
    assert source.spec.vocabulary == 5
    np.testing.assert_array_equal(source.collect(None, 0)[0]["obs"], np.ones((2, 6, 3), np.float32))


@jax.tree_util.register_pytree_node_class
class Fixed:
    """A policy that is one linear layer."""

    def __init__(self, kernel):
        self.kernel = kernel

    def act(self, x):
        return x @ self.kernel

    def tree_flatten(self):
        return (self.kernel,), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)
