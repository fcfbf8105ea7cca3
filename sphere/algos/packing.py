"""How parameters travel through a scan of many small updates: few arrays, in the layout in which their gradients arise.

A minibatch update of small networks is bound by the number of kernels, and most of them would be Adam and norms, leaf
by leaf. So the leaves that are small lie side by side in one vector. And the gradient of a kernel [inner, outer] arises
as [outer, inner] (how JAX transposes a product); kept in that order, no step turns it round and writes happen in place.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from sphere.nets.mlp import transpose_kernel

SMALL = 2**14
"""Entries up to which a leaf goes into the common vector; above, one more kernel costs less than a copy."""


def packing(tree: Any) -> tuple[Callable[[Any], tuple[Array, ...]], Callable[[tuple[Array, ...]], Any]]:
    """`pack` and `unpack` for trees like this one: (vector of the small leaves, large leaf, large leaf, ...).

    The gradient through `unpack` comes packed, without a sum over slices. It has no forward-mode derivative.
    """
    leaves, structure = jax.tree.flatten(tree)
    shapes = [jax.eval_shape(transpose_kernel, leaf).shape for leaf in leaves]
    sizes = [math.prod(shape) for shape in shapes]
    small = [i for i, size in enumerate(sizes) if size <= SMALL]
    large = [i for i, size in enumerate(sizes) if size > SMALL]

    def pack(tree: Any) -> tuple[Array, ...]:
        parts = [transpose_kernel(leaf) for leaf in jax.tree.leaves(tree)]
        vector = [jnp.concatenate([parts[i].reshape(-1) for i in small])] if small else []
        return (*vector, *(parts[i] for i in large))

    def split(parts: tuple[Array, ...]) -> Any:
        found: dict[int, Array] = dict(zip(large, parts[len(parts) - len(large) :], strict=True))
        begin = 0
        for i in small:
            found[i] = parts[0][begin : begin + sizes[i]].reshape(shapes[i])
            begin += sizes[i]
        return jax.tree.unflatten(structure, [transpose_kernel(found[i]) for i in range(len(leaves))])

    unpack = jax.custom_vjp(split)
    unpack.defvjp(lambda parts: (split(parts), None), lambda _, cotangent: (pack(cotangent),))
    return pack, unpack
