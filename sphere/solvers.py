"""Spectra of a matrix, safe under `vmap` on a CPU.

jaxlib 0.10.0 to 0.11.0 divides a batch of large matrices among the threads of a pool, and until all parts are done it
blocks a thread of that same pool. As many batches at once as there are threads wait for each other for ever: two on two
cores. A single matrix is never divided, so on a CPU `vmap` takes matrices one after the other.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

Solver = Callable[[Array], Any]


def one_by_one(solver: Solver) -> Solver:
    """The solver, for matrices one after the other where `vmap` would give it many and it runs on a CPU."""

    @jax.custom_batching.custom_vmap
    def one(matrix: Array) -> Any:
        return solver(matrix)

    @one.def_vmap
    def many(_: int, in_batched: list[bool], matrices: Array) -> tuple[Any, Any]:
        if not in_batched[0]:  # a Hessian maps over directions only
            found = solver(matrices)
        elif jax.default_backend() == "cpu":
            found = jax.lax.map(one, matrices)
        else:
            found = jax.vmap(solver)(matrices)
        return found, jax.tree.map(lambda _: in_batched[0], found)

    return one


eigh = one_by_one(lambda matrix: tuple(jnp.linalg.eigh(matrix)))
"""Eigenvalues and eigenvectors of a symmetric matrix; it has no gradient."""
_eigenvalues = one_by_one(jnp.linalg.eigvalsh)
_singular_values = one_by_one(jnp.linalg.svdvals)
_svd = one_by_one(lambda matrix: tuple(jnp.linalg.svd(matrix, full_matrices=False)))


@jax.custom_jvp
def eigvalsh(matrix: Float[Array, "n n"]) -> Float[Array, " n"]:
    """lambda_1 <= ... <= lambda_n of a symmetric matrix;  d lambda_i = v_i^T dM v_i."""
    return _eigenvalues(matrix)


@eigvalsh.defjvp
def _eigvalsh_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    value, vector = eigh(primals[0])
    return value, jnp.sum(vector * (tangents[0] @ vector), axis=0)


@jax.custom_jvp
def svdvals(matrix: Float[Array, "m n"]) -> Float[Array, " k"]:
    """sigma_1 >= ... >= sigma_k;  d sigma_i = u_i^T dM v_i."""
    return _singular_values(matrix)


@svdvals.defjvp
def _svdvals_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    left, value, right = _svd(primals[0])
    return value, jnp.sum(left * (tangents[0] @ right.T), axis=0)
