"""r_e(K) of any differentiable function by stochastic Lanczos quadrature, with a standard error.

K = J J^T is never formed: K v = J (J^T v) by one reverse and one forward pass. How biased it is with few probes, and
what the error bar holds: docs/metrics.md.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Num, PRNGKeyArray

from sphere.checks import checked, finite
from sphere.solvers import eigh
from sphere.values import finite_or_zero, nan_unless


class Estimate(NamedTuple):
    value: Float[Array, ""]
    standard_error: Float[Array, ""]

    @property
    def interval(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """About 95%: two standard errors to both sides of log r_e, and nothing below 1, where no rank is."""
        far = jnp.exp(2 * self.standard_error / jnp.where(self.value == 0, 1.0, self.value))
        return jnp.maximum(self.value / far, jnp.minimum(self.value, 1.0)), self.value * far


def _inputs(name: str, value: Any) -> Array:
    """Checked as states are and then left as they came: a function may want token ids, or half precision."""
    finite(name, value, 2)
    return jnp.asarray(value)


def _function_of_numbers(arguments: Mapping[str, Any]) -> None:
    fn, leaves = arguments["fn"], jax.tree.leaves(arguments["params"])
    if not callable(fn):
        raise TypeError(f"fn is {fn!r:.60}, wanted a function that is called as fn(params, x)")
    for leaf in leaves:
        if not eqx.is_array_like(leaf):
            raise TypeError(
                f"params holds {leaf!r:.60}, wanted nothing but arrays; keep the rest out of it by "
                "equinox.partition(net, equinox.is_inexact_array)"
            )
    # not equinox.is_inexact_array_like, which cannot look at traced arrays
    if not any(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) for leaf in leaves):
        raise ValueError("params holds no real numbers, wanted some that fn can be differentiated by")


def lanczos(
    multiply: Callable[[Array], Array], start: Float[Array, " n"], depth: int
) -> tuple[Float[Array, "depth depth"], Float[Array, "depth n"]]:
    """T = Q K Q^T, tridiagonal, and Q, by rows an orthonormal basis of span(v, K v, K^2 v, ...), v a unit vector.

    Each vector is made orthogonal to all before it, twice. Where the space is used up (K has fewer distinct eigenvalues
    than `depth`) the rest of T is zero and has no part in e_1^T f(T) e_1 for f(0) = 0.
    """
    if depth < 1:
        raise ValueError(f"depth={depth}: Lanczos takes at least 1 step; 32 are enough for most spectra")

    def step(carry: tuple[Array, Array, Array], i: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
        basis, q, scale = carry
        basis = basis.at[i].set(q)
        w = multiply(q)
        alpha = jnp.vdot(q, w)
        scale = jnp.maximum(scale, jnp.linalg.norm(w))
        for _ in range(2):
            w = w - basis.T @ (basis @ w)
        beta = jnp.linalg.norm(w)
        ended = beta <= 10 * jnp.finfo(w.dtype).eps * start.size**0.5 * scale
        beta = jnp.where(ended, 0.0, beta)
        q = jnp.where(ended, 0.0, w / jnp.where(ended, 1.0, beta))
        return (basis, q, scale), (alpha, beta)

    empty = jnp.zeros((depth, start.size), start.dtype)
    (basis, *_), (alpha, beta) = jax.lax.scan(step, (empty, start, jnp.zeros((), start.dtype)), jnp.arange(depth))
    return jnp.diag(alpha) + jnp.diag(beta[:-1], 1) + jnp.diag(beta[:-1], -1), basis


class Quadrature(NamedTuple):
    """Of one probe z."""

    trace: Float[Array, ""]  # z^T K z
    entropy: Float[Array, ""]  # z^T K log K z
    logarithm: Float[Array, " n"]  # log(K) z, where K has no zero


def quadrature(multiply: Callable[[Array], Array], z: Float[Array, " n"], depth: int) -> Quadrature:
    """e_1^T f(T) e_1 for z^T f(K) z, and Q^T f(T) e_1 for f(K) z, from the unit vector along z."""
    length = jnp.linalg.norm(z)
    tridiagonal, basis = lanczos(multiply, z / length, depth)
    value, vector = eigh(finite_or_zero(jax.lax.stop_gradient(tridiagonal)))
    tiny = jnp.finfo(value.dtype).eps * z.size * jnp.max(jnp.abs(value))
    value = jnp.where(value <= tiny, 0.0, value)
    log = jnp.log(jnp.where(value == 0, 1.0, value))
    found = Quadrature(
        length**2 * tridiagonal[0, 0],
        length**2 * jnp.sum(jnp.square(vector[0]) * value * log),
        length * basis.T @ (vector @ (log * vector[0])),
    )
    known = jnp.all(jnp.isfinite(tridiagonal))
    return jax.tree.map(lambda part: nan_unless(known, part), found)


def _size(tree: Any) -> Array:
    """The largest entry."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.dtype != jax.dtypes.float0]
    return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0).astype(jnp.float32) for leaf in leaves]))


