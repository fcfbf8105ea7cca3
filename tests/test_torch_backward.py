"""penalised_backward beside JAX's penalised_value_and_grad, closed forms, GradScaler, accumulation and clipping."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'sphere-rl[torch]'")
torch.set_num_threads(1)  # threads that wait for each other on a busy machine take forty times as long

import sphere
import sphere.torch as st
from sphere.torch import coefficient as strengths


@pytest.fixture(autouse=True)
def fresh_warning(monkeypatch):
    monkeypatch.setattr(strengths, "_warned", False)


def problem(dtype=torch.float64, n=9, scale=1.0, device="cpu"):
    """Parameters, inputs and a function that gives (loss, penalty); the hidden features are penalised."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(4, 6)), "v": rng.normal(size=6)}
    x = torch.tensor(rng.normal(size=(n, 4)), dtype=dtype, device=device)
    params = {k: torch.tensor(array, dtype=dtype, device=device, requires_grad=True) for k, array in arrays.items()}

    def losses(params, x):
        hidden = torch.tanh(x @ params["w"])
        return (hidden @ params["v"]).mean(), scale * st.sphere_penalty(hidden)

    return arrays, params, x, losses


def grads(params):
    return {name: p.grad.clone() for name, p in params.items()}


def clear(params):
    for p in params.values():
        p.grad = None


def jax_result(arrays, x, dtype, mode, rho, floor, scale):
    def losses(params, x):
        hidden = jnp.tanh(x @ params["w"])
        return jnp.mean(hidden @ params["v"]), scale * sphere.sphere_penalty(hidden), None

    arrays = {name: jnp.asarray(array, dtype) for name, array in arrays.items()}
    felt = mode == "gradient-norm"
    function = sphere.penalised_value_and_grad(losses, mode, floor=floor if felt else None, felt=felt)
    return jax.jit(function)(arrays, rho, jnp.asarray(x.cpu().numpy(), dtype))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("rho", [0.3, -0.2])
@pytest.mark.parametrize("scale", [1.0, 1e-9])
@pytest.mark.parametrize(
    ("mode", "floor"), [("gradient-norm", None), ("gradient-norm", 1e-8), ("loss-ratio", None), ("fixed", None)]
)
def test_gradients_and_coefficients_equal_jax(x64, mode, floor, rho, scale, dtype, device):
    arrays, params, x, losses = problem(getattr(torch, dtype), scale=scale, device=device)
    loss, penalty = losses(params, x)
    close = 1e-10 if dtype == "float64" else 1e-5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = st.penalised_backward(loss, penalty, params.values(), rho, mode, **({"floor": floor} if floor else {}))
    want, slopes = jax_result(arrays, x, dtype, mode, rho, floor, scale)
    np.testing.assert_allclose([float(value) for value in got[:3]], [*want[:3]], rtol=close)
    if mode == "gradient-norm":
        np.testing.assert_allclose(float(got.felt), want.felt, rtol=close)
    else:
        assert torch.isnan(got.felt)
    for name, slope in slopes.items():
        np.testing.assert_allclose(params[name].grad.cpu(), slope, rtol=close, atol=close * float(jnp.abs(slope).max()))


def test_what_was_added_is_rho_times_as_long_as_the_task():
    _, params, x, losses = problem()
    losses(params, x)[0].backward()
    task = grads(params)
    clear(params)
    result = st.penalised_backward(*losses(params, x), params.values(), 0.25, floor=1e-8)
    added = torch.cat([(params[name].grad - task[name]).reshape(-1) for name in params]).norm()
    length = torch.cat([g.reshape(-1) for g in task.values()]).norm()
    assert float(added / length) == pytest.approx(0.25, rel=1e-10)
    assert float(result.felt) == pytest.approx(0.25, rel=1e-10)


@pytest.mark.parametrize("mode", ["gradient-norm", "loss-ratio", "fixed"])
def test_rho_zero_gives_the_bits_of_backward(mode, device):
    _, params, x, losses = problem(torch.float32, device=device)
    losses(params, x)[0].backward()
    want = grads(params)
    clear(params)
    result = st.penalised_backward(*losses(params, x), params.values(), 0, mode)
    assert all(torch.equal(params[name].grad, want[name]) for name in params)
    assert (float(result.coefficient), float(result.felt)) == (0, 0)


