"""Streams of labelled tasks as the source of a learner's data: which classes and examples a task has, epochs in a
new order, augmentation on the device, and how well a classifier does.

Everything random is a function of the run's seed, a purpose and a counter: the task for its classes and examples, the
iteration for order and augmentation. So a checkpoint needs no more than the seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, PRNGKeyArray

from sphere import registry
from sphere.algos.learner import Data, DataSpec
from sphere.algos.rows import EXACT
from sphere.algos.source import Outcomes, Source, States, Wanted
from sphere.data.accuracy import accuracies
from sphere.data.labelled import Labelled, Split
from sphere.data.prepared import prepared, standardised
from sphere.errors import UserError, in_range

CLASSES, TRAIN, TEST = range(3)
"""Purposes of the host's random numbers."""
LONGEST, MOST_WORDS = 2**14, 10**6
"""Words of a post, and of a vocabulary, at most: 20,000 posts of that length take 1.2 GB, and all their words are a
tenth of that vocabulary."""
COLUMNS = ("accuracy", "accuracy_of_all", "accuracy_within_task")


@dataclass(frozen=True)
class Stream:
    """Tasks of some classes each, from a labelled data set."""

    kind: ClassVar[str] = "stream"
    unimportant: ClassVar[tuple[str, ...]] = ("diagnose_every",)

    classes: int = 5
    """Of a task."""
    drawn: bool = False
    """False: every class is in one task only, in an order by the run's seed. True: classes are drawn for each task,
    and may come again with other examples."""
    per_class: int = 500
    """Training examples of a class."""
    test_per_class: int = 100
    """Test examples of a class."""
    augment: bool = False
    """Images: crop after padding by 4 pixels, and flip, by other random numbers in every epoch."""
    argmax: Literal["all", "task"] = "all"
    """The score's argmax is over all classes, or over those of the task; both are recorded."""
    length: int = 256
    """Texts: words of a post that are read."""
    vocabulary: int = 20_000
    """Texts: the most frequent words of the training posts; all others are one word."""
    stripped: bool = True
    """Newsgroups: without headers, footers and quotes; posts of which nothing is left are dropped either way."""
    diagnose_every: int = 1
    """Tasks between two diagnoses on the held-out inputs."""

    def __post_init__(self) -> None:
        names = ("classes", "per_class", "test_per_class", "diagnose_every")
        in_range(self, {**dict.fromkeys(names, (1, None)), "length": (1, LONGEST), "vocabulary": (1, MOST_WORDS)})

    def columns(self, suite: str) -> tuple[str, ...]:
        return COLUMNS

    def score(self, suite: str) -> str:
        return "accuracy"

    def check(self, task: str) -> None:
        """Refuse a task that the data set does not have."""
        suite, _, number = task.partition("/")
        total = registry.stream(suite).classes
        most = total // self.classes
        if not number.isdecimal() or (int(number) >= most and not self.drawn):
            last = f"{suite}/0 to {suite}/{most - 1}" if not self.drawn else f"{suite}/0, {suite}/1, ..."
            raise UserError(f"there is no task {task!r}; {suite} has {total} classes, {self.classes} of a task: {last}")

    def seen(self, saved: dict[str, Any], obs: np.ndarray) -> np.ndarray:
        return np.asarray(obs, np.float32)

    def divide(self, runs: int, sharing: int) -> list[int]:
        return [runs]

    def open(self, wanted: Wanted, seeds: Sequence[Sequence[int]]) -> list[Source]:
        for task in dict.fromkeys(wanted.tasks):
            self.check(task)
        data = registry.stream(wanted.tasks[0].split("/")[0]).load(self)
        given, asked = self.classes * self.per_class, wanted.rollout[1]
        if given != asked:
            raise UserError(
                f"a task has {self.classes} classes of {self.per_class} examples, {given} in all, and the learner "
                f"takes {asked} of each; set --classifier.examples {given}"
            )
        return [StreamSource(self, wanted, list(mine), data) for mine in seeds]

    def evaluate(self, policy: Any, task: str, seeds: list[int], episodes: int, saved: dict[str, Any]) -> Outcomes:
        self.check(task)
        data = registry.stream(task.split("/")[0]).load(self)
        return outcomes_of(self, policy, [self.task(data, seed, task) for seed in seeds], data)

    def task(self, data: Labelled, seed: int, task: str) -> "Task":
        """What a run's task consists of."""
        number, total = int(task.split("/")[1]), len(data.names)
        if self.drawn:
            chosen = np.random.default_rng([seed, CLASSES, number]).choice(total, self.classes, replace=False)
        else:
            order = np.random.default_rng([seed, CLASSES]).permutation(total)
            chosen = order[number * self.classes : (number + 1) * self.classes]
        train = examples(data.train, data.names, chosen, self.per_class, [seed, TRAIN, number], "training", "per_class")
        test = examples(
            data.test, data.names, chosen, self.test_per_class, [seed, TEST, number], "test", "test_per_class"
        )
        allowed = np.zeros(total, bool)
        allowed[chosen] = True
        return Task(allowed, train, test)


@dataclass(frozen=True)
class Task:
    allowed: np.ndarray  # [classes]
    train: Split
    test: Split


def examples(
    split: Split, names: Sequence[str], chosen: np.ndarray, number: int, seed: list[int], kind: str, setting: str
) -> Split:
    """So many of each class, drawn without replacement."""
    rng, rows = np.random.default_rng(seed), []
    for one in chosen:
        mine = np.flatnonzero(split.label == one)
        if len(mine) < number:
            raise UserError(
                f"class {names[one]!r} has {len(mine)} {kind} examples, and a task asks for {number}; lower {setting}"
            )
        rows.append(np.sort(rng.choice(mine, number, replace=False)))
    index = np.concatenate(rows)
    return Split(split.obs[index], split.label[index])


