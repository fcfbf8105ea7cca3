"""sphere.torch's penalty beside the JAX functions, brute force and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'sphere-rl[torch]'")
torch.set_num_threads(1)  # threads that wait for each other on a busy machine take forty times as long

from matrices import brute, one_hot_features
from torch_mixtures import random_mixture

import sphere.penalty as jax_penalty
import sphere.torch as st
from sphere.torch import blockwise, penalty

CLOSE = {"float64": 1e-10, "float32": 1e-5}


def both(function, jax_function, value, dtype, subtracted, device):
    """How far values and gradients are apart: relative to the value plus what is subtracted in it, which float32
    rounds, and to the largest entry of JAX's gradient."""
    tensor = torch.tensor(value, dtype=getattr(torch, dtype), device=device, requires_grad=True)
    got = function(tensor)
    got.backward()
    want, slope = jax.value_and_grad(jax_function)(jnp.asarray(value, dtype))
    error = abs(got.item() - float(want)) / (abs(float(want)) + subtracted)
    size = float(np.abs(slope).max()) or 1.0
    return error, np.abs(tensor.grad.cpu().numpy() - np.asarray(slope)).max() / size


def subtracted(form, features, size):
    """tr(A)^2 / m or 1."""
    return (np.sum(features**2) / len(features)) ** 2 / size if form == "anisotropy" else 1.0


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("shape", [(2, 3), (5, 9), (9, 5), (64, 64), (300, 7), (7, 300)])
@pytest.mark.parametrize("form", ["anisotropy", "scale_free"])
def test_dense_penalties_equal_jax(x64, shape, dtype, form, device):
    phi = np.random.default_rng(sum(shape)).normal(size=shape)
    mine, theirs = getattr(st, form), getattr(jax_penalty, form)
    close = subtracted(form, phi, shape[1])
    value, slope = both(lambda x: mine(st.gram(x)), lambda x: theirs(jax_penalty.gram(x)), phi, dtype, close, device)
    assert max(value, slope) < CLOSE[dtype]


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize(
    ("n", "k", "width", "experts"), [(2, 1, 3, 2), (40, 2, 6, 10), (33, 8, 5, 8), (400, 2, 3, 4), (64, 1, 16, 128)]
)
@pytest.mark.parametrize("form", ["anisotropy", "scale_free"])
def test_routed_penalties_equal_jax(x64, n, k, width, experts, dtype, form, device):
    features, chosen = random_mixture(np.random.default_rng(n), n, k, width, experts)
    mine, theirs = getattr(st, form), getattr(jax_penalty, form)
    errors = both(
        lambda x: mine(st.routed_gram(x, torch.tensor(chosen, device=device), experts)),
        lambda x: theirs(jax_penalty.routed_gram(x, jnp.asarray(chosen), experts)),
        features,
        dtype,
        subtracted(form, features, experts * width),
        device,
    )
    assert max(errors) < CLOSE[dtype]


