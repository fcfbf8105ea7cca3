"""The SPHERE penalty: how far the Gram matrix of the gate-weighted expert features is from a multiple of the identity.

A penalty needs three numbers of A = Phi^T Phi / N [m, m]: its trace, its squared Frobenius norm and m. Three routes give
them, and the cheapest is taken: the feature Gram (m small), the sample Gram (N small), and the routed Gram, which looks
only at the N*K tokens that were routed and whose cost does not depend on the number of experts.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from sphere.checks import checked, finite, known, nonzero


class Gram(NamedTuple):
    """What a penalty needs to know of an SPSD matrix A."""

    trace: Float[Array, ""]
    square: Float[Array, ""]  # ||A||_F^2
    size: int  # m


def anisotropy(gram: Gram) -> Float[Array, ""]:
    """||A - (tr(A) / m) I||_F^2 = ||A||_F^2 - tr(A)^2 / m: the SPHERE penalty."""
    return gram.square - gram.trace**2 / gram.size


def fixed_scale(gram: Gram, alpha: float | Array) -> Float[Array, ""]:
    """||A - alpha I||_F^2 = ||A||_F^2 - 2 alpha tr(A) + alpha^2 m: a target scale that does not follow the batch."""
    return gram.square - 2 * alpha * gram.trace + alpha**2 * gram.size


def scale_free(gram: Gram) -> Float[Array, ""]:
    """||A / (tr(A) / m) - I||_F^2 / m = m ||A||_F^2 / tr(A)^2 - 1; 0 for A = 0.

    It does not change when A is scaled, so its gradient cannot be followed by shrinking the features. A trace below 1e-12
    counts as 0: float32 holds neither its square nor the gradient's third power.
    """
    dead = gram.trace < 1e-12
    trace = jnp.where(dead, 1.0, gram.trace)
    return jnp.where(dead, 0.0, gram.size * (gram.square / trace / trace) - 1)


@jax.custom_jvp
def rows_by_rows(x: Float[Array, "n m"]) -> Float[Array, "n n"]:
    """x x^T. Its derivative is one product, not two: dx x^T and its transpose; so is the backward pass."""
    return x @ x.T


@rows_by_rows.defjvp
def _rows_by_rows_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    half = tangents[0] @ primals[0].T
    return rows_by_rows(*primals), half + half.T


def gram(phi: Float[Array, "n m"]) -> Gram:
    """Of A = Phi^T Phi / N, by the smaller of the feature Gram [m, m] and the sample Gram [N, N]."""
    n, m = phi.shape
    a = rows_by_rows(phi.T if m <= n else phi) / n
    return Gram(jnp.trace(a), jnp.sum(a * a), m)


def routed_gram(
    features: Float[Array, "n k width"], experts: Int[Array, "n k"], num_experts: int, route: str = "auto"
) -> Gram:
    """Of the same A, from the routed tokens alone: row i of Phi holds features[i, k] in the block of experts[i, k].

    N (Phi Phi^T / N)_ij = sum over k, k' of [experts_ik = experts_jk'] features_ik . features_jk'. Slots that name an expert
    outside 0 .. num_experts - 1 count as empty.
    """
    n, k, width = features.shape
    if route == "auto":
        # multiplications; for many slots per sample the blocks of the dense Phi are the cheaper way to skip zeros
        cost = {
            "routed": (n * k) ** 2 * width,
            "dense": n * num_experts * width * min(n, num_experts * width),
        }
        route = min(cost, key=lambda name: cost[name])
    if route == "dense":
        return gram(spread(features, experts, num_experts).reshape(n, -1))
    used = (experts >= 0) & (experts < num_experts)
    tokens = jnp.where(used[:, :, None], features, 0).reshape(n * k, width)
    owner = experts.reshape(n * k)
    products = jnp.where(owner[:, None] == owner[None, :], rows_by_rows(tokens), 0)
    a = jnp.sum(products.reshape(n, k, n, k), axis=(1, 3)) / n
    return Gram(jnp.trace(a), jnp.sum(a * a), num_experts * width)


def spread(
    features: Float[Array, "n k width"], experts: Int[Array, "n k"], num_experts: int
) -> Float[Array, "n experts width"]:
    """Features by expert, zeros where an expert was not chosen: Phi before it is flattened."""
    rows = jnp.arange(features.shape[0])[:, None]
    experts = jnp.where(
        experts < 0, num_experts, experts
    )  # which would count from the end; beyond it, they are dropped
    empty = jnp.zeros((features.shape[0], num_experts, features.shape[2]), features.dtype)
    return empty.at[rows, experts].add(features, mode="drop")


def block_squares(phi: Float[Array, "n experts width"]) -> Float[Array, "experts experts"]:
    """||A_ee'||_F^2 for every pair of experts, A_ee' = Phi_e^T Phi_e' / N; by sample or feature Gram, the cheaper."""
    n, experts, width = phi.shape
    if n * (width + experts) < experts * width**2:
        samples = jnp.einsum("neh,meh->enm", phi, phi).reshape(experts, n * n) / n
        return samples @ samples.T
    return jnp.sum(jnp.square(jnp.einsum("neh,nfk->efhk", phi, phi) / n), axis=(2, 3))