@dataclass
class StreamSource:
    """The tasks of a group of runs."""

    settings: Stream
    wanted: Wanted
    run_seeds: list[int]
    data: Labelled
    horizon: int = 1
    tasks: list[Task] = field(default_factory=list)
    """Of each run, the one that it is at."""
    due: bool = True
    """Whether networks are diagnosed in this task."""

    def __post_init__(self) -> None:
        self.seeds = np.array(self.run_seeds, np.uint32)
        self.spec = DataSpec((self.data.train.obs.shape[1],), len(self.data.names), vocabulary=self.data.vocabulary)
        count = min(self.wanted.heldout, len(self.data.test.label))
        rows = np.linspace(0, len(self.data.test.label) - 1, max(count, 1)).astype(int)
        by_class = np.argsort(self.data.test.label, kind="stable")[rows]  # the same for all runs, classes alike
        self.heldout = None if not count else np.asarray(prepared(self.data, self.data.test.obs[by_class]))

    def enter(self, task: str, keep: Any | None) -> None:
        self.tasks = [self.settings.task(self.data, seed, task) for seed in self.run_seeds]
        place = self.wanted.tasks.index(task) + 1
        self.due = place % self.settings.diagnose_every == 0 or place == len(self.wanted.tasks)
        self.obs = jnp.asarray(np.stack([one.train.obs for one in self.tasks]))
        self.label = jnp.asarray(np.stack([one.train.label for one in self.tasks]))
        self.allowed = np.stack([one.allowed for one in self.tasks])

    def collect(self, policy: Any, iteration: int) -> tuple[Data, Outcomes]:
        return self.sample(policy, self.wanted.rollout[1], iteration), nothing()

    def sample(self, policy: Any, steps: int, iteration: int) -> Data:
        obs, label = epoch(
            self.data.mean, self.data.deviation, self.settings.augment, self.obs, self.label, self.seeds, iteration
        )
        return {"obs": obs, "label": label, "allowed": self.allowed}

    def evaluate(self, policy: Any, task: str) -> Outcomes:
        tasks = [self.settings.task(self.data, seed, task) for seed in self.run_seeds]
        return outcomes_of(self.settings, policy, tasks, self.data)

    def states(self) -> States | None:
        if self.heldout is None or not self.due:
            return None
        return States({"heldout": np.broadcast_to(self.heldout, (len(self.run_seeds), *self.heldout.shape))})

    def get_state(self) -> dict[str, Any]:
        return {"seeds": self.seeds}

    def set_state(self, state: dict[str, Any]) -> None:
        if not np.array_equal(state["seeds"], self.seeds):
            raise UserError(f"the checkpoint is of seeds {state['seeds']}, these runs have {self.seeds}; resume theirs")

    def close(self) -> None:
        pass


def nothing() -> Outcomes:
    none = np.zeros(0, int)
    return Outcomes(none, none, {})


# On the device


@partial(jax.jit, static_argnums=(0, 1, 2), compiler_options=EXACT)
def epoch(
    mean: tuple[float, ...],
    deviation: tuple[float, ...],
    augment: bool,
    obs: Array,
    label: Integer[Array, "run n"],
    seeds: Integer[Any, " run"],
    iteration: Any,
) -> tuple[Float[Array, "run n numbers"], Integer[Array, "run n"]]:
    """The examples of every run in a new order, images cropped and flipped if `augment`."""

    def one(obs: Array, label: Array, seed: Array) -> tuple[Array, Array]:
        key = jax.random.fold_in(jax.random.key(seed), iteration)
        shuffle, change = jax.random.split(key)
        order = jax.random.permutation(shuffle, len(label))
        obs = obs[order]
        if augment and mean:
            obs = cropped_and_flipped(obs, len(mean), change)
        return standardised(mean, deviation, obs), label[order]

    return jax.vmap(one)(obs, label, seeds)


def cropped_and_flipped(obs: Array, channels: int, key: PRNGKeyArray, padding: int = 4) -> Array:
    """Each image moved by up to `padding` pixels in both directions, black where nothing is, and mirrored or not."""
    side = int((obs.shape[1] // channels) ** 0.5)
    images = obs.reshape(-1, side, side, channels)
    wide = jnp.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    where, mirror = jax.random.split(key)
    corner = jax.random.randint(where, (len(obs), 2), 0, 2 * padding + 1)
    flip = jax.random.bernoulli(mirror, shape=(len(obs),))

    def one(image: Array, corner: Array, flip: Array) -> Array:
        cut = jax.lax.dynamic_slice(image, (corner[0], corner[1], 0), (side, side, channels))
        return jnp.where(flip, cut[:, ::-1], cut)

    return jax.vmap(one)(wide, corner, flip).reshape(obs.shape)


def outcomes_of(settings: Stream, policy: Any, tasks: list[Task], data: Labelled) -> Outcomes:
    """Accuracy of every run on the test examples of its task, by both kinds of argmax."""
    obs = np.stack([task.test.obs for task in tasks])
    label, allowed = (np.stack(column) for column in zip(*((t.test.label, t.allowed) for t in tasks), strict=True))
    of_all, within = accuracies(data, policy, obs, label, allowed)
    columns = {"accuracy": of_all if settings.argmax == "all" else within}
    columns |= {"accuracy_of_all": of_all, "accuracy_within_task": within}
    every = np.arange(len(tasks))
    return Outcomes(every, np.zeros_like(every), {name: np.asarray(one, float) for name, one in columns.items()})
