"""sphere.torch's penalty beside the JAX functions, brute force and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matrices import brute, one_hot_features

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'sphere-rl[torch]'")
torch.set_num_threads(1)  # threads that wait for each other on a busy machine take forty times as long

import sphere.penalty as jax_penalty
import sphere.torch as st
from sphere.torch import blocks, penalty

CLOSE = {"float64": 1e-10, "float32": 1e-5}


def random_mixture(rng, n, k, width, experts, *, skew=0.0):
    """Features and chosen experts; `skew` 1: expert 0 is in every row."""
    chosen = np.stack([rng.permutation(experts)[:k] for _ in range(n)])
    for row in chosen[rng.random(n) < skew]:
        if 0 not in row:
            row[0] = 0
    return rng.normal(size=(n, k, width)), chosen


def both(function, jax_function, value, dtype, subtracted):
    """How far values and gradients are apart: relative to the value plus what is subtracted in it, which float32
    rounds, and to the largest entry of JAX's gradient."""
    tensor = torch.tensor(value, dtype=getattr(torch, dtype), requires_grad=True)
    got = function(tensor)
    got.backward()
    want, slope = jax.value_and_grad(jax_function)(jnp.asarray(value, dtype))
    error = abs(got.item() - float(want)) / (abs(float(want)) + subtracted)
    size = float(np.abs(slope).max()) or 1.0
    return error, np.abs(tensor.grad.numpy() - np.asarray(slope)).max() / size


def subtracted(form, features, size):
    """tr(A)^2 / m or 1."""
    return (np.sum(features**2) / len(features)) ** 2 / size if form == "anisotropy" else 1.0


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("shape", [(2, 3), (5, 9), (9, 5), (64, 64), (300, 7), (7, 300)])
@pytest.mark.parametrize("form", ["anisotropy", "scale_free"])
def test_dense_penalties_equal_jax(x64, shape, dtype, form):
    phi = np.random.default_rng(sum(shape)).normal(size=shape)
    mine, theirs = getattr(st, form), getattr(jax_penalty, form)
    close = subtracted(form, phi, shape[1])
    value, slope = both(lambda x: mine(st.gram(x)), lambda x: theirs(jax_penalty.gram(x)), phi, dtype, close)
    assert max(value, slope) < CLOSE[dtype]


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize(
    ("n", "k", "width", "experts"), [(2, 1, 3, 2), (40, 2, 6, 10), (33, 8, 5, 8), (400, 2, 3, 4), (64, 1, 16, 128)]
)
@pytest.mark.parametrize("form", ["anisotropy", "scale_free"])
def test_routed_penalties_equal_jax(x64, n, k, width, experts, dtype, form):
    features, chosen = random_mixture(np.random.default_rng(n), n, k, width, experts)
    mine, theirs = getattr(st, form), getattr(jax_penalty, form)
    errors = both(
        lambda x: mine(st.routed_gram(x, torch.tensor(chosen), experts)),
        lambda x: theirs(jax_penalty.routed_gram(x, jnp.asarray(chosen), experts)),
        features,
        dtype,
        subtracted(form, features, experts * width),
    )
    assert max(errors) < CLOSE[dtype]


@pytest.mark.parametrize("case", ["huge", "tiny", "one row", "collapsed", "orthonormal", "one expert", "zeros"])
def test_adversarial_features_equal_brute_force(case):
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
    got = st.routed_penalty(torch.tensor(features), torch.tensor(chosen), 6).item()
    scale = np.sum((one_hot_features(features, chosen, 6) ** 2).sum() / len(features)) ** 2
    assert abs(got - want) <= 1e-12 * scale
    if case in ("orthonormal", "zeros"):
        assert abs(got) < 1e-15


