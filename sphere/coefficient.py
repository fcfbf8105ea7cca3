"""The penalty's coefficient: task gradient plus penalty gradient, weighted by rho in one of three ways.

There is one forward pass. Where the coefficient is known from the values, one backward pass follows. The coefficient by
gradient norm needs both gradients, each by a pass of its own: stacking the two cotangents would be cheaper, but rounds
the task's gradient differently, and rho = 0 would no longer be training without a penalty (`docs/history/index.md`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from sphere.checks import known


class Penalised(NamedTuple):
    """Values at the parameters before the step."""

    loss: Float[Array, ""]
    penalty: Any  # a number, or a tuple where the penalty has several terms
    coefficient: Any  # lambda in L = L_task + lambda * L_penalty, one for each term
    aux: Any
    felt: Any = None  # lambda ||grad penalty|| / ||grad task||, where asked for; one for each term


def sum_of_squares(tree: Any) -> Float[Array, ""]:
    """Over all leaves: row by row, then the rows of all of them at once. Leaf by leaf a GPU needs two kernels for
    each. In float32 at least: squares of half precision vanish below 2e-4."""
    leaves = jax.tree.leaves(tree)
    squares = [jnp.square(leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))) for leaf in leaves]
    rows = [jnp.sum(square, axis=-1).reshape(-1) if square.ndim > 1 else square.reshape(-1) for square in squares]
    return jnp.sum(jnp.concatenate(rows))


def global_norm(tree: Any) -> Float[Array, ""]:
    """sqrt(sum of squares + 1e-8) over all leaves: never below 1e-4. The 1e-8 is the released code's, so that 0 has a
    gradient."""
    return jnp.sqrt(sum_of_squares(tree) + 1e-8)


def _three(result: Any) -> tuple[Array, Any, Any]:
    if not isinstance(result, tuple) or len(result) != 3:
        raise ValueError("the function must return (task loss, penalty, aux); aux may be None")
    return result


def _strength(rho: Any) -> None:
    """One number; where it can be looked at, a finite one: of NaN all parameters would become NaN."""
    if rho is None or isinstance(rho, str):
        raise TypeError(f"rho is {rho!r}, wanted a number; 0 leaves the penalty out")
    if jnp.ndim(rho) != 0:
        raise ValueError(f"rho is one number, not of shape {jnp.shape(rho)}; call as (params, rho, *args)")
    if known(rho) and not np.isfinite(rho):
        raise ValueError(f"rho is {rho}, wanted a finite number; 0 leaves the penalty out")


def _for_each(rho: Any, penalty: Any) -> tuple[Any, ...]:
    """A rho for each term."""
    count = len(penalty) if isinstance(penalty, tuple) else 1
    found = rho if isinstance(rho, tuple) else (rho,) * count
    if len(found) != count:
        raise ValueError(f"{len(found)} values of rho for a penalty of {count} terms; give one, or one for each")
    return found


def _added(rho: Any, weight: Array, task: Array, extra: Array) -> Array:
    return jnp.where(rho == 0, task, (task + weight * extra).astype(task.dtype))


def _relative(rho: Any, task: Array, penalty: Array, floor: float) -> Array:
    """rho t / sqrt(p^2 + (floor t)^2) from t^2 and p^2; 0 where both are 0."""
    bounded = penalty + floor**2 * task
    return rho * jnp.sqrt(jnp.where(bounded == 0, 0, task / jnp.where(bounded == 0, 1, bounded)))


def _felt(weight: Array, penalty: Array, task: Array) -> Array:
    """|lambda| p / t from p^2 and t^2; 0 where there is no gradient of the task to compare with."""
    return jnp.abs(weight) * jnp.sqrt(jnp.where(task == 0, 0, penalty / jnp.where(task == 0, 1, task)))


def penalised_value_and_grad(
    losses: Callable[..., tuple[Array, Any, Any]],
    coefficient: str = "gradient-norm",
    floor: float | None = None,
    felt: bool = False,
) -> Callable[..., tuple[Penalised, Any]]:
    """Gradient of task loss + lambda * penalty, where lambda follows `rho` in one of three ways:

    - `gradient-norm` (the paper's default): lambda = rho * ||grad task|| / (||grad penalty|| + 1e-8), where each norm
      is `global_norm`, never below 1e-4: a penalty with a smaller gradient is felt less than rho says.
      By `floor`, for example 1e-12, lambda = rho * t / sqrt(p^2 + (floor * t)^2) with t and p the norms as they are: it
      does not depend on the scale of the loss. With `felt` the values say how strong the penalty was beside the task.
    - `loss-ratio`: lambda = rho * |task| / (penalty + 1e-8).
    - `fixed`: lambda = rho.

    `losses(params, *args)` returns (task loss, penalty, aux); the result is called as `(params, rho, *args)` and
    returns (values, gradient). `rho` may be traced and of any sign; 0 gives the task's gradient bit for bit. A
    penalty that is a tuple of terms has a lambda for each, and `rho` may be a tuple too: by one lambda for all, the
    term with the longest gradient would be the only one that is felt.

    There is one forward pass once compiled. Where lambda is known from the values, one backward pass follows;
    `gradient-norm` needs both gradients, each by a backward pass of its own: one pass with two stacked cotangents
    multiplies other shapes and so rounds the task's gradient differently.
    """
    if coefficient not in ("gradient-norm", "loss-ratio", "fixed"):
        raise ValueError(f"coefficient {coefficient!r} is not known; use gradient-norm, loss-ratio or fixed")
    if floor is not None and not 0 < floor < 1:
        raise ValueError(f"floor is {floor}, wanted a small number above 0 such as 1e-12, or None for the released one")
    if coefficient != "gradient-norm" and (felt or floor is not None):
        raise ValueError(f"coefficient {coefficient!r} knows no floor and no felt ratio; use gradient-norm")

    def value_and_grad(params: Any, rho: Any, *args: Any) -> tuple[Penalised, Any]:
        for one in rho if isinstance(rho, tuple) else (rho,):
            _strength(one)

        def function(params: Any) -> tuple[Array, Any, Any]:
            return _three(losses(params, *args))

        if coefficient == "gradient-norm":
            return _by_gradient_norms(function, params, rho, floor, felt)
        return _by_values(function, params, rho, coefficient == "loss-ratio")

    return value_and_grad


def _by_gradient_norms(
    function: Callable[[Any], tuple[Array, Any, Any]], params: Any, rho: Any, floor: float | None, felt: bool
) -> tuple[Penalised, Any]:
    """Each gradient by its own backward pass: no work on cotangents that are zero, and the task's gradient is compiled
    as it would be alone. The compiler finds that both share the forward pass."""
    (loss, aux), task = jax.value_and_grad(lambda params: function(params)[::2], has_aux=True)(params)
    penalty, pull = jax.vjp(lambda params: function(params)[1], params)
    task = jax.lax.optimization_barrier(task)  # nothing after it may change how it is rounded
    size, grad = global_norm(task), task
    if isinstance(penalty, tuple):  # a backward pass for each
        pulled = [jax.grad(lambda p, i=i: function(p)[1][i])(params) for i in range(len(penalty))]
    else:
        pulled = list(pull(jnp.ones_like(penalty)))
    weights, found = [], []
    square = sum_of_squares(task) if felt or floor is not None else jnp.zeros(())  # of no use otherwise
    for ratio, extra in zip(_for_each(rho, penalty), pulled, strict=True):
        if floor is None:
            weights.append(ratio * size / (global_norm(extra) + 1e-8))
        else:
            weights.append(_relative(ratio, square, sum_of_squares(extra), floor))
        found.append(_felt(weights[-1], sum_of_squares(extra), square) if felt else None)
        grad = jax.tree.map(partial(_added, ratio, weights[-1]), grad, extra)
    strength = _like(penalty, found) if felt else None
    return Penalised(loss, penalty, _like(penalty, weights), aux, strength), grad


def _by_values(
    function: Callable[[Any], tuple[Array, Any, Any]], params: Any, rho: Any, by_ratio: bool
) -> tuple[Penalised, Any]:
    """lambda = rho, or rho * |task| / penalty: known before the one backward pass."""

    def both(params: Any) -> tuple[tuple[Array, Any], Any]:
        loss, penalty, aux = function(params)
        return (loss, penalty), aux

    (loss, penalty), pull, aux = jax.vjp(both, params, has_aux=True)
    one = jnp.ones_like(loss)
    weights = [
        ratio * (jnp.abs(loss) / (jnp.maximum(term, 0) + 1e-8) if by_ratio else one)
        for ratio, term in zip(_for_each(rho, penalty), jax.tree.leaves(penalty), strict=True)
    ]
    weight = _like(penalty, weights)
    (grad,) = pull((one, weight))
    return Penalised(loss, penalty, weight, aux), grad


def _like(penalty: Any, found: list[Any]) -> Any:
    """A tuple where the penalty is one."""
    return tuple(found) if isinstance(penalty, tuple) else found[0]
