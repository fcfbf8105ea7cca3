"""Rows of a table by number, with a gradient that a GPU adds up fast and in the same order every time."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@jax.custom_jvp
def rows_of(table: Float[Array, "rows width"], ids: Int[Array, " n"]) -> Float[Array, "n width"]:
    """table[ids]. On a GPU the gradient of a row that is taken many times is summed by `in_order`: compilers that have
    to give the same bits twice sort all numbers of all rows one by one."""
    return table[ids]


@rows_of.defjvp
def _rows_of_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (table, ids), (change, _) = primals, tangents
    return rows_of(table, ids), change[ids] if jax.default_backend() == "cpu" else in_order(change, ids)


def in_order(table: Float[Array, "rows width"], ids: Int[Array, " n"]) -> Float[Array, "n width"]:
    """table[ids], every row read once only, where its number comes first among the sorted ones, and copied on from
    there. The transposition is then a sum over neighbours and one row written for each number."""
    order = jnp.argsort(ids)
    sorted_ids, place = ids[order], jnp.arange(len(ids), dtype=ids.dtype)
    first = jnp.concatenate([jnp.ones(1, bool), sorted_ids[1:] != sorted_ids[:-1]])
    read = jnp.where(first, sorted_ids, len(table) + place)  # those beyond the table are zeros, and differ too
    once = table.at[read].get(mode="fill", fill_value=0, unique_indices=True)
    back = jnp.zeros_like(place).at[order].set(place, unique_indices=True)
    return copied_on(once, first).at[back].get(unique_indices=True)


def copied_on(rows: Float[Array, "n width"], first: Bool[Array, " n"]) -> Float[Array, "n width"]:
    """Each row where `first`, zeros elsewhere, as often as there are places up to the next."""

    def joined(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return left[0] | right[0], right[1] + jnp.where(right[0][:, None], 0, left[1])

    return jax.lax.associative_scan(joined, (first, rows))[1]
