"""What the penalty adds to a training step of one Mixtral-shaped block in PyTorch: python -m benchmarks.torch_penalty

Experts 8 and 128, two chosen, 4,096 tokens, width 1,024, bfloat16 on a GPU. `--tokens 512 --width 64` for a small
machine.
"""

import argparse
import time

import torch
from torch import Tensor, nn

import sphere.torch as st


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


def step(block: Block, optimiser: torch.optim.Optimizer, x: Tensor, way: str, samples: int | None) -> None:
    output, mixture = block(x)
    loss = output.float().square().mean()
    optimiser.zero_grad()
    if way == "none":
        loss.backward()
    else:
        penalty = st.routed_penalty(mixture.features, mixture.experts, mixture.num_experts, samples)
        floor = 1e-12 if way == "gradient-norm" else None
        st.penalised_backward(loss, penalty, block.parameters(), 1e-3, way, floor=floor)
    optimiser.step()


def measure(block: Block, x: Tensor, way: str, samples: int | None, repeats: int) -> tuple[float, float]:
    """Milliseconds of a step, the median, and the most memory in MB (GPU only)."""
    optimiser = torch.optim.AdamW(block.parameters(), lr=1e-5)
    gpu, times = x.is_cuda, []
    for repeat in range(repeats + 2):
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        step(block, optimiser, x, way, samples)
        if gpu:
            torch.cuda.synchronize()
        if repeat >= 2:
            times.append(time.perf_counter() - start)
    return 1e3 * sorted(times)[repeats // 2], torch.cuda.max_memory_allocated() / 1e6 if gpu else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("tokens", 4096), ("width", 1024), ("repeats", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    print(f"{device}, {dtype}, {given.tokens} tokens, width {given.width}")
    for experts in (8, 128):
        torch.manual_seed(0)
        block = Block(experts, given.width).to(device, dtype)
        x = torch.randn(given.tokens, given.width, device=device, dtype=dtype)
        plain = measure(block, x, "none", None, given.repeats)
        print(f"E {experts:3}  no penalty              {plain[0]:8.2f} ms  {plain[1]:8.0f} MB")
        for way, samples in (("fixed", None), ("fixed", given.tokens // 4), ("gradient-norm", None)):
            found = measure(block, x, way, samples, given.repeats)
            label = f"{way}{'' if samples is None else f', {samples} rows'}"
            more = f"+{100 * (found[0] / plain[0] - 1):.0f}%"
            print(f"E {experts:3}  {label:22}  {found[0]:8.2f} ms  {found[1]:8.0f} MB  {more}")


if __name__ == "__main__":
    main()
