"""The PyTorch front at the ends of the range: NaN, features of 1e18, outputs of 1e-10."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sphere.torch as st
from sphere.torch import backward, coefficient, penalty, spectrum
from sphere.torch import ntk as torch_ntk


@pytest.mark.parametrize("scale", [1e15, 1e18, 3e37])
def test_features_whose_penalty_does_not_fit_are_refused(scale, device):
    phi = scale * torch.tensor(np.random.default_rng(0).normal(size=(8, 4)), dtype=torch.float32, device=device)
    chosen = torch.zeros(8, 1, dtype=torch.int64, device=device)
    for call in (lambda: st.sphere_penalty(phi), lambda: st.gram(phi)):
        with pytest.raises(ValueError, match=r"phi is too large: .* \(up to about 1e9 they do in float32\); divide it"):
            call()
    for call in (lambda: st.routed_penalty(phi[:, None], chosen, 3), lambda: st.routed_gram(phi[:, None], chosen, 3)):
        with pytest.raises(ValueError, match="features is too large"):
            call()
    assert torch.isfinite(st.sphere_penalty(phi.double()))  # 1e150 is a number of float64


def test_one_large_number_among_zeros_fits(device):
    """More than can be told from the largest number alone."""
    phi = torch.zeros(100, 100, device=device)
    phi[0, 0] = 1e9
    assert st.sphere_penalty(phi).item() == pytest.approx(1e32 * (1 - 1 / 100), rel=1e-5)
    chosen = torch.zeros(100, 1, dtype=torch.int64, device=device)
    assert st.routed_penalty(phi[:, None], chosen, 3).item() == pytest.approx(1e32 * (1 - 1 / 300), rel=1e-5)


@pytest.mark.parametrize("small", [penalty.SMALL, 0])
def test_bad_mixtures_are_noticed_on_every_way(monkeypatch, small, device):
    """Also where counts are read with what is checked, and in rows that are not drawn."""
    monkeypatch.setattr(penalty, "SMALL", small)
    features = torch.ones(6, 2, 9, device=device)
    chosen = torch.tensor([[0, 1]] * 6, device=device)
    for row, column, expert, ends in (
        (0, 0, -1, "-1 to 1"),
        (5, 1, 4, "0 to 4"),
        (3, 1, 2**52 + 3, "0 to 4503599627370499"),
    ):
        wrong = chosen.clone()
        wrong[row, column] = expert
        for samples in (None, 1):
            with pytest.raises(ValueError, match=f"experts holds numbers from {ends}, wanted 0 to 3"):
                st.routed_penalty(features, wrong, 4, samples)
    for bad in (math.nan, math.inf, -math.inf):
        broken = features.clone()
        broken[5, 1, 2] = bad
        for samples in (None, 1):
            with pytest.raises(ValueError, match="features holds 1 NaN or infinite numbers of 108"):
                st.routed_penalty(broken, chosen, 4, samples)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_the_sum_is_rounded_and_not_the_factor(dtype, device):
    rng = np.random.default_rng(4)
    before, added = (torch.tensor(rng.normal(size=500), dtype=dtype, device=device) for _ in range(2))
    params = [torch.zeros_like(before, requires_grad=True) for _ in range(2)]
    params[0].grad = before.clone()  # the other has none yet
    backward.add(params, [added, added], 0.1234567)
    change = 0.1234567 * added.double()
    for w, want in zip(params, (before.double() + change, change), strict=True):
        assert (w.grad != want.to(dtype)).sum() <= 2  # one in twenty with a rounded factor


@pytest.mark.parametrize("scale", [1e18, 1e30])
def test_routing_health_of_features_of_1e18_is_that_of_ordinary_ones(scale, device):
    rng = np.random.default_rng(1)
    features = torch.tensor(rng.normal(size=(20, 2, 40)), dtype=torch.float32, device=device)
    chosen = torch.tensor(np.stack([rng.permutation(4)[:2] for _ in range(20)]), device=device)
    ordinary, large = (st.routing_health(size * features, chosen, 4).numbers() for size in (1.0, scale))
    for name, value in ordinary.items():
        want = value * scale if name == "feature_norm" else value
        assert large[name] == pytest.approx(want, rel=1e-5), name


def linear(scale, device, n=12):
    module = torch.nn.Linear(3, 1).to(device)
    x = torch.tensor(np.random.default_rng(2).normal(size=(n, 3)), dtype=torch.float32, device=device)
    return st.ntk_effective_rank(module, x, "slq", probes=8, forward=lambda m, x: scale * m(x))


@pytest.mark.parametrize("scale", [1e-25, 1e-10, 1e10, 1e18])
def test_slq_does_not_depend_on_the_scale_of_the_outputs(scale, device):
    want, found = linear(1.0, device), linear(scale, device)
    assert found.value == pytest.approx(want.value, rel=1e-4)
    assert found.standard_error == pytest.approx(want.standard_error, rel=1e-3)


def test_slq_of_gradients_that_are_nan_is_nan():
    """The outputs are finite: the slope of a square root at zero is not."""
    module = torch.nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        module.weight.zero_()
    x = torch.ones(5, 3)
    found = st.ntk_effective_rank(module, x, "slq", forward=lambda m, x: m(x).abs().sqrt() * 1.0)
    assert math.isnan(found.value)
    assert all(math.isnan(end) for end in found.interval)
    nothing = torch_ntk.slq(lambda v: 0 * v, torch.ones(4, 6), 3)
    assert nothing == torch_ntk.Estimate(0.0, 0.0, "slq")
    assert nothing.interval == (0, 0)


def test_no_estimate_and_no_interval_is_below_one():
    direction = torch.tensor(np.random.default_rng(3).normal(size=12)).float()
    kernel = (torch.outer(direction, direction) + 0.02 * torch.eye(12)).double()
    for seed in range(20):
        z = torch.randn(4, 12, generator=torch.Generator().manual_seed(seed))
        found = torch_ntk.slq(lambda v: kernel @ v, z, 12)
        assert 1 <= found.interval[0] <= found.value <= found.interval[1]
        assert found.value <= 12


def test_a_length_that_is_nan_has_a_coefficient_that_is_nan():
    for task, length in ((math.nan, 1.0), (1.0, math.nan)):
        for floor in (None, 1e-12):
            assert math.isnan(coefficient.strength(task, length, 0.1, floor))
    assert coefficient.strength(0.0, 0.0, 0.1, 1e-12) == 0


def test_an_entropy_of_nan_is_nan_with_its_gradient():
    values = torch.tensor([1.0, math.nan], requires_grad=True)
    entropy = spectrum.spectral_entropy(values)
    assert torch.isnan(entropy)
    assert torch.isnan(torch.autograd.grad(entropy, values)[0]).any()
