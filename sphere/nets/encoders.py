"""Encoders of images: bytes [height, width, channel] in, features out. An IMPALA ResNet, and a ResNet-18.

Images stay bytes until here. A convolution is recorded as a layer whose slots are the positions of its output, so that
the exact NTK has its share too (`sphere/ntk.py`). Paddings are half a window on every side, as PyTorch counts them.
"""

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PRNGKeyArray

from sphere.checks import checked
from sphere.errors import UserError
from sphere.nets.mlp import MLP, Linear, readable
from sphere.nets.moe import MoE
from sphere.nets.trace import Recorder, Trace, Window

Images = Float[Array, "n _ _ _"]  # height, width, channel
EncoderName = Literal["impala", "resnet-18", "shared"]

RGB = 3
GROUP = 16
"""Channels of a group of GroupNorm."""


def convolve(x: Images, kernel: Float[Array, "size size inner outer"], stride: int) -> Images:
    half = (kernel.shape[0] // 2,) * 2
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), (half, half), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def max_pool(x: Images) -> Images:
    """The largest of every 3 x 3 window, at every second position."""
    lowest = -jnp.inf
    return jax.lax.reduce_window(x, lowest, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))


class Convolution(eqx.Module):
    """LeCun-normal kernel, zero bias."""

    kernel: Float[Array, "size size inner outer"]
    bias: Float[Array, " outer"] | None
    stride: int = eqx.field(static=True)

    def __init__(self, inner: int, outer: int, size: int = 3, stride: int = 1, *, bias: bool = True, key: PRNGKeyArray):
        self.kernel = jax.nn.initializers.lecun_normal()(key, (size, size, inner, outer))
        self.bias = jnp.zeros(outer) if bias else None
        self.stride = stride

    def __call__(self, x: Images, recorder: Recorder) -> Images:
        y = convolve(x, self.kernel, self.stride)
        if self.bias is not None:
            y = y + self.bias[None, None, None, :]
        window = Window(x.shape[1], x.shape[2], self.kernel.shape[0], self.stride)
        return recorder.convolution(x, y, window, self.bias is not None)


class GroupNorm(eqx.Module):
    """y = scale * (x - mean) / sqrt(var + eps) + bias over positions and the channels of a group."""

    scale: Float[Array, " channel"]
    bias: Float[Array, " channel"]

    def __init__(self, channels: int):
        self.scale, self.bias = jnp.ones(channels), jnp.zeros(channels)

    def __call__(self, x: Images, recorder: Recorder) -> Images:
        n, height, width, channels = x.shape
        groups = x.reshape(n, height * width, -1, GROUP)
        apart = groups - jnp.mean(groups, axis=(1, 3), keepdims=True)
        variance = jnp.mean(jnp.square(apart), axis=(1, 3), keepdims=True)
        rows = (apart * jax.lax.rsqrt(variance + 1e-5)).reshape(-1, channels)  # 1e-5: PyTorch's default
        record = recorder.tokens(height * width).part("shared")
        return record("scale", rows, self.scale[None] * rows + self.bias[None], True).reshape(x.shape)


class Residual(eqx.Module):
    """x + convolution(relu(convolution(relu(x))))."""

    first: Convolution
    second: Convolution

    def __init__(self, channels: int, *, key: PRNGKeyArray):
        one, two = jax.random.split(key)
        self.first, self.second = Convolution(channels, channels, key=one), Convolution(channels, channels, key=two)

    def __call__(self, x: Images, recorder: Recorder) -> Images:
        return x + self.second(jax.nn.relu(self.first(jax.nn.relu(x), recorder)), recorder)


class Stage(eqx.Module):
    """A convolution, half the size, two residual blocks."""

    first: Convolution
    blocks: tuple[Residual, ...]

    def __init__(self, inner: int, outer: int, *, key: PRNGKeyArray):
        keys = jax.random.split(key, 3)
        self.first = Convolution(inner, outer, key=keys[0])
        self.blocks = tuple(Residual(outer, key=k) for k in keys[1:])

    def __call__(self, x: Images, recorder: Recorder) -> Images:
        x = max_pool(self.first(x, recorder))
        for block in self.blocks:
            x = block(x, recorder)
        return x


class Basic(eqx.Module):
    """ResNet-18's block: relu(x + norm(convolution(relu(norm(convolution(x)))))), x by a 1 x 1 convolution where its
    size changes."""

    first: Convolution
    first_norm: GroupNorm
    second: Convolution
    second_norm: GroupNorm
    short: Convolution | None
    short_norm: GroupNorm | None

    def __init__(self, inner: int, outer: int, stride: int, *, key: PRNGKeyArray):
        one, two, three = jax.random.split(key, 3)
        self.first = Convolution(inner, outer, 3, stride, bias=False, key=one)
        self.second = Convolution(outer, outer, 3, bias=False, key=two)
        self.first_norm, self.second_norm = GroupNorm(outer), GroupNorm(outer)
        same = stride == 1 and inner == outer
        self.short = None if same else Convolution(inner, outer, 1, stride, bias=False, key=three)
        self.short_norm = None if same else GroupNorm(outer)

    def __call__(self, x: Images, recorder: Recorder) -> Images:
        h = jax.nn.relu(self.first_norm(self.first(x, recorder), recorder))
        h = self.second_norm(self.second(h, recorder), recorder)
        if self.short is not None and self.short_norm is not None:
            x = self.short_norm(self.short(x, recorder), recorder)
        return jax.nn.relu(x + h)


