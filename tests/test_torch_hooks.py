"""attach: the gradients of penalised_backward in loops that only call forward, zero_grad, backward, clip and step."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'sphere-rl[torch]'")
torch.set_num_threads(1)  # threads that wait for each other on a busy machine take forty times as long

import sphere.torch as st
from sphere.torch import coefficient as strengths


@pytest.fixture(autouse=True)
def fresh_warning(monkeypatch):
    monkeypatch.setattr(strengths, "_warned", False)


def problem(seed=0, device="cpu"):
    torch.manual_seed(seed)
    net = st.TopK(5, 3, experts=4, top_k=2, width=8, depth=2).to(device, torch.float64)
    return net, *(torch.randn(20, width).to(device, torch.float64) for width in (5, 3))


def wanted(net, x, y, rho, **settings):
    twin = copy.deepcopy(net)
    loss = (twin(x) - y).square().mean()
    result = st.penalised_backward(loss, st.routed_penalty(*twin.mixture), twin.parameters(), rho, **settings)
    return [p.grad for p in twin.parameters()], result


def same(net, want, rtol=1e-12):
    for p, g in zip(net.parameters(), want, strict=True):
        np.testing.assert_allclose(p.grad.cpu(), g.cpu(), rtol=rtol, atol=1e-15)


@pytest.mark.parametrize("order", ["zero first", "zero between"])
def test_a_hooked_module_has_the_gradients_of_penalised_backward(order, device):
    """SB3 and rsl_rl clear gradients between forward and backward pass."""
    net, x, y = problem(device=device)
    want, result = wanted(net, x, y, 0.2)
    attached = st.attach(net, 0.2)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    if order == "zero first":
        optimiser.zero_grad()
    loss = (net(x) - y).square().mean()
    if order == "zero between":
        optimiser.zero_grad(set_to_none=False)
    loss.backward()
    same(net, want)
    assert attached.felt == pytest.approx(float(result.felt), rel=1e-12)
    assert attached.coefficient == pytest.approx(float(result.coefficient), rel=1e-12)
    assert attached.penalty == pytest.approx(float(result.penalty), rel=1e-12)


def test_outputs_are_unchanged_and_rollouts_silent():
    net, x, _ = problem()
    plain = net(x)
    calls = []
    attached = st.attach(net, 0.2, lambda *_: calls.append(1) or st.routed_penalty(*net.mixture))
    with torch.no_grad():
        assert torch.equal(net(x), plain)
    assert not calls
    assert torch.equal(net(x), plain)
    assert len(calls) == 1
    assert all(p.grad is None for p in net.parameters())
    assert np.isnan(attached.penalty)


def test_removed_it_leaves_the_plain_gradient():
    net, x, y = problem()
    want = torch.autograd.grad((net(x) - y).square().mean(), list(net.parameters()))
    with st.attach(net, 0.2):
        made_before = (net(x) - y).square().mean()
    made_before.backward()
    same(net, want)
    net.zero_grad()
    (net(x) - y).square().mean().backward()
    same(net, want)


def test_gradients_accumulate(device):
    net, x, y = problem(device=device)
    first, _ = wanted(net, x[:10], y[:10], 0.2)
    second, _ = wanted(net, x[10:], y[10:], 0.2)
    st.attach(net, 0.2)
    for part in (slice(0, 10), slice(10, 20)):
        (net(x[part]) - y[part]).square().mean().backward()
    same(net, [a + b for a, b in zip(first, second, strict=True)], rtol=1e-9)


def test_two_calls_in_one_loss_have_one_coefficient_for_the_sum(device):
    net, x, y = problem(device=device)
    twin = copy.deepcopy(net)
    parts, terms = [], []
    for rows in (slice(0, 10), slice(10, 20)):
        parts.append((twin(x[rows]) - y[rows]).square().mean())
        terms.append(st.routed_penalty(*twin.mixture))
    st.penalised_backward(sum(parts), sum(terms), twin.parameters(), 0.2)
    st.attach(net, 0.2)
    sum((net(x[rows]) - y[rows]).square().mean() for rows in (slice(0, 10), slice(10, 20))).backward()
    same(net, [p.grad for p in twin.parameters()])


def test_the_head_above_the_module_keeps_its_own_gradient():
    """Lambda is by the parameters of the module that is attached."""
    net, x, _ = problem()
    head = torch.nn.Linear(3, 1).double()
    want = torch.autograd.grad(head(net(x)).square().mean(), [head.weight, *net.parameters()])
    attached = st.attach(net, 0.2, floor=1e-8)
    head(net(x)).square().mean().backward()
    assert torch.equal(head.weight.grad, want[0])
    change = [p.grad - g for p, g in zip(net.parameters(), want[1:], strict=True)]
    assert float(strengths.length(change) / strengths.length(want[1:])) == pytest.approx(0.2, rel=1e-9)
    assert attached.felt == pytest.approx(0.2)


def test_parameters_are_penalised_where_the_loss_is_made():
    net, x, y = problem()
    want, _ = wanted(net, x, y, 0.2)
    attached = st.attach(net.parameters(), 0.2)
    loss = (net(x) - y).square().mean()
    attached(loss, st.routed_penalty(*net.mixture)).backward()
    same(net, want)


def test_a_fixed_coefficient_is_that_of_the_sum(device):
    net, x, y = problem(device=device)
    loss = (net(x) - y).square().mean()
    want = torch.autograd.grad(loss + 0.3 * st.routed_penalty(*net.mixture), list(net.parameters()))
    st.attach(net, 0.3, coefficient="fixed")
    (net(x) - y).square().mean().backward()
    same(net, want)


def test_a_loss_scale_is_known_from_the_scaler():
    net, x, y = problem()
    want, result = wanted(net, x, y, 0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    attached = st.attach(net, 0.2, scaler=scaler)
    scaler.scale((net(x) - y).square().mean()).backward()
    same(net, [1024 * g for g in want])
    assert attached.coefficient == pytest.approx(float(result.coefficient), rel=1e-12)


def test_training_raises_the_rank_of_the_features():
    """Mean over seeds, on states that were not trained on, at rho 0.5; on this toy problem 0.1 changes nothing."""
    held_out = torch.randn(512, 5, generator=torch.Generator().manual_seed(999)).double()

    def rank(rho, seed):
        net, x, y = problem(seed)
        attached = st.attach(net, rho, floor=1e-12)
        optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(60):
            loss = (net(x) - y).square().mean()
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimiser.step()
        attached.remove()
        with torch.no_grad():
            net(held_out)
        return st.routing_health(*net.mixture).feature_rank

    assert np.mean([rank(0.5, seed) for seed in range(3)]) > np.mean([rank(0.0, seed) for seed in range(3)])


def test_bad_input_is_told_in_a_sentence():
    net, x, y = problem()
    with pytest.raises(ValueError, match="Linear has no mixture: pass penalty=function"):
        st.attach(torch.nn.Linear(2, 2), 0.1)
    with pytest.raises(ValueError, match="coefficient 'loss-ratio' is not known; use gradient-norm or fixed"):
        st.attach(net, 0.1, coefficient="loss-ratio")
    with pytest.raises(ValueError, match="params holds no parameters that require gradients"):
        st.attach([], 0.1)
    attached = st.attach(net.parameters(), 0.1)
    with pytest.raises(ValueError, match="the penalty has no gradient"):
        attached((net(x) - y).square().mean(), torch.ones(()))
    with st.attach(net, 0.1), pytest.raises(ValueError, match="NaN or infinite numbers"):
        net(x * float("nan"))


def test_a_module_can_be_copied_after_a_call():
    net, x, _ = problem()
    net(x)
    twin = copy.deepcopy(net)
    assert twin.mixture is None
    assert torch.equal(twin(x), net(x))
