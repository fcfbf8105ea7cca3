"""Nothing is left on the CPU where the features are on a GPU: seen without one, on the device `meta`."""

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'sphere-rl[torch]'")

import sphere.torch as st
from sphere.torch import blockwise, penalty


class OneDevice(torch.utils._python_dispatch.TorchDispatchMode):
    """Refuses what a GPU would refuse: tensors of several devices, single numbers of the CPU aside."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = torch.utils._pytree.tree_leaves((args, kwargs))
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        devices = {value.device.type for value in tensors if value.ndim or value.device.type == "meta"}
        assert len(devices) < 2 or function._schema.name in ("aten::_to_copy", "aten::copy_"), (function, devices)
        return function(*args, **(kwargs or {}))


@pytest.fixture
def gpu(monkeypatch):
    """Numbers that are read are made up: experts with the same load."""

    def read(tensor):
        if tensor.is_floating_point():
            return [1.0] * len(tensor)
        return [0] * 4 + [2 * edge for edge in range(len(tensor) - 4)]  # what is checked, then where loads begin

    for name, value in (("tolist", read), ("__float__", lambda _: 1.0), ("__bool__", lambda _: True)):
        monkeypatch.setattr(torch.Tensor, name, value)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # meta has none
    with OneDevice():
        yield "meta"


def mixture(gpu, n=16, experts=4, width=8, dtype=torch.float32):
    features = torch.empty(n, 2, width, device=gpu, dtype=dtype, requires_grad=True)
    return features, torch.zeros(n, 2, device=gpu, dtype=torch.int64), experts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("entries", [2**20, 512])
def test_blocks_stay_on_their_gpu(gpu, monkeypatch, dtype, entries):
    monkeypatch.setattr(penalty, "SMALL", 0)
    monkeypatch.setattr(blockwise, "ENTRIES", entries)
    if hasattr(torch.ops.aten.bmm, "dtype"):
        monkeypatch.setattr(blockwise, "stays_half", lambda features: features.dtype == torch.bfloat16)
    features, chosen, experts = mixture(gpu, dtype=dtype)
    found = st.routed_penalty(features, chosen, experts)
    assert (found.device.type, found.dtype) == (gpu, torch.promote_types(dtype, torch.float32))
    found.backward()
    assert (features.grad.device.type, features.grad.dtype) == (gpu, dtype)


@pytest.mark.parametrize("samples", [None, 5])
def test_small_and_dense_penalties_stay_on_their_gpu(gpu, samples):
    features, chosen, experts = mixture(gpu)
    assert st.routed_penalty(features, chosen, experts, samples).device.type == gpu
    assert st.routed_penalty(*mixture(gpu, 400, 2, 3)).device.type == gpu
    assert st.scale_free(st.gram(features[:, 0])).device.type == gpu


def test_a_tensor_that_stays_behind_is_noticed(gpu):
    with pytest.raises(AssertionError, match="meta"):
        torch.empty(3, device=gpu) + torch.zeros(3)
