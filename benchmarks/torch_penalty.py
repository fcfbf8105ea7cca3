"""What the penalty adds to a training step of one Mixtral-shaped block in PyTorch: python -m benchmarks.torch_penalty

Experts 8 and 128, two chosen, 4,096 tokens, width 1,024, bfloat16 on a GPU: milliseconds of a step, how many times the
plain step, and its most memory; with fixed coefficient also with the penalty compiled, and at twice and four times the
tokens. `--tokens 512 --width 64` for a small machine. Programs are the operations of forward and backward pass that
start one (at least one) on a GPU, waits the times that numbers of the device are read.
"""

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import sphere.torch as st
from benchmarks import kept


class Block(nn.Module):
    """Gated experts, computed for sorted tokens one expert after another."""

    def __init__(self, experts: int, width: int, top_k: int = 2) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, 2 * width, width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, width, width) * width**-0.5)
        self.top_k = top_k

    def forward(self, x: Tensor) -> tuple[Tensor, st.Mixture]:
        best, chosen = self.gate(x).topk(self.top_k, dim=1)
        weight, flat = best.softmax(dim=1), chosen.reshape(-1)
        order = flat.argsort(stable=True)
        counts = flat.bincount(minlength=len(self.up)).tolist()
        hidden = []  # unbind, not an index for each: whose gradient is as large as all experts together
        for weights, rows in zip(self.up.unbind(), x[order // self.top_k].split(counts), strict=True):
            gate, up = (rows @ weights.T).chunk(2, dim=1)
            hidden.append(nn.functional.silu(gate) * up)
        features = torch.cat(hidden)[order.argsort()].reshape(*chosen.shape, -1) * weight[:, :, None]
        rows_by_expert = features.flatten(0, 1)[order].split(counts)
        outputs = [rows @ weights.T for weights, rows in zip(self.down.unbind(), rows_by_expert, strict=True)]
        output = torch.cat(outputs)[order.argsort()].reshape(*chosen.shape, -1).sum(dim=1)
        return output, st.Mixture(features, chosen, len(self.up))


class Programs(TorchDispatchMode):
    """The names of operations that compute something: no views, no memory without contents, no reading."""

    FREE = ("aten::empty", "aten::new_empty", "aten::detach", "aten::_local_scalar_dense", "aten::promote_types")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name
        if not function.is_view and not name.startswith(self.FREE):
            self.names.append(name)
        return function(*args, **(kwargs or {}))


class Waits(TorchFunctionMode):
    """The names of functions that read numbers."""

    READ = ("tolist", "item", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in self.READ:
            self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


def counted(call: Callable[[], Any]) -> tuple[int, int]:
    """How many programs and waits."""
    with Waits() as waits, Programs() as programs:
        call()
    return len(programs.names), len(waits.names)


class Way(NamedTuple):
    """How the penalty is added."""

    coefficient: str = "none"  # none: no penalty
    samples: int | None = None
    compiled: bool = False

    @property
    def label(self) -> str:
        rows = "" if self.samples is None else f", {self.samples:,} rows"
        return f"{self.coefficient}{rows}{', compiled' if self.compiled else ''}"


PLAIN = Way()


@functools.cache
def compiled() -> Callable[..., Tensor]:
    return torch.compile(st.routed_penalty)


def differentiate(block: Block, x: Tensor, way: Way) -> None:
    output, mixture = block(x)
    loss = output.float().square().mean()
    block.zero_grad()
    if way.coefficient == PLAIN.coefficient:
        loss.backward()
    else:
        penalised = compiled() if way.compiled else st.routed_penalty
        penalty = penalised(mixture.features, mixture.experts, mixture.num_experts, way.samples)
        floor = 1e-12 if way.coefficient == "gradient-norm" else None
        st.penalised_backward(loss, penalty, block.parameters(), 1e-3, way.coefficient, floor=floor)


class Measured(NamedTuple):
    milliseconds: float  # of a step, the median
    programs: int | None  # not known of compiled ones
    waits: int | None
    memory: float | None  # the most, in MB; on a GPU alone


def measure(block: Block, x: Tensor, way: Way, repeats: int) -> Measured:
    optimiser = torch.optim.AdamW(block.parameters(), lr=1e-5)
    gpu, times = x.is_cuda, []
    for repeat in range(repeats + 2):
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        differentiate(block, x, way)
        optimiser.step()
        if gpu:
            torch.cuda.synchronize()
        if repeat >= 2:
            times.append(time.perf_counter() - start)
    most = torch.cuda.max_memory_allocated() / 1e6 if gpu else None
    programs, waits = (None, None) if way.compiled else counted(lambda: differentiate(block, x, way))
    return Measured(1e3 * sorted(times)[repeats // 2], programs, waits, most)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("tokens", 4096), ("width", 1024), ("repeats", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    kept.add_option(parser)
    given = parser.parse_args()
    gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
    name = f"{torch.cuda.get_device_name() if gpu else device}, PyTorch {torch.__version__}"
    print(f"{name}: {dtype}, width {given.width}, two experts each\n")
    columns = {"E": "d", "tokens": ",d", "way": "", "ms": ".2f", "times the plain step": ".2f"}
    table = kept.Table(columns | {"programs": ",d", "waits": "d", "MB": ",.0f", "MB more": ",.0f"})
    exact, drawn = Way("fixed"), Way("fixed", given.tokens // 4)
    every = exact, drawn, drawn._replace(compiled=True), Way("gradient-norm")
    for experts in (8, 128):
        for tokens, ways in ((given.tokens, every), (2 * given.tokens, every[:1]), (4 * given.tokens, every[:1])):
            torch.manual_seed(0)
            with torch.device(device):
                block = Block(experts, given.width).to(dtype)
            x = torch.randn(tokens, given.width, device=device, dtype=dtype)
            plain = measure(block, x, PLAIN, given.repeats)
            table.add(experts, tokens, "no penalty", plain.milliseconds, 1.0, *plain[1:], None)
            for way in ways:
                found = measure(block, x, way, given.repeats)
                more = None if found.memory is None or plain.memory is None else found.memory - plain.memory
                times = found.milliseconds / plain.milliseconds
                table.add(experts, tokens, way.label, found.milliseconds, times, *found[1:], more)
    kept.keep(table, given.keep, name)


if __name__ == "__main__":
    main()