class Encoder(eqx.Module):
    """What all have in common: an image of bytes, perhaps with numbers below it (`sphere.envs.frame_stack`)."""

    input_shape: tuple[int, ...] = eqx.field(static=True)
    numbers: int = eqx.field(static=True)
    """Beside every frame."""

    @property
    def features(self) -> int:
        """Numbers that come out."""
        return self.width + self.numbers * (self.input_shape[2] // RGB)

    @property
    def width(self) -> int:
        raise NotImplementedError

    def seen(self, image: Images, recorder: Recorder) -> Float[Array, "n width"]:
        raise NotImplementedError

    def __call__(self, x: Num[Array, "n rows width channel"], recorder: Recorder) -> Float[Array, "n features"]:
        rows = x.shape[1] - (self.numbers > 0)
        features = self.seen(x[:, :rows] / jnp.asarray(255.0, self.precision), recorder)
        if not self.numbers:
            return features
        beside = jnp.moveaxis(x[:, -1].reshape(len(x), x.shape[2], -1, RGB), 2, 1)  # [n, frame, width, colour]
        words = beside.reshape(len(x), -1, RGB * x.shape[2])[:, :, : 4 * self.numbers].reshape(len(x), -1, 4)
        numbers = jax.lax.bitcast_convert_type(words.astype(jnp.uint8), jnp.float32)
        return jnp.concatenate([features, numbers.astype(features.dtype)], axis=1)

    @property
    def precision(self) -> Any:
        return jax.tree.leaves(self)[0].dtype


class Impala(Encoder):
    """Three stages of 16, 32 and 32 channels, the mean over positions, a layer of 256 units."""

    channels: ClassVar[tuple[int, ...]] = (16, 32, 32)
    stages: tuple[Stage, ...]
    last: Linear

    def __init__(self, shape: tuple[int, ...], numbers: int, *, key: PRNGKeyArray):
        keys = jax.random.split(key, len(self.channels) + 1)
        self.input_shape, self.numbers = shape, numbers
        pairs = zip((shape[2], *self.channels[:-1]), self.channels, keys[:-1], strict=True)
        self.stages = tuple(Stage(inner, outer, key=k) for inner, outer, k in pairs)
        self.last = Linear(self.channels[-1], 256, key=keys[-1])

    @property
    def width(self) -> int:
        return self.last.kernel.shape[-1]

    def seen(self, image: Images, recorder: Recorder) -> Float[Array, "n width"]:
        for stage in self.stages:
            image = stage(image, recorder)
        pooled = jnp.mean(jax.nn.relu(image), axis=(1, 2))
        return jax.nn.relu(recorder.part("shared")("linear", pooled, self.last(pooled), True))


class ResNet18(Encoder):
    """Of He et al. with GroupNorm instead of BatchNorm, and the mean over positions: 512 features."""

    first: Convolution
    norm: GroupNorm
    blocks: tuple[Basic, ...]

    def __init__(self, shape: tuple[int, ...], numbers: int, *, key: PRNGKeyArray):
        keys = jax.random.split(key, 9)
        self.input_shape, self.numbers = shape, numbers
        self.first, self.norm = Convolution(shape[2], 64, 7, 2, bias=False, key=keys[0]), GroupNorm(64)
        inner, outer = (64, 64, 64, 128, 128, 256, 256, 512), (64, 64, 128, 128, 256, 256, 512, 512)
        self.blocks = tuple(
            Basic(a, b, 1 if a == b else 2, key=k) for a, b, k in zip(inner, outer, keys[1:], strict=True)
        )

    @property
    def width(self) -> int:
        return self.blocks[-1].second.kernel.shape[-1]

    def seen(self, image: Images, recorder: Recorder) -> Float[Array, "n width"]:
        h = max_pool(jax.nn.relu(self.norm(self.first(image, recorder), recorder)))
        for block in self.blocks:
            h = block(h, recorder)
        return jnp.mean(h, axis=(1, 2))


ENCODERS: dict[str, tuple[type[Encoder], int]] = {"impala": (Impala, 8), "resnet-18": (ResNet18, 32)}
"""By name, and the pixels of a side below which nothing would be left to look at."""


def build_encoder(name: str, shape: tuple[int, ...], numbers: int, *, key: PRNGKeyArray) -> Any:
    if len(shape) != 3:
        raise UserError(
            f"the encoder {name} reads images, and an observation is {shape[0]} numbers; leave the encoder out, "
            "or choose a suite of images, as metaworld-pixels"
        )
    kind, least = ENCODERS[name]
    sides = shape[0] - (numbers > 0), shape[1]
    if min(sides) < least:
        raise UserError(
            f"the encoder {name} needs images of {least} pixels a side or more, got {sides[0]} x {sides[1]}; "
            "choose a larger image_size" + (", or the encoder impala" if name != "impala" else "")
        )
    return kind(shape, numbers, key=key)  # type: ignore[call-arg]


class EncoderTrunk(eqx.Module):
    """An encoder, then a network on its features."""

    encoder: Any
    trunk: MLP | MoE

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return self.encoder.input_shape

    @checked(readable)
    def __call__(self, x: Array, taps: tuple[Array, ...] | None = None) -> tuple[Float[Array, "n outer"], Trace]:
        recorder = Recorder(taps)
        return self.trunk.mix(self.encoder(x, recorder), recorder), recorder.finish()
