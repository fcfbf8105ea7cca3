"""Encoders of images against a plain statement in PyTorch, and their NTK against the materialised Jacobian."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from sphere import ntk
from sphere.envs.frame_stack import with_numbers
from sphere.errors import UserError
from sphere.nets import EncoderTrunk, NetConfig, Recorder, Trunk, build, with_compute
from sphere.nets.encoders import build_encoder

torch = pytest.importorskip("torch")
F = torch.nn.functional

SIDES = {"impala": 20, "resnet-18": 32}
FRAMES = 2


def images(name, n=2, seed=0):
    side = SIDES[name]
    return np.random.default_rng(seed).integers(0, 256, (n, side, side, 3 * FRAMES), np.uint8)


def encoder(name, numbers=0, key=0):
    side = SIDES[name]
    return build_encoder(name, (side + (numbers > 0), side, 3 * FRAMES), numbers, key=jax.random.key(key))


def actor(name, kind="top-k"):
    """Of ResNet-18 only the blocks in which channels first change: the others are like them, and large."""
    side = SIDES[name]
    small = NetConfig(kind=kind, width=5, depth=1, experts=3)
    if name == "impala":
        small = dataclasses.replace(small, encoder=name)
        return build(small, (side, side, 3 * FRAMES), 2, key=jax.random.key(1))
    whole = encoder(name)
    fewer = eqx.tree_at(lambda net: net.blocks, whole, whole.blocks[1:3])
    return EncoderTrunk(fewer, build(small, fewer.features, 2, key=jax.random.key(1)))


def moved(net, seed=0):
    """With biases and scales that do something."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: leaf + 0.1 * rng.normal(size=leaf.shape).astype(leaf.dtype), net)


class Plain:
    """The same networks as functions of the arrays of one of ours, in PyTorch's own layers."""

    def __init__(self, net):
        self.leaves = []
        self.net = jax.tree.map(self._leaf, net)

    def _leaf(self, leaf):
        self.leaves.append(torch.tensor(np.asarray(leaf), requires_grad=True))
        return self.leaves[-1]

    def conv(self, layer, x):
        kernel = layer.kernel.permute(3, 2, 0, 1)
        return F.conv2d(x, kernel, layer.bias, stride=layer.stride, padding=kernel.shape[-1] // 2)

    def norm(self, layer, x):
        return F.group_norm(x, x.shape[1] // 16, layer.scale, layer.bias)

    def impala(self, x):
        for stage in self.net.stages:
            x = F.max_pool2d(self.conv(stage.first, x), 3, 2, 1)
            for block in stage.blocks:
                x = x + self.conv(block.second, F.relu(self.conv(block.first, F.relu(x))))
        return F.relu(F.relu(x).mean((2, 3)) @ self.net.last.kernel + self.net.last.bias)

    def resnet_18(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.net.norm, self.conv(self.net.first, x))), 3, 2, 1)
        for block in self.net.blocks:
            h = F.relu(self.norm(block.first_norm, self.conv(block.first, x)))
            h = self.norm(block.second_norm, self.conv(block.second, h))
            x = F.relu(h + (x if block.short is None else self.norm(block.short_norm, self.conv(block.short, x))))
        return x.mean((2, 3))

    def __call__(self, name, x):
        return getattr(self, name.replace("-", "_"))(torch.tensor(x).permute(0, 3, 1, 2).double() / 255)


@pytest.mark.parametrize("name", SIDES)
@pytest.mark.usefixtures("x64")
def test_features_and_gradients_equal_a_plain_statement(name):
    net, x = moved(encoder(name)), images(name)
    features = eqx.filter_jit(lambda net, x: net(x, Recorder(None)))(net, jnp.asarray(x))
    direction = np.random.default_rng(1).normal(size=features.shape)

    @eqx.filter_jit
    @eqx.filter_grad
    def loss(net):
        return jnp.sum(net(jnp.asarray(x), Recorder(None)) * direction)

    gradient = loss(net)
    plain = Plain(net)
    want = plain(name, x)
    (want * torch.tensor(direction)).sum().backward()
    assert want.shape == (2, net.features)
    np.testing.assert_allclose(features, want.detach(), rtol=1e-9, atol=1e-12)
    for one, other in zip(jax.tree.leaves(gradient), plain.leaves, strict=True):
        np.testing.assert_allclose(one, other.grad, rtol=1e-7, atol=1e-9 * np.abs(one).max())