def kronecker_gram(a: Gram, g: Gram) -> Gram:
    """Of A kron G: traces, squared norms and sizes multiply."""
    return Gram(a.trace * g.trace, a.square * g.square, a.size * g.size)


def khatri_rao_gram(phi: Float[Array, "n experts width"], psi: Float[Array, "n experts outer"]) -> Gram:
    """Of the block Khatri-Rao product A * G with blocks A_ee' kron G_ee', never formed:
    tr = sum_e tr(A_ee) tr(G_ee), ||.||_F^2 = sum_ee' ||A_ee'||_F^2 ||G_ee'||_F^2."""
    n, experts, width = phi.shape
    traces = [jnp.sum(jnp.square(v), axis=(0, 2)) / n for v in (phi, psi)]
    square = jnp.sum(block_squares(phi) * block_squares(psi))
    return Gram(jnp.sum(traces[0] * traces[1]), square, experts * width * psi.shape[2])


def per_expert(phi: Float[Array, "n experts width"]) -> Float[Array, ""]:
    """sum_e ||A_ee - (tr(A_ee) / d) I||_F^2: each expert by itself, cross-expert blocks ignored."""
    stats = jax.vmap(lambda rows: gram(rows)[:2], in_axes=1)(phi)
    return jnp.sum(stats[1] - stats[0] ** 2 / phi.shape[2])


def _tokens_fit(arguments: Mapping[str, Any]) -> None:
    features, experts, number = (arguments[name] for name in ("features", "experts", "num_experts"))
    if number < 1 or features.shape[1] > number:
        raise ValueError(
            f"features have {features.shape[1]} chosen experts per sample and num_experts is {number}, "
            "wanted at most as many as there are; pass [n, k, width] with k <= num_experts"
        )
    if np.shape(experts) != features.shape[:2]:
        raise ValueError(
            f"experts has shape {np.shape(experts)}, wanted {features.shape[:2]}, the first two axes of features; "
            "pass the index of each chosen expert"
        )
    if not jnp.issubdtype(jnp.asarray(experts).dtype, jnp.integer):
        raise ValueError(
            f"experts has numbers of type {jnp.asarray(experts).dtype}, wanted integers: which experts were chosen, not how "
            "much they weigh; weights belong to features"
        )
    if known(experts) and not (np.min(experts) >= 0 and np.max(experts) < number):
        raise ValueError(
            f"experts holds numbers from {np.min(experts)} to {np.max(experts)}, wanted 0 to {number - 1}; "
            "pass indices, as jax.lax.top_k gives them"
        )


def _nonzero(dimensions: int) -> Callable[[str, Any], Array]:
    def check(name: str, value: Any) -> Array:
        array = finite(name, value, dimensions)
        nonzero(name, value)
        return array

    return check


@checked(phi=_nonzero(2))
def sphere_penalty(phi: Float[Array, "n m"]) -> Float[Array, ""]:
    """||A - (tr(A)/m) I||_F^2 with A = phi^T phi / n, for phi [n samples, m features].

    For a Mixture of Experts phi holds, side by side, the features of every expert times its gate weight, zeros for an expert
    that was not chosen; for a dense network, the last hidden features. Zero features have penalty 0 (outside jit they
    are refused: they mean a dead network).
    """
    return anisotropy(gram(phi))


@checked(
    _tokens_fit,
    features=_nonzero(3),
    experts=lambda _, value: jnp.asarray(value) if isinstance(value, list | tuple) else value,
)
def routed_penalty(
    features: Float[Array, "n k width"], experts: Int[Array, "n k"], num_experts: int
) -> Float[Array, ""]:
    """The same penalty from the chosen experts alone, at a cost that does not depend on how many there are.

    `features[i, j]` are the features of sample i's j-th chosen expert times its gate weight, `experts[i, j]` says which
    expert that is (0 to num_experts - 1; inside jit, where others cannot be refused, such features count for nothing).
    """
    return anisotropy(routed_gram(features, experts, num_experts))


# The coefficient of the penalty -----------------------------------------------------------------------------------------


class Penalised(NamedTuple):
    """Values at the parameters before the step."""

    loss: Float[Array, ""]
    penalty: Any  # a number, or a tuple where the penalty has several terms
    coefficient: Any  # lambda in L = L_task + lambda * L_penalty, one for each term
    aux: Any
    felt: Any = None  # lambda ||grad penalty|| / ||grad task||, where asked for; one for each term


