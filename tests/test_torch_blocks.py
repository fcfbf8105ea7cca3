"""The penalty block by block: any loads, half precision, and how much memory and how many programs it takes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'sphere-rl[torch]'")
torch.set_num_threads(1)  # threads that wait for each other on a busy machine take forty times as long

from matrices import one_hot_features
from torch_mixtures import random_mixture

import sphere.torch as st
from sphere.torch import blockwise, penalty


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
def test_blocks_equal_the_whole_matrix(n, k, width, experts, skew, entries, device):
    """In blocks of any size, with loads of any kind."""
    features, chosen = random_mixture(np.random.default_rng(n), n, k, width, experts, skew=skew)
    phi = one_hot_features(features, chosen, experts)
    tensor = torch.tensor(features, device=device, requires_grad=True)
    trace, got = blockwise.routed_moments(tensor, torch.tensor(chosen, device=device), experts, entries)
    got.backward()
    assert trace.item() == pytest.approx(np.sum(phi**2), rel=1e-12)
    assert got.item() == pytest.approx(np.sum((phi @ phi.T) ** 2), rel=1e-12)
    slope = (4 * phi @ phi.T @ phi).reshape(n, experts, width)  # d ||phi phi^T||^2 / d phi
    np.testing.assert_allclose(tensor.grad.cpu(), slope[np.arange(n)[:, None], chosen], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("small", [True, False])
def test_half_precision_is_float32_rounded(monkeypatch, dtype, small, device):
    """Also under autocast, and where squares vanish in half precision."""
    if not small:
        monkeypatch.setattr(penalty, "SMALL", 0)
    features, chosen = random_mixture(np.random.default_rng(7), 30, 2, 8, 6)
    half = torch.tensor(3e-4 * features, dtype=dtype, device=device, requires_grad=True)
    single = half.detach().float().requires_grad_()
    chosen = torch.tensor(chosen, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        got = st.routed_penalty(half, chosen, 6)
    want = st.routed_penalty(single, chosen, 6)
    assert got.dtype == torch.float32
    (1e9 * got).backward()
    (1e9 * want).backward()
    if device == "cpu":
        assert got.item() == want.item() > 0
        assert torch.equal(half.grad, single.grad.to(dtype))
    else:  # other sums
        assert got.item() == pytest.approx(want.item(), rel=1e-5)
        rounding_apart(half.grad, single.grad)


def rounding_apart(half, single):
    """No farther from float32 than its rounding, but for sums in another order."""
    near = (single.to(half.dtype).float() - single).abs() + 1e-5 * single.abs().max()
    assert ((half.float() - single).abs() <= near).all()


@pytest.mark.parametrize("entries", [2**22, 500])
def test_products_of_bfloat16_numbers_lose_nothing(monkeypatch, entries):
    """What a GPU does, with its product taken on the CPU: weights in two parts, rows padded to sixteen."""
    features, chosen = random_mixture(np.random.default_rng(9), 40, 2, 8, 6, skew=0.5)
    half = torch.tensor(features, dtype=torch.bfloat16, requires_grad=True)
    single = half.detach().float().requires_grad_()
    want = blockwise.routed_moments(single, torch.tensor(chosen), 6, entries)
    monkeypatch.setattr(blockwise, "stays_half", lambda _: True)
    monkeypatch.setattr(blockwise, "product", lambda a, b: a.float() @ b.float())
    got = blockwise.routed_moments(half, torch.tensor(chosen), 6, entries)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.item() == pytest.approx(theirs.item(), rel=1e-6)
    sum(got).backward()
    sum(want).backward()
    rounding_apart(half.grad, single.grad)


def test_thousands_of_tokens_of_bfloat16_equal_float64(device):
    """In blocks, as they are trained on; on a GPU by its own products of bfloat16."""
    n, width, experts = (4096, 256, 8) if device == "cuda" else (600, 16, 8)
    features, chosen = random_mixture(np.random.default_rng(11), n, 2, width, experts, skew=0.3)
    half = torch.tensor(features, dtype=torch.bfloat16, device=device, requires_grad=True)
    double = half.detach().double().requires_grad_()
    chosen = torch.tensor(chosen, device=device)
    got, want = (st.routed_penalty(f, chosen, experts) for f in (half, double))
    assert got.item() == pytest.approx(want.item(), rel=1e-5)
    got.backward()
    want.backward()
    rounding_apart(half.grad, double.grad.float())


def test_few_programs_are_started():
    """Each takes as long on a GPU as a small product, and every number that is read is a wait."""
    started = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            started.extend([] if function.is_view else [function._schema.name])
            return function(*args, **(kwargs or {}))

    features, chosen = random_mixture(np.random.default_rng(10), 700, 2, 4, 128)
    tensor = torch.tensor(features, requires_grad=True)
    with Watch():
        st.routed_penalty(tensor, torch.tensor(chosen), 128).backward()
    assert started.count("aten::_local_scalar_dense") <= 2
    assert len(started) < 80


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

    assert held(8192) <= max(2 * held(4096), 2 * blockwise.ENTRIES)
    assert held(8192) < (2 * 8192) ** 2 / 16
