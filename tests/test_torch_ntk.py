"""Effective rank, NTK and routing health of sphere.torch beside the JAX functions, on the same arrays and weights."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'sphere-rl[torch]'")
torch.set_num_threads(1)  # threads that wait for each other on a busy machine take forty times as long

import sphere
import sphere.torch as st
from sphere import nets, ntk, spectrum
from sphere.diagnostics import diagnose
from sphere.torch import health
from sphere.torch import ntk as torch_ntk


def matrices():
    rng = np.random.default_rng(0)
    low = rng.normal(size=(12, 3)) @ rng.normal(size=(3, 9))
    return {
        "random": rng.normal(size=(7, 11)),
        "low rank": low,
        "identity": np.eye(6),
        "one direction": np.outer(np.arange(1, 5), np.ones(8)),
        "graded": np.diag(10.0 ** -np.arange(12)),
        "huge": 1e30 * rng.normal(size=(5, 5)),
        "tiny": 1e-30 * rng.normal(size=(5, 5)),
    }


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", matrices())
def test_effective_rank_equals_jax(x64, name, dtype, device):
    matrix = matrices()[name].astype(dtype)
    close = 1e-10 if dtype == "float64" else 1e-5
    want = sphere.effective_rank(jnp.asarray(matrix))
    assert float(st.effective_rank(torch.tensor(matrix, device=device))) == pytest.approx(float(want), rel=close)
    gram = (matrix / np.abs(matrix).max()) @ (matrix / np.abs(matrix).max()).T
    want = spectrum.effective_rank_spsd(jnp.asarray(gram))
    assert float(st.effective_rank_spsd(torch.tensor(gram, device=device))) == pytest.approx(float(want), rel=close)


def test_effective_rank_of_half_precision_is_that_of_float32(device):
    matrix = torch.randn(9, 6, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16)
    assert float(st.effective_rank(matrix)) == float(st.effective_rank(matrix.float()))


def test_the_gradient_of_effective_rank_equals_jax(x64, device):
    matrix = np.random.default_rng(1).normal(size=(5, 4))
    tensor = torch.tensor(matrix, device=device, requires_grad=True)
    st.effective_rank(tensor).backward()
    want = jax.grad(sphere.effective_rank)(jnp.asarray(matrix))
    np.testing.assert_allclose(tensor.grad.cpu(), want, rtol=1e-9)
    assert torch.autograd.gradcheck(st.effective_rank, tensor)


def test_a_zero_matrix_has_rank_zero(device):
    assert float(st.effective_rank(torch.zeros(3, 3, device=device))) == 0


def twins(dtype, device="cpu", experts=5, top_k=2, width=7, depth=2):
    """The same Top-K mixture in JAX and in PyTorch."""
    config = nets.NetConfig(kind="top-k", experts=experts, top_k=top_k, width=width, depth=depth)
    net = nets.build(config, 6, 3, key=jax.random.key(0))
    twin = st.TopK(6, 3, experts=experts, top_k=top_k, width=width, depth=depth).to(device, getattr(torch, dtype))
    rng = np.random.default_rng(2)  # biases too
    net = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), dtype) if leaf.ndim else leaf, net)
    with torch.no_grad():
        for bank, mlp, lead in ((twin.gate, net.router.gate, True), (twin.experts, net.experts, False)):
            for layer, linear in zip(bank, [*mlp.hidden, mlp.head], strict=True):
                for parameter, array in ((layer.weight, linear.kernel), (layer.bias, linear.bias)):
                    parameter.copy_(torch.tensor(np.array(array)[None] if lead else np.array(array)))
    return net, twin, rng.normal(size=(16, 6)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_mixture_and_its_ntk_equal_jax(x64, dtype, device):
    net, twin, x = twins(dtype, device)
    given = torch.tensor(x, device=device)
    close = 1e-10 if dtype == "float64" else 1e-5
    want = net(jnp.asarray(x))[0]
    np.testing.assert_allclose(twin(given).detach().cpu(), want, rtol=close, atol=close * np.abs(want).max())
    kernel = np.asarray(ntk.gram(net, jnp.asarray(x)))
    got = st.ntk_gram(twin, given).cpu()
    np.testing.assert_allclose(got, kernel, rtol=close, atol=close * kernel.max())
    found = st.ntk_effective_rank(twin, given)
    assert found.value == pytest.approx(float(ntk.effective_rank(net, jnp.asarray(x))), rel=close)
    assert (found.standard_error, found.method) == (0, "exact")


def test_routing_health_equals_the_report_of_the_same_network(x64, device):
    net, twin, x = twins("float64", device)
    want = diagnose(net, jnp.asarray(x))._asdict()
    twin(torch.tensor(x, device=device))
    got = st.routing_health(*twin.mixture)
    for name, value in got.numbers().items():
        assert value == pytest.approx(float(want[name]), rel=1e-9), name
    load = np.bincount(twin.mixture.experts.reshape(-1).cpu().numpy(), minlength=5) / (16 * 2)
    np.testing.assert_allclose(got.expert_load.cpu(), load)
    assert got.numbers("mixture0/").keys() == {f"mixture0/{name}" for name in got._fields if name != "expert_load"}


def test_routing_health_of_choices_alone_and_of_one_expert():
    chosen = torch.tensor([[0], [0], [1], [0]])
    health = st.routing_health(None, chosen, 4)
    p = np.array([0.75, 0.25])
    assert health.routing_entropy == pytest.approx(-np.sum(p * np.log(p)) / math.log(4))
    assert health.active_ratio == 0.5
    assert health.max_violation == 2
    assert math.isnan(health.feature_rank)
    assert health.numbers().keys() == {"routing_entropy", "active_ratio", "max_violation"}
    single = st.routing_health(torch.ones(3, 1, 2), torch.zeros(3, 1, dtype=torch.int64), 1)
    assert (single.routing_entropy, single.active_ratio, single.trace_weight_entropy) == (0, 1, 0)
    assert math.isnan(single.overlap)
    assert single.feature_rank == pytest.approx(1)


def test_feature_rank_of_many_rows_is_that_of_some_of_them(device):
    rng = np.random.default_rng(3)
    features = torch.tensor(rng.normal(size=(40, 2, 3)), device=device)
    chosen = torch.tensor(rng.integers(0, 4, (40, 2)), device=device)
    rows = torch.linspace(0, 39, 10).long()
    want = health.feature_rank(features[rows], chosen[rows], 4, 10)
    assert st.routing_health(features, chosen, 4, samples=10).feature_rank == want


@pytest.mark.parametrize("n", [20, 40, 512])
def test_feature_rank_by_either_gram_is_that_of_phi(n, device):
    """Few rows: sample Gram; many: feature Gram. Both against the eigenvalues of A = phi^T phi / n."""
    rng = np.random.default_rng(n)
    features, chosen = rng.normal(size=(n, 2, 8)), np.stack([rng.permutation(4)[:2] for _ in range(n)])
    phi = np.zeros((n, 4, 8))
    np.put_along_axis(phi, chosen[:, :, None].repeat(8, axis=2), features, axis=1)
    values = np.linalg.svd(phi.reshape(n, -1), compute_uv=False) ** 2
    p = values[values > 0] / values.sum()
    got = st.routing_health(torch.tensor(features, device=device), torch.tensor(chosen, device=device), 4).feature_rank
    assert got == pytest.approx(np.exp(-np.sum(p * np.log(p))), rel=1e-9)


def test_a_spectrum_that_does_not_converge_in_float32_is_taken_in_float64(monkeypatch):
    solve = torch.linalg.eigvalsh

    def fails(matrix):
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("failed to converge")
        return solve(matrix)

    monkeypatch.setattr(torch.linalg, "eigvalsh", fails)
    assert float(st.effective_rank_spsd(torch.eye(5))) == pytest.approx(5)


def test_slq_equals_jax_on_the_same_probes(x64, device):
    net, twin, x = twins("float64", device)
    key = jax.random.key(4)
    trained, rest = jax.tree.flatten(net)

    def function(params, x):
        return jax.tree.unflatten(rest, params)(x)[0]

    want = ntk.slq_effective_rank(function, trained, jnp.asarray(x), key, probes=6, depth=10, distribution="gaussian")
    z = torch.tensor(np.array(jax.random.normal(key, (6, 16))), device=device)
    outputs = torch_ntk._outputs(twin, torch.tensor(x, device=device), None)
    got = torch_ntk.slq(torch_ntk._multiplier(outputs, list(twin.parameters())), z, 10)
    assert got.value == pytest.approx(float(want.value), rel=1e-9)
    assert got.standard_error == pytest.approx(float(want.standard_error), rel=1e-9)


def test_slq_finds_the_exact_value_within_its_error(x64, device):
    _, twin, x = twins("float64", device)
    x = torch.tensor(x, device=device)
    exact = st.ntk_effective_rank(twin, x)
    estimate = st.ntk_effective_rank(twin, x, "slq", probes=64, depth=16)
    assert estimate.method == "slq"
    assert 0 < estimate.standard_error < 0.2 * exact.value
    assert abs(estimate.value - exact.value) < 4 * estimate.standard_error
    assert estimate == st.ntk_effective_rank(twin, x, "slq", probes=64, depth=16)  # a seed, not the clock


def test_auto_takes_the_jacobian_where_it_fits(x64, monkeypatch):
    _, twin, x = twins("float64")
    monkeypatch.setattr(torch_ntk, "EXACT", 100)
    assert st.ntk_effective_rank(twin, torch.tensor(x)).method == "slq"


def test_chosen_parameters_and_outputs():
    """A policy's log standard deviation is left out, and gradients of training stay as they are."""
    model = torch.nn.Linear(3, 2, bias=False).double()
    model.log_std = torch.nn.Parameter(torch.zeros(2).double())
    x = torch.tensor(np.random.default_rng(5).normal(size=(4, 3)))
    with torch.no_grad():  # of the caller
        kernel = st.ntk_gram(model, x, params=[model.weight], forward=lambda m, x: {"mean": m(x)}["mean"])
    np.testing.assert_allclose(kernel, 2 * x @ x.T, rtol=1e-12)  # two outputs, each with the gradient x
    np.testing.assert_allclose(st.ntk_gram(model, x), 2 * x @ x.T, rtol=1e-12)
    assert model.weight.grad is None


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda m, x: st.ntk_effective_rank(m, x, "fast"), "method 'fast' is not known; use auto, exact or slq"),
        (lambda m, x: st.ntk_gram(m, x, params=[]), "no parameters that require gradients"),
        (lambda m, x: st.ntk_gram(m, x, forward=lambda m, x: m(x).detach()), "output has no gradient"),
        (lambda m, x: st.ntk_gram(m, x, forward=lambda m, x: m(x).sum()), r"gives shape \(\), wanted \[n\] or"),
        (lambda m, x: st.ntk_gram(m, x[:0]), r"gives shape \(0, 2\)"),
        (lambda m, x: st.ntk_gram(m, x * float("nan")), "output holds NaN or infinite numbers"),
        (lambda m, x: st.ntk_gram(m, x, params=[torch.ones(2, requires_grad=True)]), "does not depend on any of its"),
        (lambda m, x: st.ntk_effective_rank(m, x, "slq", probes=1), "probes=1: a standard error needs at least 2"),
        (lambda m, x: st.ntk_effective_rank(m, x, "slq", depth=0), "depth=0: Lanczos takes at least 1 step"),
        (lambda m, x: st.effective_rank(x * float("inf")), "matrix holds 12 NaN or infinite numbers of 12"),
        (lambda m, x: st.effective_rank_spsd(x), r"matrix has shape \(4, 3\), wanted a square one"),
        (lambda m, x: st.effective_rank_spsd(-torch.eye(3)), "eigenvalues of matrix reach down to -1"),
        (
            lambda m, x: st.routing_health(None, torch.tensor([[5]]), 4),
            "experts holds numbers from 5 to 5, wanted 0 to 3",
        ),
        (lambda m, x: st.routing_health(None, torch.zeros(0, 1).long(), 4), "with at least one row"),
        (
            lambda m, x: st.routing_health(x[:, None], torch.zeros(4, 1, dtype=int, device="meta"), 4),
            "experts is on meta and features on cpu, wanted one device",
        ),
    ],
)
def test_bad_input_is_told_in_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(torch.nn.Linear(3, 2), torch.ones(4, 3))
    with pytest.raises(TypeError, match="the module gives a dict, wanted a tensor"):
        st.ntk_gram(torch.nn.Linear(3, 2), torch.ones(4, 3), forward=lambda _m, _x: {})
