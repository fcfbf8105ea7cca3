"""The networks that the streams' benchmark times in PyTorch are ours: outputs and gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoders import CLASSES, text_net, texts

from sphere.algos.classifier import masked_cross_entropy
from sphere.nets import NetConfig, build

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from benchmarks.pytorch.streams import Loop, as_torch, logits  # noqa: E402


def mlp():
    shape = NetConfig(width=8, depth=3, experts=4, top_k=2)
    return build(shape, 12, CLASSES, key=jax.random.key(0))


def rows():
    return np.random.default_rng(0).normal(size=(5, 12)).astype(np.float32)


CASES = {
    "mlp": (mlp, rows),
    "text": (lambda: text_net(1, layers=2), texts),
    "text-all": (lambda: text_net(1, "all", layers=2), texts),
}


@pytest.mark.parametrize("name", CASES)
def test_both_networks_agree(name):
    make, draw = CASES[name]
    net, x = make(), draw()
    label, allowed = np.array([0, 2, 2, 0, 2]), np.array([True, False, True, False])

    @eqx.filter_jit
    @eqx.filter_value_and_grad(has_aux=True)
    def loss(net):
        output = net(jnp.asarray(x))[0]
        return masked_cross_entropy(output, jnp.asarray(label), jnp.asarray(allowed))[0], output

    (value, output), grad = loss(net)
    learned, plain = as_torch(net)
    found = logits(plain, torch.tensor(x))
    np.testing.assert_allclose(found.detach().numpy(), output, rtol=1e-5, atol=1e-5)
    masked = found.masked_fill(~torch.tensor(allowed), -torch.inf)
    torch.nn.functional.cross_entropy(masked, torch.tensor(label)).backward()
    paths = jax.tree_util.tree_leaves_with_path(grad)
    leaves = [leaf for path, leaf in paths if "temperature" not in jax.tree_util.keystr(path)]
    for leaf, tensor in zip(leaves, learned, strict=True):
        want = np.zeros(leaf.shape) if tensor.grad is None else tensor.grad.numpy()
        np.testing.assert_allclose(leaf, want, rtol=1e-5, atol=1e-5)
    loop = Loop(net, 1e-3, 0.1)
    arguments = torch.tensor(x), torch.tensor(label), torch.tensor(allowed), 5
    np.testing.assert_allclose(loop.train(*arguments), value, rtol=1e-5)
    assert loop.train(*arguments) < value