def sum_of_squares(tree: Any) -> Float[Array, ""]:
    """Over all leaves: row by row, then the rows of all of them at once. Leaf by leaf a GPU needs two kernels for each. In
    float32 at least: squares of half precision vanish below 2e-4."""
    leaves = jax.tree.leaves(tree)
    squares = [jnp.square(leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))) for leaf in leaves]
    rows = [jnp.sum(square, axis=-1).reshape(-1) if square.ndim > 1 else square.reshape(-1) for square in squares]
    return jnp.sum(jnp.concatenate(rows))


def global_norm(tree: Any) -> Float[Array, ""]:
    """sqrt(sum of squares + 1e-8) over all leaves: never below 1e-4. The 1e-8 is the released code's, so that 0 has a
    gradient."""
    return jnp.sqrt(sum_of_squares(tree) + 1e-8)


def _returning_three(function: Callable) -> Callable:
    def checked(*args: Any) -> tuple[Array, Any, Any]:
        result = function(*args)
        if not isinstance(result, tuple) or len(result) != 3:
            raise ValueError("the function must return (task loss, penalty, aux); aux may be None")
        return result

    return checked


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
    return rho * jnp.sqrt(jnp.where(bounded > 0, task / jnp.where(bounded > 0, bounded, 1), 0))


def penalised_value_and_grad(
    function: Callable[..., tuple[Array, Any, Any]],
    coefficient: str = "gradient-norm",
    floor: float | None = None,
    felt: bool = False,
) -> Callable[..., tuple[Penalised, Any]]:
    """Gradient of task loss + lambda * penalty, where lambda follows `rho` in one of three ways:

    - `gradient-norm` (the paper's default): lambda = rho * ||grad task|| / (||grad penalty|| + 1e-8), where each norm is
      `global_norm`, never below 1e-4: a penalty with a smaller gradient is felt less than rho says
      By `floor`, for example 1e-12, lambda = rho * t / sqrt(p^2 + (floor * t)^2) with t and p the norms as they are: it
      does not depend on the scale of the loss. With `felt` the values say how strong the penalty was beside the task
    - `loss-ratio`: lambda = rho * |task| / (penalty + 1e-8)
    - `fixed`: lambda = rho

    `function(params, *args)` returns (task loss, penalty, aux); the result is called as `(params, rho, *args)` and returns
    (values, gradient). `rho` may be traced and of any sign; 0 gives the task's gradient bit for bit. A penalty that is a tuple
    of terms has a lambda for each, and `rho` may be a tuple too: by one lambda for all, the term with the longest gradient
    would be the only one that is felt.

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
    function = _returning_three(function)

    def value_and_grad(params: Any, rho: Any, *args: Any) -> tuple[Penalised, Any]:
        for one in rho if isinstance(rho, tuple) else (rho,):
            _strength(one)
        if coefficient == "gradient-norm":
            # Each by its own backward pass: no work on cotangents that are zero, and the task's gradient is compiled
            # as it would be alone. The compiler finds that both share the forward pass.
            task_of = jax.value_and_grad(lambda params: function(params, *args)[::2], has_aux=True)
            (loss, aux), task = task_of(params)
            penalty, pull = jax.vjp(lambda params: function(params, *args)[1], params)
            task = jax.lax.optimization_barrier(task)  # nothing after it may change how it is rounded
            size, grad = global_norm(task), task
            if isinstance(penalty, tuple):  # a backward pass for each, without work on cotangents that are zero
                pulled = [jax.grad(lambda p, i=i: function(p, *args)[1][i])(params) for i in range(len(penalty))]
            else:
                pulled = list(pull(jnp.ones_like(penalty)))
            ratios, weights, found = _for_each(rho, penalty), [], []
            square = sum_of_squares(task) if felt or floor is not None else None
            for ratio, extra in zip(ratios, pulled, strict=True):
                if floor is None:
                    weights.append(ratio * size / (global_norm(extra) + 1e-8))
                else:
                    weights.append(_relative(ratio, square, sum_of_squares(extra), floor))
                found.append(jnp.abs(weights[-1]) * jnp.sqrt(sum_of_squares(extra) / square) if felt else None)
                grad = jax.tree.map(partial(_added, ratio, weights[-1]), grad, extra)
            weight = tuple(weights) if isinstance(penalty, tuple) else weights[0]
            strength = (tuple(found) if isinstance(penalty, tuple) else found[0]) if felt else None
        else:

            def both(params: Any) -> tuple[tuple[Array, Any], Any]:
                loss, penalty, aux = function(params, *args)
                return (loss, penalty), aux

            (loss, penalty), pull, aux = jax.vjp(both, params, has_aux=True)
            one = jnp.ones_like(loss)
            weights = [
                ratio * (jnp.abs(loss) / (jnp.maximum(term, 0) + 1e-8) if coefficient == "loss-ratio" else one)
                for ratio, term in zip(_for_each(rho, penalty), jax.tree.leaves(penalty), strict=True)
            ]
            weight = tuple(weights) if isinstance(penalty, tuple) else weights[0]
            (grad,), strength = pull((one, weight)), None
        return Penalised(loss, penalty, weight, aux, strength), grad

    return value_and_grad