@checked(_function_of_numbers, x=_inputs)
def slq_effective_rank(
    fn: Callable[[Any, Array], Array],
    params: Any,
    x: Num[Array, "n obs"],
    key: PRNGKeyArray,
    probes: int = 64,
    depth: int = 32,
    distribution: str = "rademacher",
) -> Estimate:
    """r_e(K) of any differentiable function by stochastic Lanczos quadrature, the paper's estimator.

    `fn(params, x)` gives [n] or [n, d]; outputs are summed over d. With T the mean of z^T K z and F that of
    z^T K log K z over probes z, log r_e = log T - F / T, kept between 1 and n; the standard error is that of this ratio
    to first order. It does not depend on the scale of the outputs. `params` may be traced, by jit, vmap and grad; the
    gradient is an estimate too (`from_probes`). NaN in gives NaN out. A function that does not depend on params has 0.

    With few probes the estimate is too high on average and its error bar too short (docs/metrics.md).
    """
    if distribution not in ("gaussian", "rademacher"):
        raise ValueError(f"distribution {distribution!r} is not known; use gaussian or rademacher")
    if probes < 2:
        raise ValueError(f"probes={probes}: a standard error needs at least 2")
    n = x.shape[0]
    depth = min(depth, n)

    def scalar(params: Any) -> Float[Array, " n"]:
        found = fn(params, x)
        if getattr(found, "shape", ())[:1] != (n,):
            kind = f"shape {found.shape}" if hasattr(found, "shape") else type(found).__name__
            raise ValueError(
                f"fn(params, x) gives {kind}, wanted an array of shape [{n}] or [{n}, d]: a row for each state"
            )
        # in float32 at least: LAPACK has no half precision
        return jnp.sum(found.reshape(n, -1).astype(jnp.promote_types(found.dtype, jnp.float32)), axis=1)

    outputs = jax.eval_shape(scalar, params)
    draw = jax.random.normal if distribution == "gaussian" else jax.random.rademacher
    return from_probes(scalar, params, draw(key, (probes, n)).astype(outputs.dtype), depth)


def from_probes(
    scalar: Callable[[Any], Float[Array, " n"]], params: Any, z: Float[Array, "probes n"], depth: int
) -> Estimate:
    """The estimate by given probes of a function [n] of its parameters.

    The gradient is of the same kind as the value: of a trace of f(K), by the same probes, z^T f'(K) dK z, which is the
    derivative of <J^T f'(K) z, J^T z> with all but J held fixed. The derivative of Lanczos itself would cost the memory
    of all its steps and divide by gaps between eigenvalues.
    """
    n = z.shape[1]
    _, pull = jax.vjp(scalar, params)
    # K is divided by the square of the largest entry of J^T z, in two steps: its own entries may be out of range
    size = jnp.max(jax.lax.stop_gradient(jax.lax.map(lambda v: _size(pull(v)), z)))
    size = jnp.where(size == 0, 1.0, size)

    def back(v: Float[Array, " n"]) -> Any:
        return jax.tree.map(lambda u: u if u.dtype == jax.dtypes.float0 else (u / size).astype(u.dtype), pull(v)[0])

    def multiply(v: Float[Array, " n"]) -> Float[Array, " n"]:
        return jax.jvp(scalar, (params,), (back(v),))[1] / size.astype(z.dtype)

    def both(z: Float[Array, " n"]) -> tuple[Array, Array]:
        trace, entropy, logarithm = jax.lax.stop_gradient(quadrature(multiply, z, depth))
        along, other = back(z), back(z + logarithm)  # f'(x) = log x + 1
        return _moved(trace, _inner(along, along)), _moved(entropy, _inner(along, other))

    traces, entropies = jax.lax.map(both, z, batch_size=min(len(z), 8))  # eight gradients in memory at a time
    trace, entropy = jnp.mean(traces), jnp.mean(entropies)
    dead = trace == 0
    safe = jnp.where(dead, 1.0, trace)
    rank = jnp.where(dead, 0.0, jnp.clip(jnp.exp(jnp.log(safe) - entropy / safe), 1.0, float(n)))
    slope = jax.lax.stop_gradient(traces / safe - (entropies - entropy * traces / safe) / safe)
    return Estimate(rank, rank * jnp.std(slope, ddof=1) / jnp.sqrt(len(z)))


def _inner(first: Any, second: Any) -> Array:
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    numbers = [jnp.vdot(a, b) for a, b in pairs if a.dtype != jax.dtypes.float0]
    return sum((number.astype(jnp.promote_types(number.dtype, jnp.float32)) for number in numbers), start=jnp.zeros(()))


def _moved(value: Array, along: Array) -> Array:
    """One's value with the other's gradient."""
    return value + (along - jax.lax.stop_gradient(along)).astype(value.dtype)
