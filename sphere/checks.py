"""Bad arrays are stopped at the door, with a sentence that says what came, what was wanted and what to do.

Shapes are known while tracing, so they are checked everywhere. Values are only known outside `jit`, `grad`
and `vmap`: there a bad value raises, inside them each function documents the value that it gives instead.

`checked` wraps a function rather than standing in its body, because the wrapper then also runs before
jaxtyping's own shape check (which the tests switch on): the sentence is the same for everyone.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[str, Any], Any]


def checked(
    *agreements: Callable[[Mapping[str, Any]], Mapping[str, Any] | None], **checks: Check
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Passes the named arguments through their checks, which raise or return the argument as a jax array,
    and then all arguments together to the agreements, which raise, or return those that they change, or do nothing."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            for name, check in checks.items():
                bound.arguments[name] = check(name, bound.arguments[name])
            for agreement in agreements:
                bound.arguments.update(agreement(bound.arguments) or {})
            return function(*bound.args, **bound.kwargs)

        return call

    return wrap


def known(value: Any) -> bool:
    """Whether the numbers can be looked at now: not inside jit, grad or vmap."""
    return not isinstance(value, jax.core.Tracer)


def rounding(dtype: Any) -> float:
    """Relative size below which a wrong sign or an asymmetry is put down to rounding.

    0.005 in float32, ten times the step of the TF32 products that a GPU uses by default; 6e-6 in float64.
    """
    return float(jnp.finfo(dtype).eps) ** (1 / 3)


def finite(name: str, value: Any, dimensions: int) -> Array:
    """A non-empty real array of so many dimensions without NaN or infinity, in float32 or float64."""
    value = value if hasattr(value, "dtype") else np.asarray(value)
    shape, dtype = value.shape, jnp.result_type(value)
    if len(shape) != dimensions:
        few = ("a number", "a vector", "one matrix", "three dimensions")
        wanted = few[dimensions] if dimensions < len(few) else f"{dimensions} dimensions"
        raise ValueError(f"{name} has shape {shape}, wanted {wanted}; for a batch use jax.vmap, else reshape it")
    if 0 in shape:
        raise ValueError(f"{name} is empty, its shape is {shape}, wanted at least one entry; leave it out instead")
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise ValueError(f"{name} is {dtype}, wanted real numbers; take its real part or its modulus first")
    if known(value):
        # numpy, not jax: inside a jit even an operation on known numbers gives a tracer.
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite from here on
            bad = int(np.sum(~np.isfinite(np.asarray(value).astype(jnp.promote_types(dtype, jnp.float32)))))
        if bad:
            raise ValueError(
                f"{name} holds {bad} NaN or infinite numbers of {value.size}, wanted finite ones; "
                "look for a division by zero or a diverged loss before this call"
            )
    # LAPACK has no half precision, and integers have no logarithm.
    return jnp.asarray(value, jnp.promote_types(dtype, jnp.float32))


def filled(dimensions: int) -> Check:
    """Finite, and not every entry is zero."""

    def check(name: str, value: Any) -> Array:
        array = finite(name, value, dimensions)
        nonzero(name, value)
        return array

    return check


def nonzero(name: str, *values: Any) -> None:
    """Not every entry is zero: a spectrum without mass has no entropy."""
    if all(known(value) and not np.any(np.asarray(value)) for value in values):
        raise ValueError(
            f"{name} is all zeros, wanted at least one nonzero entry; "
            "look for dead units or for a mask that removed every sample"
        )


def nonnegative(name: str, values: Any) -> None:
    """No entry is negative beyond what rounding explains."""
    if not known(values):
        return
    found = np.asarray(values, np.result_type(np.asarray(values), np.float32))
    if found.min() < -rounding(found.dtype) * np.abs(found).max():
        raise ValueError(
            f"{name} reach down to {found.min():.3g} (up to {found.max():.3g}), wanted none below zero; "
            "a Gram matrix X^T X has no negative eigenvalues, for other matrices there is effective_rank"
        )


def in_range(name: str, value: Any, low: float, high: float, remedy: str) -> None:
    """A number, where it is known, lies between two others."""
    if known(value) and not low <= float(value) <= high:
        raise ValueError(f"{name} is {float(value):.6g}, wanted a number from {low:g} to {high:g}; {remedy}")


def same(what: str, left: Any, right: Any, remedy: str) -> None:
    """Two counts or shapes that have to agree."""
    if left != right:
        raise ValueError(f"{what} differ, {left} and {right}, wanted the same; {remedy}")


def agree(first: str, second: str, axes: int, remedy: str) -> Callable[[Mapping[str, Any]], None]:
    """Two arguments whose first so many axes have to be equally long."""

    def agreement(arguments: Mapping[str, Any]) -> None:
        left, right = arguments[first].shape, arguments[second].shape
        if left[:axes] != right[:axes]:
            raise ValueError(
                f"{first} has shape {left} and {second} {right}, wanted the same length along "
                f"{'the first axis' if axes == 1 else f'the first {axes} axes'}; {remedy}"
            )

    return agreement


def sizes_of(name: str, sizes: Sequence[int], dimension: int, of: str) -> None:
    """Block sizes are positive and add up to the dimension of the matrix that they cut."""
    if len(sizes) == 0 or min(sizes) < 1 or sum(sizes) != dimension:
        raise ValueError(
            f"{name}={tuple(sizes)} adds up to {sum(sizes)}, wanted positive sizes that add up to "
            f"{dimension}, the dimension of {of}; give the width of every expert's block in order"
        )


def weights(name: str, value: Any) -> Array:
    """A finite, non-zero vector without negative entries."""
    found = finite(name, value, 1)
    nonzero(name, value)
    nonnegative(f"the entries of {name}", value)
    return found


def real(dimensions: int) -> Check:
    """A finite array of so many dimensions, also all zeros."""
    return lambda name, value: finite(name, value, dimensions)


def matrix(name: str, value: Any) -> Array:
    """A finite, non-zero matrix of any shape."""
    found = finite(name, value, 2)
    nonzero(name, value)
    return found


def any_gram(name: str, value: Any) -> Array:
    """A finite, square, symmetric matrix, also all zeros; eigenvalues are checked once they are computed."""
    found = finite(name, value, 2)
    if found.shape[0] != found.shape[1]:
        raise ValueError(
            f"{name} has shape {found.shape}, wanted a square matrix; "
            "pass the Gram matrix X^T X, or use effective_rank, which takes any shape"
        )
    if known(value):
        numbers = np.asarray(value, found.dtype)
        asymmetry = np.abs(numbers - numbers.T).max()
        if asymmetry > rounding(found.dtype) * np.abs(numbers).max():
            raise ValueError(
                f"{name} differs from its transpose by up to {asymmetry:.3g}, wanted a symmetric matrix; "
                "pass the Gram matrix X^T X, or use effective_rank, which takes any matrix"
            )
    return found


def gram(name: str, value: Any) -> Array:
    """A finite, non-zero, square, symmetric matrix."""
    found = any_gram(name, value)
    nonzero(name, value)
    return found


def matrices(name: str, values: Any) -> list[Array]:
    """A sequence, possibly empty, of finite matrices."""
    return [finite(f"{name}[{index}]", value, 2) for index, value in enumerate(values)]