def test_terms_have_a_coefficient_each():
    _, params, x, losses = problem()
    loss, first = losses(params, x)
    second = 1e3 * (x @ params["w"]).cos().square().mean()
    slopes = [
        torch.autograd.grad(t, list(params.values()), retain_graph=True, allow_unused=True) for t in (first, second)
    ]
    task = torch.autograd.grad(loss, list(params.values()), retain_graph=True)
    result = st.penalised_backward(loss, (first, second), params.values(), (0.3, -0.1), floor=1e-8)
    want = [0.3 * strengths.length(task) / strengths.length(slopes[0]), -0.1 * strengths.length(task)]
    want[1] = want[1] / strengths.length(slopes[1])
    np.testing.assert_allclose(torch.stack(result.coefficient), torch.stack(want), rtol=1e-10)
    np.testing.assert_allclose(torch.stack(result.felt), [0.3, 0.1], rtol=1e-10)
    for i, p in enumerate(params.values()):
        terms = [task[i], *(w * s[i] for w, s in zip(want, slopes, strict=True) if s[i] is not None)]
        np.testing.assert_allclose(p.grad, sum(terms), rtol=1e-10)


@pytest.mark.parametrize("mode", ["gradient-norm", "fixed"])
def test_accumulation_adds_call_after_call_and_equals_one_batch_of_repeated_samples(mode):
    _, params, x, losses = problem()
    st.penalised_backward(*losses(params, torch.cat([x, x])), params.values(), 0.2, mode, **floor(mode))
    want = grads(params)
    clear(params)
    for _ in range(2):  # A, loss and both gradients of the halves are those of the whole
        loss, penalty = losses(params, x)
        st.penalised_backward(loss / 2, penalty / 2, params.values(), 0.2, mode, **floor(mode))
    for name in params:
        np.testing.assert_allclose(params[name].grad, want[name], rtol=1e-10)


def floor(mode):
    return {"floor": 1e-8} if mode == "gradient-norm" else {}


def test_accumulation_of_different_batches_is_the_sum_of_single_calls():
    _, params, x, losses = problem(n=12)
    total = {name: torch.zeros_like(p) for name, p in params.items()}
    for part in x.split(4):
        clear(params)
        st.penalised_backward(*losses(params, part), params.values(), 0.2)
        total = {name: total[name] + params[name].grad for name in params}
    clear(params)
    for part in x.split(4):
        st.penalised_backward(*losses(params, part), params.values(), 0.2)
    for name in params:
        np.testing.assert_allclose(params[name].grad, total[name], rtol=1e-12)


@pytest.mark.parametrize("mode", ["gradient-norm", "loss-ratio", "fixed"])
def test_grad_scaler_and_clipping_give_the_unscaled_step(mode, device):
    _, params, x, losses = problem(torch.float32, device=device)
    optimiser = torch.optim.SGD(params.values(), lr=0.1)
    results = []
    for scaler in (None, torch.amp.GradScaler(device, init_scale=2.0**12)):
        before = {name: p.detach().clone() for name, p in params.items()}
        clear(params)
        results.append(st.penalised_backward(*losses(params, x), params.values(), 0.2, mode, scaler=scaler))
        if scaler is not None:
            scaler.unscale_(optimiser)
        norm = torch.nn.utils.clip_grad_norm_(params.values(), 0.05)
        assert norm > 0.05
        optimiser.step() if scaler is None else scaler.step(optimiser)
        results[-1] = (float(results[-1].coefficient), {name: p.detach().cpu().clone() for name, p in params.items()})
        with torch.no_grad():
            for name, p in params.items():
                p.copy_(before[name])
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-6)
    for name in params:
        np.testing.assert_allclose(results[0][1][name], results[1][1][name], rtol=1e-6)


