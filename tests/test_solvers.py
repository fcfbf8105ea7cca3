"""Spectra equal numpy's under vmap too. No program gives LAPACK a batch: in jaxlib 0.10 two at once may never end."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import network, states

from sphere import ntk, solvers, spectrum
from sphere.diagnostics import diagnose

BATCH = (2, 3)
MATRICES = np.random.default_rng(0).normal(size=(*BATCH, 5, 4)).astype(np.float32)
SYMMETRIC = MATRICES @ MATRICES.swapaxes(-1, -2)


def test_values_are_numpys_under_nested_vmap():
    found = jax.jit(jax.vmap(jax.vmap(solvers.eigvalsh)))(SYMMETRIC)
    np.testing.assert_allclose(found, np.linalg.eigvalsh(SYMMETRIC), rtol=1e-5, atol=1e-5)
    found = jax.jit(jax.vmap(jax.vmap(solvers.svdvals)))(MATRICES)
    np.testing.assert_allclose(found, np.linalg.svd(MATRICES, compute_uv=False), rtol=1e-5)
    value, vector = jax.vmap(jax.vmap(solvers.eigh))(SYMMETRIC)
    np.testing.assert_allclose(vector * value[..., None, :] @ vector.swapaxes(-1, -2), SYMMETRIC, atol=1e-5)


@pytest.mark.parametrize(("solver", "theirs"), [("eigvalsh", jnp.linalg.eigvalsh), ("svdvals", jnp.linalg.svdvals)])
def test_derivatives_are_those_of_jax(solver, theirs, x64):
    """First ones in both directions, and the Hessian, which goes through the vectors."""
    ours = getattr(solvers, solver)
    matrices = (SYMMETRIC[:, :, :4, :4] if solver == "eigvalsh" else MATRICES).reshape(6, -1, 4).astype(np.float64)

    def with_weights(values):
        return lambda matrix: jnp.vdot(jnp.arange(1.0, 5.0), values(matrix))

    for direction in (jax.grad, jax.jacfwd, jax.hessian):
        found, want = (jax.jit(jax.vmap(direction(with_weights(one))))(matrices) for one in (ours, theirs))
        np.testing.assert_allclose(found, want, rtol=1e-8, atol=1e-10)


def batches(function, *arguments):
    """Batch sizes of a program's LAPACK calls: 4 of `custom_call @lapack_ssyevd_ffi(...) (tensor<4x8x8xf32>)`."""
    program = jax.jit(function).lower(*arguments).as_text()
    calls = re.findall(r"@lapack_\w+\(.*?: \(tensor<([\dx]+)xf\d+>", program)
    assert calls
    return {int(np.prod([int(size) for size in call.split("x")[:-2]], initial=1)) for call in calls}


def test_a_plain_batch_is_found():
    assert batches(jax.vmap(jnp.linalg.eigvalsh), SYMMETRIC[0]) == {3}


def test_no_program_gives_lapack_a_batch():
    nets = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(network("top-k", seed) for seed in range(3)))
    assert batches(jax.vmap(diagnose, in_axes=(0, None)), nets, states()) == {1}
    assert batches(jax.vmap(spectrum.effective_rank), MATRICES[0]) == {1}
    assert batches(jax.grad(lambda m: jnp.sum(jax.vmap(spectrum.effective_rank)(m))), MATRICES[0]) == {1}
    estimate = jax.vmap(lambda w: ntk.slq_effective_rank(lambda w, x: x @ w, w, states(), jax.random.key(0), probes=4))
    assert batches(estimate, np.ones((3, states().shape[1], 2), np.float32)) == {1}
