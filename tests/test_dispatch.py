"""Two ways to bring samples to experts: grouped against dense, what goes to a bank and back, and which way is taken."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import MIXTURES, network, states

from sphere.nets import moe
from sphere.nets.dispatch import block_size, by_product, grouped, of_owners
from sphere.nets.moe import LARGE_BLOCK, largest_block, pick_compute
from sphere.variants import feature_blocks

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize(("kind", "n"), [("top-k", 1), ("top-k", 20), *((kind, 33) for kind in MIXTURES)])
def test_grouped_equals_dense_in_outputs_gradients_and_phi(kind, n):
    x = states(n)
    results = {}
    for compute in ("dense", "grouped"):
        net = network(kind, compute=compute, layer_norm=True)

        def loss(net):
            output, trace = net(x)
            return jnp.sum(jnp.sin(output)) + jnp.sum(jnp.square(feature_blocks(trace.mixtures[0]))), output

        (_, output), grads = eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))(net)
        results[compute] = (output, jax.tree.leaves(grads))
    np.testing.assert_allclose(results["dense"][0], results["grouped"][0], atol=1e-13)
    for dense, by_group in zip(results["dense"][1], results["grouped"][1], strict=True):
        np.testing.assert_allclose(dense, by_group, atol=1e-11)


def test_experts_in_a_loop_equal_dense_in_all_that_a_trace_has(monkeypatch):
    """Gradients come through outputs, features and layers, or through outputs alone."""
    monkeypatch.setattr(moe, "LARGE_BLOCK", 2)
    x = states()

    def all_of(net):
        output, trace = net(x)
        mixture = trace.mixtures[0]
        blocks = [feature_blocks(mixture, layer) for layer in range(2)]
        sizes = [jnp.sum(layer.output**2 * (mixture.weight > 0)[:, :, None]) for layer in trace.layers[-5:]]
        return output, (blocks, sum(sizes))

    def loss(net):
        output, more = all_of(net)
        return jnp.sum(jnp.sin(output)) + sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(more))

    @eqx.filter_jit
    def found(net):
        return all_of(net), eqx.filter_grad(loss)(net), eqx.filter_grad(lambda net: jnp.sum(jnp.sin(net(x)[0])))(net)

    dense, loop = (found(network("top-k", compute=compute, layer_norm=True)) for compute in ("dense", "grouped"))
    for one, two in zip(jax.tree.leaves(dense), jax.tree.leaves(loop), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-10)


def test_grouped_dispatch_keeps_every_token_and_drops_unused_slots():
    rng = np.random.default_rng(0)
    for experts, n, slots in [(1, 5, 1), (4, 1, 2), (10, 64, 2), (64, 8, 3), (3, 40, 3)]:
        owner = rng.integers(0, experts + 1, size=(n, slots))  # `experts` marks a slot that is not used
        values = rng.normal(size=(n, slots, 4))

        @jax.jit
        def there_and_back(owner, values, experts=experts, n=n, slots=slots):
            route = grouped(owner, experts, n * slots)
            there = route.to_bank(values)
            return there, route.to_slots(there), route.parameters({"expert": jnp.arange(experts)})["expert"]

        there, back, assigned = there_and_back(owner, values)
        np.testing.assert_array_equal(back, np.where((owner < experts)[:, :, None], values, 0))
        for block, rows in zip(np.asarray(assigned), np.asarray(there), strict=True):
            for row in rows[np.any(rows != 0, axis=1)]:  # every row of a block belongs to the block's expert
                i, s = np.argwhere(np.all(values == row, axis=-1))[0]
                assert owner[i, s] == block


def test_copies_by_a_product_are_the_copies_and_have_their_gradient():
    """What a GPU's gradient goes through (`by_product`), against copies made one by one."""
    rng = np.random.default_rng(0)
    leaf, weight = (jnp.asarray(rng.normal(size=(n, 3, 2))) for n in (5, 7))
    owner = jnp.array([0, 0, 0, 1, 3, 3, 4])  # nobody owns 2

    def pulled(copies):
        return jax.grad(lambda leaf: jnp.sum(weight * copies(leaf, owner)))(leaf)

    np.testing.assert_array_equal(by_product(leaf, owner), leaf[owner])
    wanted = np.zeros_like(leaf)
    np.add.at(wanted, owner, weight)
    np.testing.assert_allclose(pulled(by_product), wanted, atol=1e-14)
    np.testing.assert_allclose(pulled(of_owners), wanted, atol=1e-14)


def test_grouped_on_a_gpu_has_the_outputs_and_gradients_of_dense(monkeypatch):
    x = states(33)

    def found(compute):
        net = network("top-k", compute=compute)
        return jax.value_and_grad(lambda net: jnp.sum(jnp.square(net(x)[0])))(net)

    dense = found("dense")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    grouped = found("grouped")
    for one, two in zip(jax.tree.leaves(grouped), jax.tree.leaves(dense), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-11)


@pytest.mark.parametrize("tokens", [8_192, 12_800, 32_000, 65_535, 2**20])
def test_of_many_tokens_an_expert_has_four_to_eight_blocks_on_a_gpu(tokens, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    most = largest_block(8, tokens, False)
    assert 4 <= tokens / block_size(tokens, 8, most) / 8 <= 8
    assert largest_block(8, 1_000, False) == LARGE_BLOCK  # of few they are not made smaller


@pytest.mark.parametrize(("backend", "minibatch"), [("cpu", "grouped"), ("gpu", "dense")])
def test_auto_groups_only_where_dense_wastes_much(backend, minibatch, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert pick_compute(num_experts=100, tokens=128, n=64, width=256) == minibatch
    assert pick_compute(num_experts=8, tokens=12_800, n=12_800, width=1024) == "grouped"  # texts of a minibatch
    assert pick_compute(num_experts=128, tokens=16_000, n=8_000, width=256) == "grouped"  # a ViT's patches
    assert pick_compute(num_experts=10, tokens=640, n=64, width=256) == "dense"
    # a whole rollout: 16 GB of features per layer, were it dense
    assert pick_compute(num_experts=1000, tokens=2 * 16_384, n=16_384, width=256) == "grouped"