@pytest.mark.parametrize("case", ["huge", "tiny", "one row", "collapsed", "orthonormal", "one expert", "zeros"])
def test_adversarial_features_equal_brute_force(case, device):
    rng = np.random.default_rng(1)
    features, chosen = random_mixture(rng, 24, 2, 4, 6)
    if case in ("huge", "tiny"):
        features = features * {"huge": 1e40, "tiny": 1e-40}[case]
    elif case == "one row":
        features, chosen = features[:1], chosen[:1]
    elif case == "collapsed":
        features = np.ones_like(features)
    elif case == "orthonormal":  # 24 rows of phi, m = 24: A = I / 24
        features, chosen = np.zeros((24, 2, 4)), np.stack([np.arange(24) // 4, (np.arange(24) // 4 + 1) % 6], axis=1)
        features[np.arange(24), 0, np.arange(24) % 4] = 1
    elif case == "one expert":
        chosen = np.stack([np.zeros(24, int), np.ones(24, int)], axis=1)
    else:
        features = np.zeros_like(features)
    want = brute(one_hot_features(features, chosen, 6))
    got = st.routed_penalty(torch.tensor(features, device=device), torch.tensor(chosen, device=device), 6).item()
    scale = np.sum((one_hot_features(features, chosen, 6) ** 2).sum() / len(features)) ** 2
    assert abs(got - want) <= 1e-12 * scale
    if case in ("orthonormal", "zeros"):
        assert abs(got) < 1e-15


def test_an_expert_named_twice_in_a_row_counts_with_the_sum():
    rng = np.random.default_rng(3)
    features, chosen = rng.normal(size=(12, 3, 4)), rng.integers(0, 3, size=(12, 3))
    want = brute(one_hot_features(features, chosen, 3))
    for small in (penalty.SMALL, 0):
        moments = penalty._small if small else lambda f, e: blockwise.routed_moments(f, e, 3)
        phi = one_hot_features(features, chosen, 3)
        trace, square = moments(torch.tensor(features), torch.tensor(chosen))
        assert trace.item() == pytest.approx(np.sum(phi**2))
        assert square.item() == pytest.approx(np.sum((phi @ phi.T) ** 2))
    assert st.routed_penalty(torch.tensor(features), torch.tensor(chosen), 3).item() == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("small", [True, False])
def test_gradcheck(monkeypatch, small, device):
    if not small:
        monkeypatch.setattr(penalty, "SMALL", 0)
    features, chosen = random_mixture(np.random.default_rng(5), 7, 2, 3, 5)
    tensor, chosen = torch.tensor(features, device=device, requires_grad=True), torch.tensor(chosen, device=device)
    for form in (st.anisotropy, st.scale_free):
        assert torch.autograd.gradcheck(lambda f, form=form: form(st.routed_gram(f, chosen, 5)), tensor)
    phi = torch.tensor(np.random.default_rng(6).normal(size=(6, 4)), device=device, requires_grad=True)
    assert torch.autograd.gradcheck(st.sphere_penalty, phi)
    assert torch.autograd.gradgradcheck(st.sphere_penalty, phi)


def test_sampled_rows_are_rows_of_the_batch():
    features, chosen = random_mixture(np.random.default_rng(8), 50, 2, 3, 5)
    torch.manual_seed(0)
    rows = torch.randperm(50)[:10]
    torch.manual_seed(0)
    got = st.routed_penalty(torch.tensor(features), torch.tensor(chosen), 5, samples=10)
    assert got.item() == pytest.approx(brute(one_hot_features(features[rows], chosen[rows], 5)), rel=1e-12)
    every = st.routed_penalty(torch.tensor(features), torch.tensor(chosen), 5, samples=50)
    assert every.item() == pytest.approx(brute(one_hot_features(features, chosen, 5)), rel=1e-12)


def nan(shape):
    return torch.full(shape, float("nan"))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: st.sphere_penalty(torch.ones(3)), r"phi has shape \(3,\), wanted \[samples, features\]"),
        (lambda: st.sphere_penalty(torch.ones(0, 3)), r"phi is empty, its shape is \(0, 3\)"),
        (lambda: st.sphere_penalty(nan((2, 2))), "phi holds 4 NaN or infinite numbers of 4"),
        (lambda: st.sphere_penalty(torch.ones(2, 2, dtype=torch.int64)), "phi holds torch.int64, wanted real numbers"),
        (
            lambda: st.routed_penalty(torch.ones(2, 1, 3), torch.tensor([[0], [4]]), 4),
            "experts holds numbers from 0 to 4, wanted 0 to 3",
        ),
        (
            lambda: st.routed_penalty(torch.ones(2, 1, 3), torch.tensor([[0], [-1]]), 4),
            "experts holds numbers from -1 to 0, wanted 0 to 3",
        ),
        (
            lambda: st.routed_penalty(torch.ones(2, 1, 3), torch.ones(2, 1), 4),
            "experts holds torch.float32, wanted integers: which experts were chosen",
        ),
        (
            lambda: st.routed_penalty(torch.ones(2, 1, 3), torch.zeros(2, 2, dtype=torch.int64), 4),
            r"experts has shape \(2, 2\), wanted \(2, 1\), the first two axes of features",
        ),
        (
            lambda: st.routed_penalty(torch.ones(2, 3, 3), torch.zeros(2, 3, dtype=torch.int64), 2),
            "features have 3 chosen experts per sample and num_experts is 2",
        ),
        (
            lambda: st.routed_penalty(torch.ones(2, 1, 3), torch.zeros(2, 1, dtype=torch.int64, device="meta"), 4),
            "experts is on meta and features on cpu, wanted one device",
        ),
        (
            lambda: st.routed_penalty(torch.ones(2, 1, 3), torch.zeros(2, 1, dtype=int, device="meta"), 4, samples=1),
            "experts is on meta and features on cpu, wanted one device",
        ),
        (
            lambda: st.routed_penalty(torch.ones(2, 1, 3), torch.zeros(2, 1, dtype=torch.int64), 4, samples=0),
            "samples=0; wanted at least 1",
        ),
    ],
)
def test_bad_input_is_told_in_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
