"""The memory of an off-policy learner: transitions as rows of one table per run, the oldest overwritten first.

A table lies on the device and is written in place; minibatches are gathered from it inside the update, so nothing
passes between host and device but the new transitions. `sphere.training.memory` keeps it together with a file that
grows with it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sphere.algos.learner import DataSpec


def width(spec: DataSpec) -> int:
    """Numbers of a row: observation, action, reward, next observation, terminated."""
    return 2 * sum(spec.observation) + spec.action + 2


def as_rows(transition: Sequence[Any]) -> Float[Array, "n width"]:
    """Arrays [time, env, ...] side by side, step after step."""
    columns = [jnp.asarray(column, jnp.float32) for column in transition]
    count = columns[0].shape[0] * columns[0].shape[1]
    return jnp.concatenate([column.reshape(count, -1) for column in columns], axis=1)


def columns(rows: Float[Array, "n width"], action: int) -> tuple[Array, ...]:
    """Observation, action, reward, next observation, terminated of rows."""
    obs = (rows.shape[1] - action - 2) // 2
    first, second = obs + action, obs + action + 1
    return rows[:, :obs], rows[:, obs:first], rows[:, first], rows[:, second : second + obs], rows[:, -1]


def data(table: Float[Any, "table capacity width"], places: Any, filled: int) -> dict[str, Any]:
    """What runs learn from: all tables, and for each run which of them is its own and how many rows of it count."""
    places = np.asarray(places, np.int32)
    return {"table": table, "place": places, "filled": np.full(len(places), filled, np.int32)}


def empty(runs: int, capacity: int, width: int) -> Float[Array, "run capacity width"]:
    return jnp.zeros((runs, capacity, width), jnp.float32)


@partial(jax.jit, donate_argnums=0)
def write(
    table: Float[Array, "run capacity width"], rows: Float[Any, "run n width"], place: Any
) -> Float[Array, "run capacity width"]:
    """The rows from this place on, at the end from the start again; of more rows than there are places, the last
    ones. The table that goes in is gone afterwards (donated)."""
    capacity, count = table.shape[1], rows.shape[1]
    skipped = max(0, count - capacity)
    places = (place + skipped + jnp.arange(count - skipped)) % capacity
    return table.at[:, places].set(rows[:, skipped:])
