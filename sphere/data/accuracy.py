"""How many test examples classifiers get right. Short texts are read without most of their padding."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from sphere.algos.rows import EXACT
from sphere.data.labelled import Labelled
from sphere.data.prepared import standardised
from sphere.nets.transformer import longest_text, reading

CHUNK, TEXTS = 250, 125
"""Test examples that go through a network at once, at most; texts, which are sorted by length."""
SHARES = (3, 6, 11, 16)
"""Texts are cut to so many sixteenths of the longest: about the quartiles of posts, and few programs to compile."""


def accuracies(
    data: Labelled, policy: Any, obs: np.ndarray, label: np.ndarray, allowed: Bool[np.ndarray, "run classes"]
) -> tuple[np.ndarray, np.ndarray]:
    """Of every run [run, n, numbers]: by argmax over all classes, and over those of its task."""
    longest = longest_text(policy)
    rows, of_row, last = in_chunks(obs, label, CHUNK if longest is None else TEXTS, longest is not None)
    lengths: tuple[int | None, ...] = (None,)
    which = np.zeros(last.shape, np.int32)
    if longest is not None:
        cut = sorted({-(-longest * share // 16) for share in SHARES})
        lengths, which = tuple(cut), np.searchsorted(cut, last).astype(np.int32)
    alone = jax.default_backend() == "cpu"  # there a run of a fleet then has the bits that it has alone
    return jax.device_get(_right(data.mean, data.deviation, lengths, alone, policy, rows, of_row, allowed, which))


def in_chunks(
    obs: np.ndarray, label: np.ndarray, most: int, sort: bool
) -> tuple[np.ndarray, np.ndarray, Integer[np.ndarray, "run chunk"]]:
    """Examples as [run, chunk, at most `most`, ...] of equal size, and the last word of each chunk. Sorted, the short
    ones come first. What fills the first chunk has label -1 and no words."""
    runs, n = label.shape
    parts = -(-n // most)
    empty = -n % parts
    rows = np.concatenate([np.zeros_like(obs, shape=(runs, empty, obs.shape[2])), obs], axis=1)
    labels = np.concatenate([np.full((runs, empty), -1, np.int32), label.astype(np.int32)], axis=1)
    last = np.zeros(labels.shape, int)
    if sort:
        backwards = rows[:, :, ::-1] != 0
        last = np.where(backwards.any(axis=2), rows.shape[2] - np.argmax(backwards, axis=2), 0)
        run, order = np.arange(runs)[:, None], np.argsort(last, axis=1, kind="stable")
        rows, labels, last = rows[run, order], labels[run, order], last[run, order]
    by_chunk = (runs, parts, -1)
    return rows.reshape(*by_chunk, obs.shape[2]), labels.reshape(by_chunk), last.reshape(by_chunk).max(axis=2)


@partial(jax.jit, static_argnums=(0, 1, 2, 3), compiler_options=EXACT)
def _right(
    mean: tuple[float, ...],
    deviation: tuple[float, ...],
    lengths: tuple[int | None, ...],
    alone: bool,
    policy: Any,
    obs: Array,
    label: Integer[Array, "run chunk n"],
    allowed: Bool[Array, "run classes"],
    which: Integer[Array, "run chunk"],
) -> tuple[Float[Array, " run"], Float[Array, " run"]]:
    """`which`: the length of each chunk among `lengths`. Runs one after the other if `alone`, or side by side, all of
    them cut to the length that is enough for the longest text among them."""

    def logits(length: int | None, policy: Any, rows: Array) -> Float[Array, "n classes"]:
        net = policy if length is None else reading(policy, length)
        return net.act(standardised(mean, deviation, rows[:, :length]))

    def in_turns(own: tuple[Any, Array, Array]) -> Array:
        policy, rows, which = own
        cut = [partial(logits, length, policy) for length in lengths]
        return jax.lax.map(lambda chunk: jax.lax.switch(chunk[1], cut, chunk[0]), (rows, which))

    def side_by_side() -> Array:
        cut = [lambda rows, length=length: jax.vmap(partial(logits, length))(policy, rows) for length in lengths]
        chunks = jnp.moveaxis(obs, 1, 0), jnp.max(which, axis=0)
        return jnp.moveaxis(jax.lax.map(lambda chunk: jax.lax.switch(chunk[1], cut, chunk[0]), chunks), 0, 1)

    found = jax.lax.map(in_turns, (policy, obs, which)) if alone else side_by_side()
    masked = jnp.where(allowed[:, None, None, :], found, -jnp.inf)
    total = jnp.sum(label >= 0, axis=(1, 2), dtype=jnp.float32)
    right = [jnp.sum(jnp.argmax(given, axis=3) == label, axis=(1, 2), dtype=jnp.float32) for given in (found, masked)]
    return right[0] / total, right[1] / total
