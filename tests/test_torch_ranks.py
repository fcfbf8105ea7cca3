"""Two processes (gloo) have the gradients of one that sees both halves of the batch."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import processes
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'sphere-rl[torch]'")
torch.set_num_threads(1)  # threads that wait for each other on a busy machine take forty times as long

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this build of PyTorch has no gloo", allow_module_level=True)

import torch_two_processes as two

import sphere.torch as st


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    root = Path(__file__).resolve().parents[1]
    # gloo, and so CPU tensors: where there is a GPU, FSDP would move parameters there and leave the inputs
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(root / "tests" / "torch_two_processes.py")]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    running = [processes.start([*command, str(rank), str(folder)], env=environment, **output) for rank in range(2)]
    try:
        said = [processes.ended(process) for process in running]
    finally:
        processes.end_all()
    assert [process.returncode for process in running] == [0, 0], "\n".join(said)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def whole(mode="gradient-norm", problem=two.problem, **settings):
    """Means of loss and penalty over the halves, in this process."""
    net, x, y = problem()
    inner = net[1] if problem is two.nested else None
    parts = [two.losses(net, x[half], y[half], inner) for half in range(2)]
    loss, penalty = (sum(column) / 2 for column in zip(*parts, strict=True))
    result = st.penalised_backward(loss, penalty, net.parameters(), 0.2, mode, **settings)
    return [p.grad for p in net.parameters()], result


@pytest.mark.parametrize(
    "case", ["ddp", "ddp fixed", "ddp relative", "attached", "fsdp", "fsdp fixed", "fsdp by layer"]
)
def test_two_processes_equal_one(both, case):
    mode = "fixed" if case.endswith("fixed") else "gradient-norm"
    problem = two.nested if case == "fsdp by layer" else two.problem
    want, result = whole(mode, problem, **({"floor": 1e-8} if case == "ddp relative" else {}))
    for found in both:
        gradients, coefficient, felt = found[case]
        for got, g in zip(gradients, want, strict=True):
            np.testing.assert_allclose(got, g, rtol=1e-10, atol=1e-14)
        assert coefficient == pytest.approx(float(result.coefficient), rel=1e-10)
        assert felt == pytest.approx(float(result.felt), rel=1e-10, nan_ok=True)


def test_accumulation_without_an_exchange_is_averaged_with_the_rest(both):
    net, x, y = two.problem()
    parts = [two.losses(net, x[half, :6], y[half, :6]) for half in range(2)]
    loss, penalty = (sum(column) / 2 for column in zip(*parts, strict=True))
    st.penalised_backward(loss, penalty, net.parameters(), 0.2, "fixed")
    parts = [two.losses(net, x[half, 6:], y[half, 6:]) for half in range(2)]
    loss, penalty = (sum(column) / 2 for column in zip(*parts, strict=True))
    result = st.penalised_backward(loss, penalty, net.parameters(), 0.2)
    for found in both:
        gradients, coefficient, _ = found["ddp accumulated"]
        for got, p in zip(gradients, net.parameters(), strict=True):
            np.testing.assert_allclose(got, p.grad, rtol=1e-9, atol=1e-14)
        assert coefficient == pytest.approx(float(result.coefficient), rel=1e-9)


def test_processes_that_do_not_say_what_they_share_are_refused(both):
    for found in both:
        assert found["undeclared"].startswith("2 processes run and ddp was not given: replicas would drift apart")


def test_ddp_is_a_wrapper():
    net, x, y = two.problem()
    with pytest.raises(TypeError, match="ddp is a TopK, wanted the DistributedDataParallel wrapper"):
        st.penalised_backward(*two.losses(net, x[0], y[0]), net.parameters(), 0.2, ddp=net)
