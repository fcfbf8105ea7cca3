"""Linear layers and the multilayer perceptron, alone or as a bank with a leading expert axis."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sphere.checks import checked
from sphere.nets.trace import Mixture, Recorder, Trace

DEEPEST = 1000
"""Layers at most: every one is compiled, and more of them would never end."""
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "gelu": partial(jax.nn.gelu, approximate=False),
}


def transpose_kernel(leaf: Array) -> Array:
    """A kernel [inner, outer] as [outer, inner], the order in which JAX forms its gradient; a vector as it is."""
    return jnp.swapaxes(leaf, -1, -2) if leaf.ndim >= 2 else leaf


def readable(arguments: Mapping[str, Any]) -> None:
    """A network is called with inputs of the shape that it was built for, one for each sample."""
    found, shape = np.shape(arguments["x"]), arguments["self"].input_shape
    if found[1:] != shape or not found:
        each = f"a row of {shape[0]} numbers" if len(shape) == 1 else f"an array of shape {shape}"
        raise ValueError(
            f"x has shape {found}, wanted [n, {', '.join(map(str, shape))}]: {each} for each sample; "
            "give the observations that the network was built for, one state as x[None], several batches by jax.vmap"
        )


class Linear(eqx.Module):
    """y = x W + b. LeCun-normal kernel and zero bias, at outputs too, as in the released code (no orthogonal start)."""

    kernel: Float[Array, "*bank inner outer"]
    bias: Float[Array, "*bank outer"] | None

    def __init__(self, inner: int, outer: int, *, bias: bool = True, key: PRNGKeyArray):
        self.kernel = jax.nn.initializers.lecun_normal()(key, (inner, outer))
        self.bias = jnp.zeros(outer) if bias else None

    def __call__(self, x: Float[Array, "*batch n inner"]) -> Float[Array, "*batch2 n outer"]:
        if self.kernel.ndim == 3 and self.kernel.shape[0] == 1:
            # A bank of one is the plain layer: the same product, so that one expert equals the MLP bit for bit.
            y = jnp.matmul(x[0] if x.ndim == 3 else x, self.kernel[0])[None]
        else:
            y = jnp.matmul(x, self.kernel)
        return y if self.bias is None else y + self.bias[..., None, :]


class LayerNorm(eqx.Module):
    """y = scale * (x - mean) / sqrt(var + eps) + bias over the last axis."""

    scale: Float[Array, "*bank width"]
    bias: Float[Array, "*bank width"]

    def __init__(self, width: int):
        self.scale = jnp.ones(width)
        self.bias = jnp.zeros(width)

    @staticmethod
    def normalise(x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-6)  # 1e-6: the reference networks' (flax) default

    def affine(self, normal: Float[Array, "*batch n width"]) -> Float[Array, "*batch n width"]:
        return self.scale[..., None, :] * normal + self.bias[..., None, :]


class MLP(eqx.Module):
    """`depth` hidden layers of `width` units and a linear head; optional LayerNorm before the activation."""

    hidden: tuple[Linear, ...]
    norms: tuple[LayerNorm, ...]
    head: Linear
    activation: str = eqx.field(static=True)

    def __init__(
        self,
        inner: int,
        outer: int,
        width: int = 256,
        depth: int = 3,
        *,
        activation: str = "relu",
        layer_norm: bool = False,
        key: PRNGKeyArray,
    ):
        if min(inner, outer, width, depth) < 1:
            raise ValueError(f"sizes must be positive, not inner={inner}, outer={outer}, width={width}, depth={depth}")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation {activation!r} is not known; use one of {', '.join(ACTIVATIONS)}")
        sizes = [inner] + [width] * depth
        keys = jax.random.split(key, depth + 1)
        self.hidden = tuple(Linear(a, b, key=k) for a, b, k in zip(sizes[:-1], sizes[1:], keys[:-1], strict=True))
        self.norms = tuple(LayerNorm(width) for _ in range(depth)) if layer_norm else ()
        self.head = Linear(width, outer, key=keys[-1])
        self.activation = activation

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return (self.hidden[0].kernel.shape[-2],)

    def forward(self, x: Array, record: Callable[[str, Array, Array, bool], Array]) -> tuple[Array, tuple[Array, ...]]:
        """Output and features after each hidden layer, of a plain MLP or, with a leading axis, of a bank of them."""
        features = []
        for i, layer in enumerate(self.hidden):
            x = record("linear", x, layer(x), layer.bias is not None)
            if self.norms:
                normal = self.norms[i].normalise(x)
                x = record("scale", normal, self.norms[i].affine(normal), True)
            x = ACTIVATIONS[self.activation](x)
            features.append(x)
        return record("linear", x, self.head(x), self.head.bias is not None), tuple(features)

    def mix(self, x: Float[Array, "n inner"], recorder: Recorder) -> Float[Array, "n outer"]:
        """As a part of a larger network: a mixture of one expert."""
        output, features = self.forward(x, recorder.part("expert"))
        n = x.shape[0]
        recorder.close(
            Mixture(
                hidden=tuple(f[:, None] for f in features),
                weight=jnp.ones((n, 1), output.dtype),
                expert=jnp.zeros((n, 1), jnp.int32),
                expert_output=output[:, None],
                routing=None,
                num_experts=1,
                aligned=True,
                complete=True,
            )
        )
        return output

    @checked(readable)
    def __call__(
        self, x: Float[Array, "n inner"], taps: tuple[Array, ...] | None = None
    ) -> tuple[Float[Array, "n outer"], Trace]:
        recorder = Recorder(taps)
        return self.mix(x, recorder), recorder.finish()
