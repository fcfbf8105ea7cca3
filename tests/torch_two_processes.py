"""What tests/test_torch_ranks.py runs in each of two processes: python torch_two_processes.py RANK FILE CASE."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import sphere.torch as st


def problem():
    torch.manual_seed(0)
    net = st.TopK(5, 3, experts=4, top_k=2, width=8, depth=2).double()
    return net, torch.randn(2, 12, 5).double(), torch.randn(2, 12, 3).double()


def nested():
    """The mixture between other layers."""
    net, x, y = problem()
    return torch.nn.Sequential(torch.nn.Linear(5, 5).double(), net, torch.nn.Linear(3, 3).double()), x, y


def losses(net, x, y, inner=None):
    out = net(x)
    return (out - y).square().mean(), st.routed_penalty(*(inner or net).mixture)


def ddp(rank, mode, **settings):
    net, x, y = problem()
    model = DistributedDataParallel(net)
    result = st.penalised_backward(
        *losses(model, x[rank], y[rank], net), net.parameters(), 0.2, mode, ddp=model, **settings
    )
    return [p.grad for p in net.parameters()], result


def ddp_accumulated(rank):
    """Two parts of the batch, the first of them without an exchange."""
    net, x, y = problem()
    model = DistributedDataParallel(net)
    with model.no_sync():
        st.penalised_backward(*losses(model, x[rank, :6], y[rank, :6], net), net.parameters(), 0.2, "fixed", ddp=model)
    result = st.penalised_backward(*losses(model, x[rank, 6:], y[rank, 6:], net), net.parameters(), 0.2, ddp=model)
    return [p.grad for p in net.parameters()], result


def attached(rank):
    net, x, y = problem()
    model = DistributedDataParallel(net)
    found = st.attach(net, 0.2, ddp=model)
    for _ in range(2):  # the second time through buckets that were built anew
        out = model(x[rank])
        model.zero_grad()
        (out - y[rank]).square().mean().backward()
    return [p.grad for p in net.parameters()], found


def sharded(rank, mode):
    net, x, y = problem()
    fully_shard(net)
    params = list(net.parameters())
    for _ in range(2):
        net.zero_grad()
        result = st.penalised_backward(*losses(net, x[rank], y[rank]), params, 0.2, mode)
    return [p.grad.full_tensor() for p in params], result


def sharded_by_layer(rank):
    """Layers whose parameters are given back after the forward pass and fetched again."""
    model, x, y = nested()
    for layer in model:
        fully_shard(layer, reshard_after_forward=True)
    fully_shard(model)
    params = list(model.parameters())
    result = st.penalised_backward(*losses(model, x[rank], y[rank], model[1]), params, 0.2)
    return [p.grad.full_tensor() for p in params], result


def undeclared(rank):
    net, x, y = problem()
    try:
        st.penalised_backward(*losses(net, x[rank], y[rank]), net.parameters(), 0.2)
    except ValueError as error:
        return str(error)
    st.penalised_backward(*losses(net, x[rank], y[rank]), net.parameters(), 0.2, ddp=False)
    return "no error"


CASES = {
    "ddp": lambda rank: ddp(rank, "gradient-norm"),
    "ddp fixed": lambda rank: ddp(rank, "fixed"),
    "ddp relative": lambda rank: ddp(rank, "gradient-norm", floor=1e-8),
    "ddp accumulated": ddp_accumulated,
    "attached": attached,
    "fsdp": lambda rank: sharded(rank, "gradient-norm"),
    "fsdp fixed": lambda rank: sharded(rank, "fixed"),
    "fsdp by layer": sharded_by_layer,
    "undeclared": undeclared,
}


def main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    found = {}
    for name, case in CASES.items():
        result = case(rank)
        if isinstance(result, str):
            found[name] = result
        else:
            gradients, values = result
            found[name] = ([g.detach() for g in gradients], float(values.coefficient), float(values.felt))
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # not through PyTorch's own end, which once in many times aborts over a thread that still runs


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
