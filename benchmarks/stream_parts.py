"""Where the time of a round of text goes: `python -m benchmarks.stream_parts`.

The round of `benchmarks.streams`: a training step and an evaluation of a fleet. First both by the clock, with the
arithmetic that they ask for; then on a GPU the time of its kernels by part of the network, from a trace; then the same
clock with one thing done in another way each (`WAYS`). What is left out for lack of time is said.
"""

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.hlo_parts import kernels, parts_of
from benchmarks.streams import Case
from benchmarks.timing import count, device
from sphere.algos import rows
from sphere.algos.learner import Clock
from sphere.data import accuracy
from sphere.nets import attention, moe, routers, transformer


def by_cudnn(q: Any, k: Any, v: Any, real: Any) -> Any:
    """cuDNN's attention in float16, whose mantissa is that of TF32; words come first and padding last."""
    length = None if real is None else jnp.sum(real, axis=1, dtype=jnp.int32)
    half = (one.astype(jnp.float16) for one in (q, k, v))
    found = jax.nn.dot_product_attention(
        *half, query_seq_lengths=length, key_value_seq_lengths=length, implementation="cudnn"
    )
    return found.astype(q.dtype)


def by_triton(q: Any, k: Any, v: Any, real: Any, interpret: bool = False) -> Any:
    """The attention kernel that comes with jax, in float32."""
    from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha

    own = None if real is None else real.astype(jnp.int32)
    return mha(q, k, v, own, q.shape[-1] ** -0.5, block_sizes=BlockSizes(64, 64, 32, 32, 32, 32), interpret=interpret)


def gathered(self: Any, number: int, samples: int, record: Any) -> Any:
    return self(jnp.tile(jnp.arange(number, dtype=jnp.int32), samples), record)


def old_top_1(logits: Any) -> Any:
    return jax.lax.top_k(logits, 1)


Change = tuple[Any, str, Any]
LENGTH: list[Change] = [(accuracy, "longest_text", lambda policy: None)]
LOOKUP: list[Change] = [
    (transformer, "rows_of", lambda table, ids: table[ids]),
    (transformer.Lookup, "first", gathered),
]
BLOCKS: list[Change] = [(moe, "largest_block", lambda experts, tokens, loop: 128)]
TOP: list[Change] = [(routers, "top_1", old_top_1)]
WAYS: dict[str, list[Change]] = {
    "as it was": LENGTH + LOOKUP + BLOCKS + TOP,
    "attention by cuDNN, float16": [(attention, "attend", by_cudnn)],
    "attention by Triton, float32": [(attention, "attend", by_triton)],
    "gradient of lookups by scatter": LOOKUP,
    "chunks of 63 posts": [(accuracy, "TEXTS", 63)],
    "blocks of at most 128": BLOCKS,
    "top_k by sorting": TOP,
    "chunks of 250 posts": [(accuracy, "TEXTS", 250)],
}


