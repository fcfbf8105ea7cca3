"""Random matrices with a known spectrum, and the definitions of the paper in plain numpy to judge by."""

from typing import NamedTuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

# One compilation per shape and function costs more than a hundred examples: few shapes, many values.
DIMENSIONS = (1, 2, 5, 8)
FEW = settings(max_examples=25, deadline=None)

seeds = st.integers(0, 2**32 - 1)
fractions = st.floats(0.0, 1.0)
small_fractions = st.floats(-8.0, 0.0).map(lambda exponent: 10.0**exponent)


class Known(NamedTuple):
    """A symmetric positive semidefinite matrix M with what it was made from."""

    matrix: np.ndarray
    spectrum: np.ndarray
    """Its eigenvalues in ascending order."""
    root: np.ndarray
    """X with X X^T = M."""


def orthogonal(rng, n):
    return np.linalg.qr(rng.standard_normal((n, n)))[0]


def known(n, rank, spread, scale, seed):
    """`rank` eigenvalues between scale and scale 10^-spread, the others zero."""
    rng = np.random.default_rng(seed)
    spectrum = np.zeros(n)
    spectrum[n - rank :] = np.sort(scale * 10.0 ** -rng.uniform(0, spread, rank))
    basis = orthogonal(rng, n)
    matrix = (basis * spectrum) @ basis.T
    return Known((matrix + matrix.T) / 2, spectrum, basis * np.sqrt(spectrum))


@st.composite
def spsd(draw, dimensions=DIMENSIONS, full_rank=False, spread=7.0):
    """Zero spread (a scaled identity) to seven decades, scales from 1e-6 to 1e6, every rank from 1 up."""
    n = draw(st.sampled_from(dimensions))
    rank = n if full_rank else draw(st.integers(1, n))
    decades, scale = draw(st.floats(0.0, spread)), 10.0 ** draw(st.floats(-6.0, 6.0))
    return known(n, rank, decades, scale, draw(seeds))


@st.composite
def rectangular(draw, shapes=((1, 1), (3, 2), (2, 5), (5, 5)), allow_zero=False):
    m, n = draw(st.sampled_from(shapes))
    rank = draw(st.integers(0 if allow_zero else 1, min(m, n)))
    rng = np.random.default_rng(draw(seeds))
    return 10.0 ** draw(st.floats(-3, 3)) * rng.standard_normal((m, rank)) @ rng.standard_normal((rank, n))


def entropy(weights):
    p = np.asarray(weights, float)
    p = p[p > 0] / p.sum()
    return float(-(p * np.log(p)).sum())


def rank_of(matrix):
    """r_e by the definition, singular values below numpy's own rank threshold left out."""
    sigma = np.linalg.svd(matrix, compute_uv=False)
    return float(np.exp(entropy(np.where(sigma > max(matrix.shape) * np.finfo(float).eps * sigma[0], sigma, 0))))


def blocks_of(matrix, sizes):
    """blocks[e][f] is the block of rows of expert e and columns of expert f."""
    cuts = np.cumsum(sizes)[:-1]
    return [np.split(rows, cuts, axis=1) for rows in np.split(matrix, cuts, axis=0)]


def brute(phi):
    """The penalty of features phi, ||A - tr(A)/m I||_F^2, from A itself."""
    phi = np.asarray(phi)
    a = phi.T @ phi / len(phi)
    return np.sum((a - np.trace(a) / len(a) * np.eye(len(a))) ** 2)


def spectral_condition(eigenvalues):
    return eigenvalues.max() / eigenvalues.min()


def rank(*eigenvalues):
    return float(np.exp(entropy(eigenvalues)))


def diagonal(*eigenvalues):
    return np.diag(np.array(eigenvalues, float))


def features_with(spectrum_of_a, n):
    """Phi [n, m] with Phi^T Phi / n = diag(spectrum)."""
    phi = np.zeros((n, len(spectrum_of_a)))
    count = min(phi.shape)
    phi[range(count), range(count)] = np.sqrt(n * np.array(spectrum_of_a[:count]))
    return phi


def one_hot_features(features, experts, num_experts):
    """Phi [n, experts * width] of the features [n, k, width] of the chosen experts [n, k]."""
    n, k, width = features.shape
    phi = np.zeros((n, num_experts, width))
    for i in range(n):
        for j in range(k):
            phi[i, experts[i, j]] += features[i, j]
    return phi.reshape(n, -1)
