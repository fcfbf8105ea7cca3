"""Effective rank of tensors: `effective_rank` and `effective_rank_spsd` of `sphere.spectrum`, number for number."""

import math

import torch
from torch import Tensor

from sphere.torch import checks


def spectral_entropy(spectrum: Tensor) -> Tensor:
    """H(p) = -sum_i p_i log p_i,  p_i = spectrum_i / sum_j spectrum_j,  0 log 0 = 0; 0 for zeros."""
    top = spectrum.detach().max()
    if float(top) == 0:
        return spectrum.sum() * 0
    p = spectrum.clamp(min=0) / top  # first, lest the sum overflow
    p = p / p.sum()
    return -(p * torch.where(p == 0, 1, p).log()).sum()


def effective_rank(matrix: Tensor) -> Tensor:
    """r_e(M) = exp(H(p)),  p_i = sigma_i / sum_j sigma_j over the singular values of any matrix [m, n]; 0 for zeros."""
    matrix = checks.real("matrix", matrix, 2, "one matrix [m, n]")
    return _rank(torch.linalg.svdvals(matrix * power_of_two(checks.largest(matrix))), matrix)


def effective_rank_spsd(matrix: Tensor) -> Tensor:
    """r_e(M) = exp(H(p)),  p_i = lambda_i / Tr(M) over the eigenvalues of a positive semidefinite matrix [n, n]."""
    matrix = checks.real("matrix", matrix, 2, "one square matrix [n, n]")
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"matrix has shape {tuple(matrix.shape)}, wanted a square one; "
            "pass the Gram matrix X^T X, or use effective_rank, which takes any shape"
        )
    factor = power_of_two(checks.largest(matrix))
    values = _eigenvalues(matrix * factor)
    # eps^(1/3), as in sphere.checks: what rounding, also that of TF32 products, explains
    if float(values.detach().min()) < -(torch.finfo(matrix.dtype).eps ** (1 / 3)) * float(values.detach().abs().max()):
        raise ValueError(
            f"the eigenvalues of matrix reach down to {float(values.detach().min()) / factor:.3g}, "
            "wanted none below zero; for a matrix that is no Gram matrix there is effective_rank"
        )
    return _rank(values, matrix)


def power_of_two(largest: float) -> float:
    """What brings a number to about 1, exactly; 1 for 0 and what is no number. Solvers of a GPU sum squares, which are
    no numbers of float32 from 1e19 on; ranks stay as they are."""
    if largest == 0 or not math.isfinite(largest):
        return 1.0
    return 2.0 ** -max(-100, min(100, math.frexp(largest)[1]))


def _eigenvalues(matrix: Tensor) -> Tensor:
    """In float64 where float32 does not converge: LAPACK may fail on a large matrix with many eigenvalues near zero."""
    try:
        return torch.linalg.eigvalsh(matrix)
    except torch.linalg.LinAlgError:
        return torch.linalg.eigvalsh(matrix.double()).to(matrix.dtype)


def _rank(values: Tensor, matrix: Tensor) -> Tensor:
    """exp of the entropy, of the values that rounding can tell from zero."""
    top = float(values.detach().max())
    zero = max(matrix.shape) * torch.finfo(values.dtype).eps * top
    values = torch.where(values <= zero, 0, values)
    return spectral_entropy(values).exp() if top > 0 else values.sum() * 0