@contextlib.contextmanager
def changed(changes: list[Change]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for where, name, value in changes:
            stack.enter_context(mock.patch.object(where, name, value))
        jax.clear_caches()
        yield
    jax.clear_caches()


class Round:
    """Both halves of a round, compiled."""

    def __init__(self, case: Case):
        self.case, begun = case, time.perf_counter()
        self.rest = case.numbers, case.data, case.seeds, Clock(np.int32(0), np.float32(1))
        self.step = rows._update_exactly.lower(case.learner, case.state, *self.rest).compile()
        self.training = time.perf_counter() - begun
        self.test = [np.stack([getattr(task.test, name) for task in case.source.tasks]) for name in ("obs", "label")]
        self.allowed = np.stack([task.allowed for task in case.source.tasks])
        with mock.patch.object(accuracy, "_right", self._compile):
            self.first = self.evaluate()
        self.compiling = time.perf_counter() - begun

    def _compile(self, *arguments: Any) -> Any:
        right = RIGHT.lower(*arguments).compile()
        self.right = right
        self.static = len(arguments) - 5
        return right(*arguments[self.static :])

    def train(self) -> Any:
        self.case.state, metrics = self.step(self.case.state, *self.rest)
        return jax.block_until_ready(metrics["loss"])

    def evaluate(self) -> Any:
        policy = rows.policy(self.case.learner, self.case.state)
        obs, label = self.test
        return accuracy.accuracies(self.case.source.data, policy, obs, label, self.allowed)

    def evaluate_again(self) -> Any:
        with mock.patch.object(accuracy, "_right", lambda *arguments: self.right(*arguments[self.static :])):
            return self.evaluate()


RIGHT = accuracy._right


def best(once: Callable[[], Any], repeats: int = 5) -> float:
    """Milliseconds."""
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        once()
        taken.append(time.perf_counter() - begun)
    return 1e3 * min(taken)


def arithmetic(case: Case) -> None:
    """Multiplications and additions, of words alone and with padding to the longest, as TFLOP."""
    net = case.learner.actor
    assert net.transformer is not None
    width, layers = net.transformer.width, net.transformer.layers
    each = layers * (8 * width**2 + 4 * width * net.width)

    def total(obs: Any, padded: bool) -> float:
        length = np.full(obs.shape[:2], obs.shape[2]) if padded else np.sum(np.asarray(obs) != 0, axis=2)
        return float(np.sum(length * each + 4 * layers * width * length**2)) / 1e12

    test = np.stack([task.test.obs for task in case.source.tasks])
    for padded, name in ((True, "with padding"), (False, "words alone")):
        training, evaluation = 3 * total(case.data["obs"], padded), total(test, padded)
        print(f"arithmetic, {name}: training {training:.3f} TFLOP, evaluation {evaluation:.3f} TFLOP", flush=True)


def traced(name: str, once: Callable[[], Any], text: str, top: int, repeats: int = 3) -> None:
    """Time on the device by part, and the longest kernels."""
    part, found = parts_of(text), kernels(once, repeats)
    by_part: dict[str, list[float]] = {}
    for op, (milliseconds, number) in found.items():
        row = by_part.setdefault(part.get(op, ("?", ""))[0], [0.0, 0])
        row[0], row[1] = row[0] + milliseconds, row[1] + number
    total = sum(one[0] for one in by_part.values())
    print(f"{name}: {total:.2f} ms in {sum(one[1] for one in by_part.values()):.0f} kernels", flush=True)
    for one, (milliseconds, number) in sorted(by_part.items(), key=lambda pair: -pair[1][0]):
        print(f"  {milliseconds:8.2f} ms {number:6.0f}  {one}")
    for op, (milliseconds, number) in sorted(found.items(), key=lambda pair: -pair[1][0])[:top]:
        print(f"    {milliseconds:8.3f} ms {number:6.1f}  {op}  {' '.join(part.get(op, ('?', '')))}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=count, default=5)
    parser.add_argument("--tests", type=count, default=50, help="test examples of a class")
    parser.add_argument("--seconds", type=float, default=100, help="begin nothing after so many")
    parser.add_argument("--top", type=int, default=25, help="kernels that are named")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--text", type=Path, help="write compiled programs into this folder")
    args = parser.parse_args()
    begun = time.perf_counter()
    print(device(), flush=True)
    now = Round(Case("newsgroups", args.seeds, args.tests))
    arithmetic(now.case)
    show("now", now)
    for name, once, program in (("training", now.train, now.step), ("evaluation", now.evaluate_again, now.right)):
        if args.text:
            args.text.mkdir(parents=True, exist_ok=True)
            (args.text / f"{name}.txt").write_text(program.as_text() or "")
        traced(name, once, program.as_text() or "", args.top)
    for name in args.ways:
        if time.perf_counter() - begun > args.seconds:
            print(f"{name}: left out, {args.seconds:.0f} s are over", flush=True)
            continue
        try:
            with changed(WAYS[name]):
                other = Round(now.case)
                show(name, other)
                difference = max(np.max(np.abs(a - b)) for a, b in zip(now.first, other.first, strict=True))
                print(f"  accuracy differs by {difference:.4f} (parameters have moved on)", flush=True)
        except Exception as error:  # a way that does not work is a result, too
            print(f"{name}: {type(error).__name__}: {str(error)[:500]}", flush=True)


def show(name: str, round: Round) -> None:
    training, evaluation = best(round.train), best(round.evaluate_again)
    compiling = f"compiling {round.training:.0f} s, then {round.compiling - round.training:.0f} s"
    print(f"{name}: training {training:.2f} ms, evaluation {evaluation:.2f} ms ({compiling})", flush=True)


if __name__ == "__main__":
    main()
