"""Streams of labelled tasks against a PyTorch loop: `python -m benchmarks.streams`.

The networks of the presets `newsgroups` and `cifar100-mlp` without a method, five seeds: as a fleet here, and one seed
after the other in PyTorch with the same parameters on the same data (`pytorch/streams.py`), on the same device. A round
is what a task costs: training on it (of CIFAR-100 a part of an epoch) and evaluation on its test examples. Both sides
take turns; the best of several rounds counts, compiling excluded. Seconds are those of the wall; processor seconds,
which others on the machine change less, stand beside them.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from benchmarks import kept
from benchmarks.pytorch.streams import Loop
from benchmarks.timing import count, device
from sphere.algos import rows
from sphere.algos.classifier import Classifier
from sphere.algos.learner import Clock
from sphere.algos.source import Wanted
from sphere.data.prepared import prepared
from sphere.data.streams import Stream, StreamSource, outcomes_of
from sphere.presets import preset

STEPS = 4
"""Minibatches of CIFAR-100 in a round, instead of an epoch's 20."""
COLUMNS = ("here, s", "PyTorch, s", "times", "here, CPU s", "PyTorch, CPU s", "CPU times")


class Cost(NamedTuple):
    wall: float
    processor: float


def cost(once: Callable[[], Any]) -> Cost:
    wall, processor = time.perf_counter(), time.process_time()
    once()
    return Cost(time.perf_counter() - wall, time.process_time() - processor)


class Case:
    """One preset's task, ready to be trained and evaluated on both sides."""

    def __init__(self, name: str, seeds: int, tests: int):
        config = preset(name)
        self.learner = dataclasses.replace(config.learner, methods=())
        assert isinstance(self.learner, Classifier)
        assert isinstance(config.source, Stream)
        wanted = Wanted(config.tasks[:1], self.learner.rollout, episodes=1, heldout=0)
        settings = dataclasses.replace(config.source, test_per_class=tests)
        (source,) = settings.open(wanted, [range(seeds)])
        assert isinstance(source, StreamSource)
        self.source = source
        self.source.enter(config.tasks[0], None)
        if self.learner.examples > self.learner.batch_size:
            self.learner = dataclasses.replace(self.learner, examples=STEPS * self.learner.batch_size)
        data, _ = self.source.collect(None, 0)
        self.data = {k: v[:, : self.learner.examples] if k != "allowed" else v for k, v in data.items()}
        self.seeds, self.batch = np.arange(seeds, dtype=np.uint32), min(self.learner.batch_size, self.learner.examples)
        self.numbers = {k: jnp.full(seeds, v, jnp.float32) for k, v in (self.learner.numbers | {"rho": 0.0}).items()}
        self.state = rows.init(self.learner, self.source.spec, self.seeds, self.numbers)
        nets = jax.device_get(self.state.nets["actor"].trunk)
        rates = self.learner.learning_rate, self.learner.weight_decay
        self.loops = [Loop(jax.tree.map(lambda leaf, i=i: leaf[i], nets), *rates) for i in range(seeds)]
        self.settings = settings

    def ours(self) -> np.ndarray:
        self.state, _ = rows.update(
            self.learner, self.state, self.numbers, self.data, self.seeds, Clock(np.int32(0), np.float32(1))
        )
        policy = rows.policy(self.learner, self.state)
        found = outcomes_of(self.settings, policy, self.source.tasks, self.source.data)
        return found.columns["accuracy_within_task"]

    def theirs(self) -> np.ndarray:
        found = []
        for i, (loop, task) in enumerate(zip(self.loops, self.source.tasks, strict=True)):
            allowed = torch.tensor(task.allowed)
            obs, label = (torch.tensor(np.array(self.data[name][i])) for name in ("obs", "label"))
            loop.train(obs, label.long(), allowed, self.batch)
            test = torch.tensor(np.array(prepared(self.source.data, task.test.obs)))
            found.append(loop.accuracy(test, torch.tensor(task.test.label).long(), allowed, 250))
        return np.array(found)


def compare(name: str, seeds: int, tests: int, rounds: int) -> list[float]:
    """Seconds here and in PyTorch, of the wall and of the processor, and how far accuracies differ at first."""
    case = Case(name, seeds, tests)
    first = np.abs(case.ours() - case.theirs()).max()  # compiles; both begin with the same parameters
    pairs = [(cost(case.ours), cost(case.theirs)) for _ in range(rounds)]
    ours, theirs = (Cost(*(min(column) for column in zip(*side, strict=True))) for side in zip(*pairs, strict=True))
    ratios = theirs.wall / ours.wall, theirs.processor / ours.processor
    return [ours.wall, theirs.wall, ratios[0], ours.processor, theirs.processor, ratios[1], float(first)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=count, default=5)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--tests", type=count, default=50, help="test examples of a class")
    parser.add_argument("--presets", nargs="+", default=["newsgroups", "cifar100-mlp"])
    kept.add_option(parser)
    args = parser.parse_args()
    where = f"with {torch.get_num_threads()} threads"
    if torch.cuda.is_available() and jax.default_backend() == "gpu":
        torch.set_default_device("cuda")
        torch.set_float32_matmul_precision("high")  # TF32, as jax has by default
        where = "on the same GPU, TF32"
    machine = f"{device()}; torch {torch.__version__} {where}"
    print(machine, flush=True)
    table = kept.Table({"preset": "", "seeds": "d"} | dict.fromkeys(COLUMNS, ".2f") | {"differs by": ".3f"})
    for name in args.presets:
        table.add(name, args.seeds, *compare(name, args.seeds, args.tests, args.rounds))
    kept.keep(table, args.keep, machine)


if __name__ == "__main__":
    main()
