"""The Transformer with mixtures against a plain statement in PyTorch, and its NTK against the materialised Jacobian."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoders import (
    CLASSES,
    EXPERTS,
    LENGTH,
    VOCABULARY,
    as_torch,
    config,
    forward,
    image_net,
    images,
    text_net,
    texts,
    torch,
)
from networks import jacobian_of, outer_product

from sphere import ntk
from sphere.nets import NetConfig, TransformerConfig, attention, build, moe, with_compute, with_temperature
from sphere.nets.heads import Trunk

NETS = {"text": (text_net, texts), "image": (image_net, images)}
FORMS = [
    ("text", 2, "chosen", "before"),
    ("text", 1, "chosen", "before"),
    ("text", 1, "all", "before"),
    ("text", 2, "chosen", "after"),
    ("image", 2, "all", "before"),
]


def test_many_tokens_go_through_loops_on_a_cpu(monkeypatch):
    """Otherwise what `loops` tests would be something else."""
    assert not moe.loops(EXPERTS, 4 * 2 * LENGTH)
    monkeypatch.setattr(moe, "LARGE_BLOCK", 2)
    assert moe.loops(EXPERTS, 4 * LENGTH)


def with_ties(net):
    """Two experts that every router rates alike, so that ties decide."""
    kernels = [block.mixture.router.gate.head.kernel for block in net.blocks]
    return eqx.tree_at(
        lambda net: [block.mixture.router.gate.head.kernel for block in net.blocks],
        net,
        [kernel.at[:, 1].set(kernel[:, 0]) for kernel in kernels],
    )


@pytest.fixture
def compute(request, monkeypatch):
    """`loops`: as a CPU computes many tokens, here with few."""
    if request.param == "loops":
        monkeypatch.setattr(moe, "LARGE_BLOCK", 2)
        monkeypatch.setattr(attention, "SHORT", 2)
    return "dense" if request.param == "dense" else "grouped"


@pytest.mark.parametrize("compute", ["dense", "grouped", "loops"], indirect=True)
@pytest.mark.parametrize(("kind", "top_k", "softmax", "norm"), FORMS)
def test_outputs_and_gradients_equal_a_plain_statement(kind, top_k, softmax, norm, compute):
    make, draw = NETS[kind]
    net, x = with_ties(with_compute(make(top_k, softmax, norm=norm), compute)), draw(4)
    assert isinstance(net, Trunk)
    direction = np.random.default_rng(0).normal(size=(4, CLASSES)).astype(np.float32)

    @eqx.filter_jit
    @eqx.filter_value_and_grad(has_aux=True)
    def loss(net):
        output = net(jnp.asarray(x))[0]
        return jnp.sum(direction * output), output

    (_, output), grad = loss(net)
    tensors, plain = as_torch(net)
    want, _ = forward(plain, x)
    (want * torch.tensor(direction)).sum().backward()
    np.testing.assert_allclose(output, want.detach().numpy(), rtol=1e-5, atol=1e-5)
    leaves = jax.tree.leaves(grad)
    for leaf, tensor in zip(leaves, tensors, strict=True):
        expected = 0 * leaf if tensor.grad is None else tensor.grad.numpy()
        np.testing.assert_allclose(leaf, expected, rtol=1e-5, atol=1e-5)
    assert sum(float(jnp.sum(jnp.abs(leaf))) > 0 for leaf in leaves) >= len(leaves) - (6 if top_k == 1 else 2)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("compute", ["dense", "grouped"])
@pytest.mark.parametrize(("kind", "top_k", "softmax", "norm"), FORMS)
def test_the_ntk_and_its_blocks_equal_the_materialised_jacobian(kind, top_k, softmax, norm, compute):
    make, draw = NETS[kind]
    layers = 2 if (kind, top_k, norm, compute) == ("text", 2, "before", "grouped") else 1
    net, x = with_compute(make(top_k, softmax, layers=layers, norm=norm), compute), jnp.asarray(draw(), float)
    full = jacobian_of(net, x)
    blocks, gram = eqx.filter_jit(lambda net: (ntk.blocks(net, x), ntk.gram(net, x)))(net)
    gates = [block.mixture.router.gate for block in full.blocks]
    shared = [full.embed, full.positions, full.norm, full.head]
    shared += [(one.attention, one.attention_norm, one.mixture_norm) for one in full.blocks]
    np.testing.assert_allclose(blocks.gate, outer_product(gates), atol=1e-10)
    np.testing.assert_allclose(
        blocks.expert, outer_product([block.mixture.experts for block in full.blocks]), atol=1e-10
    )
    np.testing.assert_allclose(blocks.shared, outer_product(shared), atol=1e-10)
    np.testing.assert_allclose(gram, outer_product(full), atol=1e-10)
    if (top_k, softmax) == (1, "chosen"):  # the weight is 1 whatever the router says
        assert not np.any(blocks.gate)
    else:
        assert np.linalg.norm(blocks.gate) > 1e-4 * np.linalg.norm(gram)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", NETS)
def test_every_layer_has_its_share_of_the_ntk(kind):
    """Attention projections, embeddings, LayerNorm, router, experts and head, one by one, in the order they run."""
    make, draw = NETS[kind]
    net, x = make(), jnp.asarray(draw(), float)
    full = jacobian_of(net, x)
    first = full.embed.words if kind == "text" else full.embed.linear
    layers = [first, full.positions]
    for block in full.blocks:
        attention = block.attention
        layers += [block.attention_norm, attention.query, attention.key, attention.value, attention.output]
        layers += [block.mixture_norm, block.mixture.router.gate.head]
        layers += [block.mixture.experts.hidden[0], block.mixture.experts.head]
    layers += [full.norm, full.head]
    factors = eqx.filter_jit(ntk.factors)(net, x)
    for factor, layer in zip(factors, layers, strict=True):
        np.testing.assert_allclose(ntk.layer_gram(factor), outer_product(layer), atol=1e-10)


@pytest.mark.usefixtures("x64")
def test_both_routes_to_a_layers_share_agree():
    """By the gradients of samples, and by pairs of tokens."""
    net, x = text_net(), jnp.asarray(texts(), float)
    for factor in eqx.filter_jit(ntk.factors)(net, x):
        if factor.layer.one_copy and factor.layer.kind != "lookup":
            pairs = eqx.tree_at(lambda f: f.layer, factor, _as_any(factor.layer))
            np.testing.assert_allclose(
                ntk._of_gradients(factor.layer, factor.signal), ntk.layer_gram(pairs), atol=1e-11
            )


def _as_any(layer):
    return dataclasses.replace(layer, one_copy=False)


@pytest.mark.usefixtures("x64")
def test_a_permutation_of_experts_changes_nothing_but_rounding():
    net, x = text_net(), jnp.asarray(texts(), float)
    order = np.array([2, 0, 1])

    def permuted(moe):
        moved = jax.tree.map(lambda leaf: leaf[order], moe.experts)
        kernel = moe.router.gate.head.kernel[:, order]
        return eqx.tree_at(lambda m: (m.experts, m.router.gate.head.kernel), moe, (moved, kernel))

    other = eqx.tree_at(
        lambda net: [block.mixture for block in net.blocks], net, [permuted(block.mixture) for block in net.blocks]
    )
    run = eqx.filter_jit(lambda net: (net(x)[0], ntk.gram(net, x)))
    for one, two in zip(run(net), run(other), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-12)


@pytest.mark.parametrize("compute", ["dense", "grouped", "loops"], indirect=True)
def test_padding_changes_nothing_at_all(compute):
    """Neither the word nor the positions in its place: outputs and NTK to the bit, gradients exactly 0."""
    net, x = with_compute(text_net(), compute), jnp.asarray(texts())
    short = x.at[:, 4:].set(0)
    other = eqx.tree_at(
        lambda net: (net.embed.words.table, net.positions.table),
        net,
        (net.embed.words.table.at[0].add(3.0), net.positions.table.at[4:].add(-2.0)),
    )
    run = eqx.filter_jit(lambda net: (net(short)[0], ntk.gram(net, short)))
    for one, two in zip(run(net), run(other), strict=True):
        np.testing.assert_array_equal(one, two)
    grad = eqx.filter_jit(eqx.filter_grad(lambda net: jnp.sum(jnp.square(net(short)[0]))))(net)
    assert not np.any(grad.embed.words.table[0])
    assert not np.any(grad.positions.table[4:])
    assert np.any(grad.positions.table[:4])
    for mixture in eqx.filter_jit(net)(short)[1].mixtures:
        real = np.asarray(short != 0).reshape(-1)
        np.testing.assert_array_equal(mixture.real, real)
        assert np.all(np.sum(mixture.routing.chosen, axis=1) == 2 * real)
        assert not np.any(np.asarray(mixture.weight)[~real])


def test_padding_that_is_not_masked_is_a_word_like_any_other():
    """As if it were another word with the same vector."""
    net, x = text_net(norm="after", masked=False), texts()
    table = net.embed.words.table
    other = eqx.tree_at(lambda net: net.embed.words.table, net, jnp.concatenate([table.at[0].set(0.0), table[:1]]))
    output, trace = net(jnp.asarray(x))
    want, known = other(jnp.where(x == 0, float(len(table)), jnp.asarray(x)))
    assert np.array_equal(output, want)
    assert np.array_equal(trace.mixtures[0].features, known.mixtures[0].features)
    masked, _ = text_net(norm="after")(jnp.asarray(x))
    whole = (x != 0).all(axis=1)
    np.testing.assert_allclose(output[whole], masked[whole], rtol=1e-5, atol=1e-6)
    assert not np.allclose(output[~whole], masked[~whole], rtol=1e-3, atol=1e-3)


def test_a_text_of_nothing_but_padding_has_finite_numbers():
    net, x = text_net(), jnp.asarray(texts()).at[0].set(0)
    output, grad = eqx.filter_jit(eqx.filter_value_and_grad(lambda net: jnp.sum(net(x)[0])))(net)
    assert np.isfinite(output)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(grad))


def test_more_padding_is_the_same_text():
    """A longer network with the same parameters reads it alike."""
    net, x = text_net(), texts()
    longer = build(config(), LENGTH + 3, CLASSES, key=jax.random.key(0), vocabulary=VOCABULARY)
    table = longer.positions.table.at[:LENGTH].set(net.positions.table)
    longer = eqx.tree_at(
        lambda t: (t.embed.words, t.positions.table, t.blocks, t.norm, t.head),
        longer,
        (net.embed.words, table, net.blocks, net.norm, net.head),
    )
    more = np.concatenate([x, np.zeros((len(x), 3), x.dtype)], axis=1)
    run = eqx.filter_jit(lambda net, x: net(x)[0])
    np.testing.assert_allclose(run(longer, jnp.asarray(more)), run(net, jnp.asarray(x)), atol=1e-5)


def test_ids_may_come_as_whole_numbers():
    net, x = text_net(), texts()
    np.testing.assert_array_equal(net(jnp.asarray(x))[0], net(jnp.asarray(x, jnp.int32))[0])


def test_temperature_is_that_of_all_mixtures_and_does_nothing_to_one_chosen_expert():
    x = jnp.asarray(texts())
    run = eqx.filter_jit(lambda net: net(x)[0])
    for softmax, same in (("chosen", True), ("all", False)):
        net = text_net(1, softmax, layers=2)
        cold = with_temperature(net, jnp.asarray(0.01))
        assert [float(block.mixture.router.temperature) for block in cold.blocks] == [pytest.approx(0.01)] * 2
        assert np.array_equal(run(net), run(cold)) == same


def test_post_layer_norm_is_that_of_pytorch():
    """Where a mixture has one expert, a block is PyTorch's own layer."""
    net, x = text_net(1, norm="after", experts=1), texts()
    plain = as_torch(net)[1]
    (block,), moe = plain.blocks, plain.blocks[0].mixture.experts
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 10, dropout=0.0, activation="gelu", layer_norm_eps=1e-6)
    attention = block.attention
    three = [attention.query, attention.key, attention.value]
    with torch.no_grad():
        for ours, found in {
            theirs.self_attn.in_proj_weight: torch.cat([one.kernel.T for one in three]),
            theirs.self_attn.in_proj_bias: torch.cat([one.bias for one in three]),
            theirs.self_attn.out_proj.weight: attention.output.kernel.T,
            theirs.self_attn.out_proj.bias: attention.output.bias,
            theirs.linear1.weight: moe.hidden[0].kernel[0].T,
            theirs.linear1.bias: moe.hidden[0].bias[0],
            theirs.linear2.weight: moe.head.kernel[0].T,
            theirs.linear2.bias: moe.head.bias[0],
            theirs.norm1.weight: block.attention_norm.scale,
            theirs.norm1.bias: block.attention_norm.bias,
            theirs.norm2.weight: block.mixture_norm.scale,
            theirs.norm2.bias: block.mixture_norm.bias,
        }.items():
            ours.copy_(found)
        ids = torch.tensor(x).long()
        h = plain.embed.words.table[ids] + plain.positions.table
        h = theirs(h.transpose(0, 1), src_key_padding_mask=ids == 0).transpose(0, 1)
        real = (ids != 0)[:, :, None]
        pooled = (h * real).sum(1) / real.sum(1)
        want = pooled @ plain.head.kernel + plain.head.bias
    np.testing.assert_allclose(net(jnp.asarray(x))[0], want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("given", "deviation"), [(None, 128**-0.5), (1.0, 1.0)])
def test_word_vectors_begin_with_the_deviation_that_was_asked_for(given, deviation):
    encoder = TransformerConfig(layers=1, heads=2, width=128, word_deviation=given)
    net = build(config(transformer=encoder), LENGTH, CLASSES, key=jax.random.key(0), vocabulary=500)
    assert np.std(net.embed.words.table) == pytest.approx(deviation, rel=0.02)


def test_bad_settings_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="word_deviation=0"):
        TransformerConfig(word_deviation=0.0)
    with pytest.raises(ValueError, match="multiple of heads"):
        TransformerConfig(width=10, heads=4)
    with pytest.raises(ValueError, match="top_k=4 experts of 3 cannot be chosen"):
        text_net(top_k=EXPERTS + 1)
    with pytest.raises(ValueError, match="wanted a square image of 3 channels"):
        build(config(), 100, CLASSES, key=jax.random.key(0))
    with pytest.raises(ValueError, match="mixtures of the kind 'top-k', not 'soft'"):
        build(NetConfig(kind="soft", transformer=TransformerConfig()), 10, 2, key=jax.random.key(0), vocabulary=5)
    with pytest.raises(ValueError, match=r"wanted \[n, 6\]"):
        text_net()(jnp.ones((2, LENGTH + 1)))