def test_a_scaled_gradient_that_overflows_is_left_to_the_scaler():
    """It skips the step and lowers its scale, as without the penalty."""
    _, params, x, losses = problem(torch.float32)
    optimiser, scaler = torch.optim.SGD(params.values(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1e38)
    before = {name: p.detach().clone() for name, p in params.items()}
    loss, penalty = losses(params, x)
    st.penalised_backward(1e3 * loss, penalty, params.values(), 0.2, scaler=scaler)
    scaler.step(optimiser)
    scaler.update()
    assert scaler.get_scale() < 1e38
    assert all(torch.equal(p, before[name]) for name, p in params.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_have_float32_coefficients(dtype, device):
    _, params, x, losses = problem(dtype, device=device)
    single = {name: p.detach().float().requires_grad_() for name, p in params.items()}
    got = st.penalised_backward(*losses(params, x), params.values(), 0.1)
    want = st.penalised_backward(*losses(single, x.float()), single.values(), 0.1)
    assert float(got.coefficient) == pytest.approx(float(want.coefficient), rel=0.02)
    assert all(p.grad.dtype == dtype for p in params.values())


def test_other_parameters_of_the_loss_get_their_gradient():
    """One loss for actor and critic: lambda is the actor's."""
    _, params, x, losses = problem()
    critic = torch.nn.Linear(4, 1).double()
    loss, penalty = losses(params, x)
    st.penalised_backward(loss + critic(x).square().mean(), penalty, params.values(), 0.2)
    got = grads(params)
    clear(params)
    st.penalised_backward(*losses(params, x), params.values(), 0.2)
    assert all(torch.equal(got[name], params[name].grad) for name in params)
    want = torch.autograd.grad(critic(x).square().mean(), critic.weight)[0]
    assert torch.equal(critic.weight.grad, want)


def test_a_parameter_that_neither_reaches_is_left_alone():
    """An expert without a token, a frozen layer."""
    _, params, x, losses = problem()
    idle, frozen = torch.ones(3, requires_grad=True), torch.ones(3)
    st.penalised_backward(*losses(params, x), [*params.values(), idle, frozen], 0.2)
    assert idle.grad is None
    assert frozen.grad is None


def test_a_penalty_that_is_not_felt_as_rho_says_is_warned_of_once():
    _, params, x, losses = problem(scale=1e-9)
    with pytest.warns(UserWarning, match=r"rho is 0.1 and the penalty is felt as .*pass floor=1e-12"):
        result = st.penalised_backward(*losses(params, x), params.values(), 0.1)
    assert 0 < float(result.felt) < 1e-3
    st.penalised_backward(*losses(params, x), params.values(), 0.1)  # a second warning would be an error here
    result = st.penalised_backward(*losses(params, x), params.values(), 0.1, floor=1e-14)
    assert float(result.felt) == pytest.approx(0.1)


def bad(case):
    _, params, x, losses = problem()
    loss, penalty = losses(params, x)
    w = params["w"]
    return {
        "none": (loss, penalty, [], 0.1),
        "frozen": (loss, penalty, [torch.ones(2)], 0.1),
        "result": (loss, penalty, [w * 2], 0.1),
        "twice": (loss, penalty, [w, w], 0.1),
        "detached": (loss, penalty.detach(), [w], 0.1),
        "loss detached": (loss.detach(), penalty, [w], 0.1),
        "vector": (torch.stack([loss, loss]), penalty, [w], 0.1),
        "unreached": (loss, penalty, [torch.ones(2, requires_grad=True)], 0.1),
        "loss unreached": (torch.ones(2, requires_grad=True).sum(), penalty, [w], 0.1),
        "nan loss": (loss * float("nan"), penalty, [w], 0.1),
        "inf penalty": (loss, penalty / 0, [w], 0.1),
        "nan gradient": (loss + (w * 0).sum().sqrt(), penalty, list(params.values()), 0.1),
        "nan rho": (loss, penalty, [w], float("nan")),
        "rhos": (loss, penalty, [w], (0.1, 0.2)),
        "no terms": (loss, (), [w], 0.1),
        "device": (loss, torch.ones((), device="meta", requires_grad=True), [w], 0.1),
    }[case], params


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("none", "params holds no parameters that require gradients"),
        ("frozen", "params holds no parameters that require gradients"),
        ("result", "params holds tensors that are results of others"),
        ("twice", "params holds a parameter twice"),
        ("detached", "penalty has no gradient; were the features or outputs detached"),
        ("loss detached", "loss has no gradient"),
        ("vector", r"loss has shape \(2,\), wanted one number"),
        ("unreached", "the penalty reaches none of the parameters"),
        ("loss unreached", "the loss reaches none of the parameters"),
        ("nan loss", "loss is nan, wanted a finite number; .grad was left as it was"),
        ("inf penalty", "penalty is inf, wanted a finite number"),
        ("nan gradient", "the gradient of the loss holds NaN or infinite numbers; .grad was left as it was"),
        ("nan rho", "rho is nan, wanted a finite number"),
        ("rhos", "2 values of rho for a penalty of 1 terms"),
        ("no terms", "the penalty has no terms"),
        ("device", "penalty is on meta and loss on cpu, wanted one device"),
    ],
)
def test_bad_input_leaves_gradients_as_they_were(case, sentence):
    arguments, params = bad(case)
    for p in params.values():
        p.grad = torch.full_like(p, 7)
    with pytest.raises(ValueError, match=sentence):
        st.penalised_backward(*arguments)
    assert all(torch.equal(p.grad, torch.full_like(p, 7)) for p in params.values())


def test_unknown_settings_are_refused():
    _, params, x, losses = problem()
    with pytest.raises(ValueError, match="coefficient 'norm' is not known; use gradient-norm, loss-ratio or fixed"):
        st.penalised_backward(*losses(params, x), params.values(), 0.1, "norm")
    with pytest.raises(ValueError, match="floor is 0, wanted a small number above 0"):
        st.penalised_backward(*losses(params, x), params.values(), 0.1, floor=0)
    with pytest.raises(TypeError):
        st.penalised_backward(*losses(params, x), params["w"], 0.1)