def test_in_single_precision_too():
    name = "impala"
    net, x = moved(encoder(name)), images(name)
    found = eqx.filter_jit(lambda net, x: net(x, Recorder(None)))(net, jnp.asarray(x))
    assert found.dtype == jnp.float32
    want = Plain(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), net))(name, x).detach()
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))


@pytest.mark.parametrize(("name", "kind"), [("impala", "top-k"), ("resnet-18", "mlp"), ("impala", "soft")])
@pytest.mark.usefixtures("x64")
def test_the_ntk_of_an_image_network_equals_the_outer_product_of_its_jacobian(name, kind):
    """Exact, convolutions and GroupNorm included, also in parts."""
    net, x = moved(with_compute(actor(name, kind), "dense")), jnp.asarray(images(name, 4))
    flat, back = ravel_pytree(eqx.filter(net, eqx.is_array))
    jacobian = jax.jit(jax.jacrev(lambda flat: jnp.sum(back(flat)(x)[0], axis=1)))(flat)
    steady = [i for i, leaf in enumerate(_paths(net)) if "temperature" in leaf]
    sizes = np.cumsum([0] + [leaf.size for leaf in jax.tree.leaves(net)])
    kept = np.ones(flat.size, bool)
    for i in steady:
        kept[sizes[i] : sizes[i + 1]] = False
    want = jacobian[:, kept] @ jacobian[:, kept].T
    found, some, parts = eqx.filter_jit(
        lambda net, x: (ntk.gram(net, x), ntk.gram(net, x, batch_size=3), ntk.blocks(net, x))
    )(net, x)
    np.testing.assert_allclose(found, want, rtol=1e-9)
    np.testing.assert_allclose(some, want, rtol=1e-9)
    assert np.trace(parts.shared) > 0
    np.testing.assert_allclose(parts.gate + parts.expert + parts.shared, want, rtol=1e-9)


def _paths(net):
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(net)]


def test_numbers_beside_the_frames_join_the_features():
    net, plain = encoder("impala", numbers=4), encoder("impala")
    pictures = images("impala", 3)
    numbers = np.random.default_rng(3).normal(size=(FRAMES, 3, 4)).astype(np.float32)
    frames = [with_numbers(pictures[..., 3 * i : 3 * i + 3], numbers[i]) for i in range(FRAMES)]
    x = jnp.asarray(np.concatenate(frames, axis=-1))
    found = net(x, Recorder(None))
    assert net.features == plain.features + 4 * FRAMES == found.shape[1]
    np.testing.assert_array_equal(found[:, :256], plain(jnp.asarray(pictures), Recorder(None)))
    np.testing.assert_array_equal(found[:, 256:], numbers.transpose(1, 0, 2).reshape(3, -1))
    np.testing.assert_array_equal(net(x.astype(jnp.float32), Recorder(None)), found)


def test_an_actor_is_an_encoder_a_mixture_and_a_head():
    net, x = actor("impala"), jnp.asarray(images("impala"))
    assert isinstance(net, EncoderTrunk)
    assert isinstance(net, Trunk)
    output, trace = net(x)
    features = net.encoder(x, Recorder(None))
    want, inner = net.trunk(features)
    np.testing.assert_array_equal(output, want)
    np.testing.assert_array_equal(trace.mixtures[-1].features, inner.mixtures[-1].features)
    assert len(trace.mixtures) == 1, "SPHERE acts on the mixture's last features as before"
    convolutions = [layer for layer in trace.layers if layer.kind == "conv"]
    assert len(convolutions) == 15


@pytest.mark.parametrize(
    ("config", "shape", "sentence"),
    [
        ({"encoder": "resnet-18"}, (24, 24, 9), "resnet-18 needs images of 32 pixels a side or more, got 24 x 24"),
        (
            {"encoder": "impala"},
            (6, 6, 9),
            "impala needs images of 8 pixels a side or more, got 6 x 6; choose a larger",
        ),
        ({"encoder": "impala"}, 39, "impala reads images, and an observation is 39 numbers; leave the encoder out"),
        ({}, (84, 84, 9), r"an image of shape \(84, 84, 9\), which a top-k network cannot read .* impala or resnet-18"),
        ({"encoder": "shared"}, (84, 84, 9), "encoder=shared is for a critic"),
    ],
)
def test_what_an_encoder_cannot_read_is_refused_in_a_sentence(config, shape, sentence):
    with pytest.raises(UserError, match=sentence):
        build(NetConfig(**config), shape, 4, key=jax.random.key(0))
