"""Packed parameters are the same parameters: there and back, and for gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sphere.algos import packing as module
from sphere.algos.packing import packing

SHAPES = [(3, 5), (), (7,), (2, 3, 4), (1, 6), (20, 30)]


@pytest.fixture(params=[0, 10, 10_000], ids=["all large", "some small", "all small"])
def tree(request, monkeypatch):
    monkeypatch.setattr(module, "SMALL", request.param)
    rng = np.random.default_rng(0)
    return {str(i): jnp.asarray(rng.standard_normal(shape, np.float32)) for i, shape in enumerate(SHAPES)}


def test_there_and_back(tree):
    pack, unpack = packing(tree)
    parts = pack(tree)
    assert sum(part.size for part in parts) == sum(leaf.size for leaf in tree.values())
    back = unpack(parts)
    assert back.keys() == tree.keys()
    for name, leaf in tree.items():
        np.testing.assert_array_equal(back[name], leaf)


def test_gradients_arrive_where_their_parameters_are(tree):
    pack, unpack = packing(tree)

    def loss(tree):
        return sum(jnp.sum(jnp.sin(leaf) * (i + 1)) for i, leaf in enumerate(tree.values()))

    found = jax.grad(lambda parts: loss(unpack(parts)))(pack(tree))
    for a, b in zip(found, pack(jax.grad(loss)(tree)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_fleet_packs_run_by_run(tree):
    pack, unpack = packing(tree)
    fleet = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), tree)
    parts = jax.vmap(pack)(fleet)
    for one, whole in zip(pack(tree), parts, strict=True):
        np.testing.assert_array_equal(whole[1], 2 * one)
    np.testing.assert_array_equal(jax.vmap(unpack)(parts)["3"], fleet["3"])
