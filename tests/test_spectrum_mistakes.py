"""Bad input to the spectral functions: what came, what was wanted, what to do; and what is no mistake."""

import numpy as np
import pytest
from matrices import entropy, known
from numpy.testing import assert_allclose

from sphere import bounds, spectrum

ASYMMETRIC = np.array([[1.0, 2.0], [0.0, 1.0]])
INDEFINITE = np.array([[1.0, 2.0], [2.0, 1.0]])
two = np.eye(2)
BAD = {
    "vector": (lambda: spectrum.effective_rank(np.ones(3)), r"shape \(3,\).*wanted one matrix; .*vmap"),
    "batch": (
        lambda: spectrum.effective_rank(np.ones((2, 3, 3))),
        r"shape \(2, 3, 3\).*wanted one matrix.*vmap",
    ),
    "empty": (lambda: spectrum.effective_rank(np.ones((0, 3))), r"empty.*\(0, 3\).*wanted at least one"),
    "zero": (lambda: spectrum.effective_rank(np.zeros((2, 3))), r"all zeros, wanted.*; look for dead units"),
    "nan": (
        lambda: spectrum.effective_rank(np.full((2, 2), np.nan)),
        r"4 NaN or infinite.* of 4, wanted finite",
    ),
    "infinity": (lambda: spectrum.effective_rank(np.diag([1, np.inf])), r"1 NaN or infinite.* of 4"),
    "complex": (lambda: spectrum.effective_rank(1j * two), r"complex64, wanted real numbers; take"),
    "not square": (
        lambda: spectrum.effective_rank_spsd(np.ones((2, 3))),
        r"\(2, 3\), wanted a square matrix; pass",
    ),
    "zero gram": (lambda: spectrum.effective_rank_spsd(0 * two), r"all zeros"),
    "asymmetric": (
        lambda: spectrum.effective_rank_spsd(ASYMMETRIC),
        r"transpose by up to 2, wanted a symmetric",
    ),
    "indefinite": (
        lambda: spectrum.effective_rank_spsd(INDEFINITE),
        r"down to -1 \(up to 3\), wanted none below",
    ),
    "negative": (lambda: spectrum.effective_rank_spsd(-two), r"eigenvalues reach down to -1"),
    "kappa": (lambda: spectrum.condition_number(np.ones((2, 3))), r"wanted a square matrix"),
    "negative ridge": (
        lambda: spectrum.condition_number(two, -1.0),
        r"ridge is -1, wanted a number from 0 to inf",
    ),
    "nan ridge": (lambda: spectrum.condition_number(two, float("nan")), r"ridge is nan"),
    "weights": (
        lambda: spectrum.spectral_entropy(np.array([1.0, -1.0])),
        r"entries of spectrum reach down to -1",
    ),
    "no weight": (lambda: spectrum.spectral_entropy(np.zeros(2)), r"spectrum is all zeros"),
    "no blocks": (lambda: spectrum.block_diagonal_effective_rank([]), r"every block is all zeros"),
    "zero blocks": (
        lambda: spectrum.layerwise_effective_rank([0 * two], [0 * two]),
        r"every block is all zeros",
    ),
    "bad block": (
        lambda: spectrum.block_diagonal_effective_rank([two, np.ones(2)]),
        r"blocks\[1\] has shape \(2,\)",
    ),
    "mixture": (
        lambda: spectrum.mixture_effective_rank(np.ones(2), np.ones(3)),
        r"masses has shape \(2,\) and ranks \(3,\), wanted",
    ),
    "beta": (
        lambda: spectrum.spectral_contraction(two, 1.5),
        r"beta is 1.5, wanted a number from 0 to 1; beyond",
    ),
    "sizes": (
        lambda: spectrum.block_traces(two, (1, 2)),
        r"sizes=\(1, 2\) adds up to 3, wanted .* add up to 2",
    ),
    "zero size": (lambda: spectrum.expert_trace_weights(two, (0, 2)), r"wanted positive sizes"),
    "no sizes": (lambda: spectrum.decoupled_effective_rank(two, ()), r"wanted positive sizes"),
    "left sizes": (
        lambda: spectrum.khatri_rao(two, two, (2, 1), (1, 1)),
        r"left_sizes=\(2, 1\) adds up to 3",
    ),
    "right sizes": (
        lambda: spectrum.tracy_singh(two, two, (2,), (1,)),
        r"right_sizes=\(1,\).*the dimension of right",
    ),
    "experts": (
        lambda: spectrum.khatri_rao(two, two, (2,), (1, 1)),
        r"left and right blocks differ, 1 and 2",
    ),
    "selection": (lambda: spectrum.selection_matrix((2,), (1, 1)), r"left and right blocks differ, 1 and 2"),
    "routing": (
        lambda: spectrum.routed_trace_weights(two, np.ones((2, 3, 4))),
        r"gates has shape \(2, 2\) and features \(2, 3, 4\)",
    ),
    "idle": (
        lambda: spectrum.routed_trace_weights(two, np.zeros((2, 2, 4))),
        r"gates and features is all zeros",
    ),
    "layers": (
        lambda: bounds.spectral_plasticity_lower_bound([], np.ones(2), np.ones(3)),
        r"expert_masses has shape \(2,\) and expert_lower_bounds \(3,\)",
    ),
    "dimension": (lambda: bounds.stability_bound(0.1, 0), r"dimension is 0, wanted a number from 1"),
    "epsilon": (lambda: bounds.stability_bound(-0.1, 3), r"epsilon is -0.1, wanted"),
    "probability": (lambda: bounds.binary_entropy(1.1), r"epsilon is 1.1, wanted a number from 0 to 1"),
    "stability": (
        lambda: bounds.effective_rank_stability(two, np.eye(3)),
        r"\(2, 2\) and approximation \(3, 3\), wanted the same",
    ),
    "samples": (
        lambda: bounds.gate_expert_decoupling(two, np.eye(3), 9),
        r"\(2, 2\) and expert \(3, 3\).*; take both on the same samples",
    ),
    "no experts": (lambda: bounds.ignoring_gate(two, 0 * two, 9), r"expert is all zeros"),
    "cosine": (lambda: bounds.block_cosine(two, 0 * two), r"second is all zeros"),
    "coupling": (lambda: bounds.cross_expert_coupling(two, (3,)), r"sizes=\(3,\) adds up to 3"),
    "tokens": (
        lambda: bounds.kfac_factorization(two, np.ones((3, 2))),
        r"features has shape \(2, 2\) and gradients \(3, 2\).*same tokens",
    ),
    "direction": (
        lambda: bounds.kfac_curvatures(two, two, np.ones((2, 3))),
        r"direction.shape .*\(2, 3\) and \(2, 2\)",
    ),
}


@pytest.mark.parametrize(("call", "sentence"), BAD.values(), ids=BAD.keys())
def test_bad_input_raises_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_an_idle_expert_that_left_rounding_behind_is_no_error():
    matrix = np.diag([1.0, 2.0, -1e-12, 1e-13]).astype(np.float32)
    assert_allclose(spectrum.decoupled_effective_rank(matrix, (2, 2)), np.exp(entropy([1, 2])), rtol=1e-6)


def test_a_dead_gate_is_no_error():
    """A dense network has no gate gradient: the bounds hold with nothing lost."""
    expert = known(5, 5, spread=1.0, scale=2.0, seed=0).matrix
    for function in (bounds.gate_expert_decoupling, bounds.ignoring_gate):
        found = function(0 * expert, expert, 40)
        assert found.left == found.right == 0
