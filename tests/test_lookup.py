"""Rows by number: the way of a GPU has the rows and the gradient of a plain lookup, and gives the same bits twice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sphere.nets.lookup import in_order, rows_of
from sphere.nets.routers import top_1

ROWS, WIDTH = 7, 3


@pytest.fixture(params=["cpu", "gpu"])
def backend(request, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: request.param)


@pytest.mark.usefixtures("backend", "x64")
@pytest.mark.parametrize("n", [1, 2, 12, 13])
def test_the_gradient_of_a_row_is_the_sum_over_its_places(n):
    """Of several runs at once, some rows never taken, the last one often."""
    rng = np.random.default_rng(n)
    table, signal = rng.normal(size=(2, ROWS, WIDTH)), rng.normal(size=(2, n, WIDTH))
    ids = rng.choice([0, 2, 3, ROWS - 1], size=(2, n))
    ids[1] = ROWS - 1
    want = np.zeros_like(table)
    for run in range(2):
        np.add.at(want[run], ids[run], signal[run])

    def found(table, ids, signal):
        rows, pull = jax.vjp(lambda table: rows_of(table, ids), table)
        return rows, pull(signal)[0], jax.jvp(lambda table: rows_of(table, ids), (table,), (2 * table,))[1]

    rows, grad, change = jax.jit(jax.vmap(found))(table, jnp.asarray(ids, jnp.int32), signal)
    np.testing.assert_array_equal(rows, np.stack([table[run, ids[run]] for run in range(2)]))
    np.testing.assert_array_equal(change, 2 * rows)
    np.testing.assert_allclose(grad, want, atol=1e-14)


def test_rows_in_order_leave_no_scatter_that_adds_up():
    """On a GPU such a scatter would be sorted number by number. What is written, is written once."""

    def loss(table, ids):
        return jnp.sum(jnp.sin(in_order(table, ids)))

    text = jax.jit(jax.grad(loss)).lower(jnp.ones((ROWS, WIDTH)), jnp.zeros(12, jnp.int32)).as_text()
    scatters = [line for line in text.splitlines() if "stablehlo.scatter" in line]
    assert scatters
    assert all("unique_indices = true" in line for line in scatters)


def test_an_infinite_gradient_stays_at_its_row():
    ids = jnp.array([1, 0, 1, 2], jnp.int32)
    _, pull = jax.vjp(lambda table: in_order(table, ids), jnp.zeros((3, 1)))
    np.testing.assert_array_equal(pull(jnp.array([[1.0], [jnp.inf], [1.0], [5.0]]))[0], [[jnp.inf], [2], [5]])


@pytest.mark.usefixtures("x64")
def test_the_best_expert_is_that_of_top_k():
    """Ties, infinite and missing numbers too; and its gradient."""
    logits = np.random.default_rng(0).normal(size=(9, 5))
    logits[1] = 0
    logits[2, [1, 3]] = 9
    logits[3] = -np.inf
    logits[4, 2] = np.nan
    for one, two in zip(top_1(jnp.asarray(logits)), jax.lax.top_k(jnp.asarray(logits), 1), strict=True):
        np.testing.assert_array_equal(one, two)
        assert one.dtype == two.dtype
    grads = [jax.grad(lambda x, f=f: jnp.sum(f(x)[0] ** 2))(logits[:3]) for f in (top_1, lambda x: jax.lax.top_k(x, 1))]
    np.testing.assert_array_equal(*grads)