@pytest.mark.parametrize(
    ("n", "k", "width", "experts", "skew", "entries"),
    [
        (1, 1, 2, 1, 0, 8),
        (50, 3, 5, 8, 0, 500),
        (60, 2, 3, 40, 1.0, 700),
        (33, 2, 4, 20, 0.5, 1),
        (31, 4, 2, 4, 0, 10**6),
    ],
)
def test_blocks_equal_the_whole_matrix(n, k, width, experts, skew, entries):
    """In blocks of any size, with loads of any kind."""
    features, chosen = random_mixture(np.random.default_rng(n), n, k, width, experts, skew=skew)
    phi = one_hot_features(features, chosen, experts)
    tensor = torch.tensor(features, requires_grad=True)
    got = blocks.routed_square(tensor, torch.tensor(chosen), experts, entries)
    got.backward()
    assert got.item() == pytest.approx(np.sum((phi @ phi.T) ** 2), rel=1e-12)
    slope = (4 * phi @ phi.T @ phi).reshape(n, experts, width)  # d ||phi phi^T||^2 / d phi
    np.testing.assert_allclose(tensor.grad, slope[np.arange(n)[:, None], chosen], rtol=1e-10, atol=1e-12)


def test_an_expert_named_twice_in_a_row_counts_with_the_sum():
    rng = np.random.default_rng(3)
    features, chosen = rng.normal(size=(12, 3, 4)), rng.integers(0, 3, size=(12, 3))
    want = brute(one_hot_features(features, chosen, 3))
    for small in (penalty.SMALL, 0):
        square = penalty._small if small else lambda f, e: blocks.routed_square(f, e, 3)
        phi = one_hot_features(features, chosen, 3)
        assert square(torch.tensor(features), torch.tensor(chosen)).item() == pytest.approx(np.sum((phi @ phi.T) ** 2))
    assert st.routed_penalty(torch.tensor(features), torch.tensor(chosen), 3).item() == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("small", [True, False])
def test_gradcheck(monkeypatch, small):
    if not small:
        monkeypatch.setattr(penalty, "SMALL", 0)
    features, chosen = random_mixture(np.random.default_rng(5), 7, 2, 3, 5)
    tensor, chosen = torch.tensor(features, requires_grad=True), torch.tensor(chosen)
    for form in (st.anisotropy, st.scale_free):
        assert torch.autograd.gradcheck(lambda f, form=form: form(st.routed_gram(f, chosen, 5)), tensor)
    phi = torch.tensor(np.random.default_rng(6).normal(size=(6, 4)), requires_grad=True)
    assert torch.autograd.gradcheck(st.sphere_penalty, phi)
    assert torch.autograd.gradgradcheck(st.sphere_penalty, phi)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("small", [True, False])
def test_half_precision_is_float32_rounded(monkeypatch, dtype, small):
    """Also under autocast, and where squares vanish in half precision."""
    if not small:
        monkeypatch.setattr(penalty, "SMALL", 0)
    features, chosen = random_mixture(np.random.default_rng(7), 30, 2, 8, 6)
    half = torch.tensor(3e-4 * features, dtype=dtype, requires_grad=True)
    single = half.detach().float().requires_grad_()
    chosen = torch.tensor(chosen)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = st.routed_penalty(half, chosen, 6)
    want = st.routed_penalty(single, chosen, 6)
    assert got.dtype == torch.float32
    assert got.item() == want.item() > 0
    (1e9 * got).backward()
    (1e9 * want).backward()
    assert torch.equal(half.grad, single.grad.to(dtype))


def test_memory_is_linear_in_tokens():
    """Twice the rows: about twice what forward and backward pass hold, where all products would be four times as
    much."""

    def held(n):
        features = torch.zeros(n, 2, 8, requires_grad=True)
        chosen = torch.arange(2 * n).reshape(n, 2) % 16
        sizes = []

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                found = function(*args, **(kwargs or {}))
                sizes.append(found.numel() if isinstance(found, torch.Tensor) else 0)
                return found

        with Watch():
            st.routed_penalty(features, chosen, 16).backward()
        return max(sizes)

    assert held(8192) <= max(2 * held(4096), 2 * blocks.ENTRIES)
    assert held(8192) < (2 * 8192) ** 2 / 16


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
            lambda: st.routed_penalty(torch.ones(2, 1, 3), torch.zeros(2, 1, dtype=torch.int64), 4, samples=0),
            "samples=0; wanted at least 1",
        ),
    ],
)
def test_bad_input_is_told_in_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
