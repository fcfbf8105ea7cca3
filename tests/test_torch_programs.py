"""How many programs sphere.torch starts and how often it waits, on the way that a GPU goes, counted on the CPU.

Each program takes as long on a GPU as a small product, and every wait lets it run empty: on the block that
benchmarks/torch_penalty.py measures they, not its arithmetic, were what the penalty cost.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'sphere-rl[torch]'")
torch.set_num_threads(1)  # threads that wait for each other on a busy machine take forty times as long

from pages import ROOT
from torch.utils._python_dispatch import _disable_current_modes
from torch_mixtures import random_mixture

import sphere.torch as st
from benchmarks import torch_penalty
from benchmarks.torch_penalty import counted
from sphere.torch import backward, blockwise, coefficient, penalty

MOST = {None: (54, 2), 1024: (45, 2)}
"""Programs and waits that a penalty of all rows, or of so many, adds to a step with a fixed coefficient. They stand on
docs/pytorch.md."""


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """All rows at once, and products of bfloat16 by one program, as a GPU has it."""

    def product(a, b):
        with _disable_current_modes():
            a, b = a.float(), b.float()
        return torch.bmm(a, b)

    monkeypatch.setattr(penalty, "SMALL", 4 * penalty.SMALL)
    monkeypatch.setattr(blockwise, "ENTRIES", blockwise.GPU_ENTRIES)
    monkeypatch.setattr(blockwise, "stays_half", lambda features: features.dtype == torch.bfloat16)
    monkeypatch.setattr(blockwise, "product", product)


def block_and_input():
    """Wide enough for products expert by expert, with more tokens than are multiplied all at once."""
    torch.manual_seed(0)
    return torch_penalty.Block(8, 144).bfloat16(), torch.randn(1100, 144).bfloat16()


@pytest.mark.parametrize("samples", MOST)
def test_a_penalty_adds_few_programs_and_waits_to_a_step(samples):
    block, x = block_and_input()
    plain = counted(lambda: torch_penalty.differentiate(block, x, torch_penalty.PLAIN))
    fixed = counted(lambda: torch_penalty.differentiate(block, x, torch_penalty.Way("fixed", samples)))
    programs, waits = (more - few for more, few in zip(fixed, plain, strict=True))
    assert 30 < programs <= MOST[samples][0]
    assert waits == MOST[samples][1]


def test_forward_and_backward_pass_of_the_penalty_alone():
    features, chosen = random_mixture(np.random.default_rng(0), 1100, 2, 144, 8)
    features = torch.tensor(features, dtype=torch.bfloat16, requires_grad=True)
    chosen, found = torch.tensor(chosen), []
    programs, waits = counted(lambda: found.append(st.routed_penalty(features, chosen, 8)))
    assert programs <= 36
    assert waits == 1
    programs, waits = counted(found[0].backward)
    assert programs <= 13
    assert waits == 0


def test_lengths_and_sums_of_many_gradients_are_as_few_programs_as_of_two():
    def programs(number):
        params = [torch.ones(3, requires_grad=True) for _ in range(number)]
        gradients = [torch.ones(3) for _ in params]
        for w in params:
            w.grad = torch.ones(3)
        return counted(lambda: (coefficient.length(gradients), backward.add(params, gradients, 0.5)))

    assert programs(2) == programs(20)


def test_the_gradient_norm_waits_once_more():
    block, x = block_and_input()
    none, fixed, norm = (
        counted(lambda way=way: torch_penalty.differentiate(block, x, torch_penalty.Way(way, 1024)))[1]
        for way in ("none", "fixed", "gradient-norm")
    )
    assert (fixed - none, norm - none) == (2, 3)


def test_what_is_said_of_programs_and_waits():
    page = " ".join((ROOT / "docs" / "pytorch.md").read_text().split())
    assert "adds {} programs and {} waits".format(*MOST[None]) in page
    assert "{} programs and {} waits with `samples=`".format(*MOST[1024]) in page


def test_waits_and_programs_are_noticed():
    x = torch.ones(4)
    assert counted(lambda: (x.reshape(2, 2).T, x[0], torch.empty(3))) == (0, 0)
    assert counted(lambda: x.sum().item()) == (1, 1)
    assert counted(lambda: (bool(x[0]), float(x[1]), x.tolist(), x + 1)) == (1, 3)
