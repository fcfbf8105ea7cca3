"""A Transformer encoder whose feed-forward parts are mixtures, as a classifier of images (ViT) or of text.

LayerNorm before each part or after it, learned positions, mean pooling, a linear head; no dropout, no class token.
Every token is routed by itself and none is dropped. Padding (id 0 of a text) is neither routed nor counted, unless a
setting says so: no token attends to it, it is not pooled, no expert gets it, and A of a penalty is the mean over the
other tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sphere.checks import checked
from sphere.errors import in_range
from sphere.nets.attention import Attention, Record
from sphere.nets.lookup import rows_of
from sphere.nets.mlp import DEEPEST, LayerNorm, Linear, readable
from sphere.nets.moe import MoE
from sphere.nets.trace import Recorder, Trace

PADDING = 0
"""The id of what fills a text up to its length."""
CHANNELS = 3


@dataclass(frozen=True)
class TransformerConfig:
    """The encoder around the mixtures. What a mixture is (experts, top_k, temperature, width and depth of an expert)
    is said by the network's other settings."""

    layers: int = 4
    """Blocks of attention and a mixture."""
    heads: int = 8
    width: int = 128
    """Numbers of a token; a multiple of heads."""
    patch: int = 4
    """Images: a token is a square of so many pixels a side."""
    softmax: Literal["chosen", "all"] = "chosen"
    """Weights of experts by a softmax over the chosen ones (the paper) or over all, of which
    the chosen ones' entries are kept (Switch, V-MoE). With top_k 1 and `chosen` every weight is 1: the router then
    learns nothing from the loss."""
    norm: Literal["before", "after"] = "before"
    """LayerNorm before attention and mixture and once more at the end (pre-LN), or after each of their sums with what
    went in (post-LN: the first Transformer, and the default of PyTorch's `nn.TransformerEncoderLayer`)."""
    masked: bool = True
    """Texts: padding is left out. False: it is a word like any other, attended to, routed and pooled."""
    word_deviation: float | None = None
    """Texts: standard deviation of the numbers in a word's vector at the start; default: 1 / sqrt(width), so that a
    vector has length 1. PyTorch's `nn.Embedding` has 1."""

    def __post_init__(self) -> None:
        in_range(
            self, {**dict.fromkeys(("heads", "width", "patch"), (1, None)), "layers": (1, DEEPEST)}, "transformer."
        )
        if self.width % self.heads:
            raise ValueError(
                f"transformer: heads={self.heads}, width={self.width}; want a width that is a multiple of heads"
            )
        if self.word_deviation is not None and not 0 < self.word_deviation < math.inf:
            raise ValueError(f"transformer: word_deviation={self.word_deviation}; want a number above 0")


class Lookup(eqx.Module):
    """Rows of a table by number."""

    table: Float[Array, "rows width"]

    def __init__(self, rows: int, width: int, deviation: float, *, key: PRNGKeyArray):
        self.table = deviation * jax.random.normal(key, (rows, width))

    def __call__(self, ids: Int[Array, " n"], record: Record) -> Float[Array, "n width"]:
        # a layer's input is of real numbers; float32 holds every id below 2**24
        return record("lookup", ids[:, None].astype(self.table.dtype), rows_of(self.table, ids), False)

    def first(self, number: int, samples: int, record: Record) -> Float[Array, "n width"]:
        """The first `number` rows in their order, for every sample."""
        ids = jnp.tile(jnp.arange(number, dtype=self.table.dtype), samples)
        return record("lookup", ids[:, None], jnp.tile(self.table[:number], (samples, 1)), False)


class WordEmbedding(eqx.Module):
    """Texts as rows of ids, 0 for padding; ids may come as real numbers."""

    words: Lookup
    tokens: int = eqx.field(static=True)
    masked: bool = eqx.field(static=True)

    def __init__(self, tokens: int, vocabulary: int, config: TransformerConfig, *, key: PRNGKeyArray):
        deviation = config.word_deviation or config.width**-0.5
        self.words = Lookup(vocabulary, config.width, deviation, key=key)
        self.tokens, self.masked = tokens, config.masked

    def up_to(self, tokens: int) -> "WordEmbedding":
        other = object.__new__(type(self))
        for name, value in (("words", self.words), ("tokens", tokens), ("masked", self.masked)):
            object.__setattr__(other, name, value)
        return other

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.tokens,)

    def real(self, x: Array) -> Bool[Array, "n tokens"] | None:
        return x.astype(jnp.int32) != PADDING if self.masked else None

    def __call__(self, x: Array, record: Record) -> Float[Array, "rows width"]:
        return self.words(x.astype(jnp.int32).reshape(-1), record)


def longest_text(net: Any) -> int | None:
    """Words of a text that a network reads; None: it reads none, or reads padding too."""
    readers = [node for node in jax.tree.leaves(net, is_leaf=_reads_words) if _reads_words(node)]
    return readers[0].tokens if len(readers) == 1 and readers[0].masked else None


def reading(net: Any, tokens: int) -> Any:
    """The same network for texts that are cut to so many words."""
    return jax.tree.map(lambda node: node.up_to(tokens) if _reads_words(node) else node, net, is_leaf=_reads_words)


def _reads_words(node: Any) -> bool:
    return isinstance(node, WordEmbedding)


class Patches(eqx.Module):
    """Square images as flat rows of numbers, in the order [height, width, channel]; a token is a square of pixels."""

    linear: Linear
    side: int = eqx.field(static=True)
    patch: int = eqx.field(static=True)

    def __init__(self, numbers: int, patch: int, width: int, *, key: PRNGKeyArray):
        self.side, self.patch = math.isqrt(numbers // CHANNELS), patch
        if CHANNELS * self.side**2 != numbers or self.side % patch:
            raise ValueError(
                f"an observation has {numbers} numbers, wanted a square image of {CHANNELS} channels whose side "
                f"is a multiple of patch={patch}; choose another patch, or a network without a transformer"
            )
        self.linear = Linear(CHANNELS * patch**2, width, key=key)

    @property
    def tokens(self) -> int:
        return (self.side // self.patch) ** 2

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (CHANNELS * self.side**2,)

    def real(self, x: Array) -> Bool[Array, "n tokens"] | None:
        return None

    def __call__(self, x: Array, record: Record) -> Float[Array, "rows width"]:
        number = self.side // self.patch
        squares = x.reshape(-1, number, self.patch, number, self.patch, CHANNELS)
        rows = jnp.moveaxis(squares, 2, 3).reshape(-1, self.patch**2 * CHANNELS)
        return record("linear", rows, self.linear(rows), True)


class Block(eqx.Module):
    """h + attention(norm(h)), then h + mixture(norm(h)); or norm(h + attention(h)), then norm(h + mixture(h))."""

    attention_norm: LayerNorm
    attention: Attention
    mixture_norm: LayerNorm
    mixture: MoE
    first: bool = eqx.field(static=True)
    """LayerNorm comes before, not after."""

    def __call__(
        self, h: Float[Array, "rows width"], tokens: int, real: Bool[Array, "n tokens"] | None, recorder: Recorder
    ) -> Float[Array, "rows width"]:
        record, rows = recorder.part("shared"), None if real is None else real.reshape(-1)

        def around(norm: LayerNorm, part: Callable[[Array], Array], h: Array) -> Array:
            return h + part(normed(norm, h, record)) if self.first else normed(norm, h + part(h), record)

        h = around(self.attention_norm, lambda x: self.attention(x, tokens, real, record), h)
        return around(self.mixture_norm, lambda x: self.mixture.mix(x, recorder, rows), h)


def normed(norm: LayerNorm, h: Float[Array, "rows width"], record: Record) -> Float[Array, "rows width"]:
    normal = norm.normalise(h)
    return record("scale", normal, norm.affine(normal), True)


class Transformer(eqx.Module):
    """Embedding and positions, blocks, LayerNorm if that is not the blocks' last, the mean over tokens, a linear
    head."""

    embed: WordEmbedding | Patches
    positions: Lookup
    blocks: tuple[Block, ...]
    norm: LayerNorm | None
    head: Linear

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return self.embed.input_shape

    @checked(readable)
    def __call__(self, x: Array, taps: tuple[Array, ...] | None = None) -> tuple[Float[Array, "n outer"], Trace]:
        recorder, tokens = Recorder(taps), self.embed.tokens
        by_token = recorder.tokens(tokens)
        record = by_token.part("shared")
        real = self.embed.real(x)
        h = self.embed(x, record) + self.positions.first(tokens, x.shape[0], record)
        for block in self.blocks:
            h = block(h, tokens, real, by_token)
        if self.norm is not None:
            h = normed(self.norm, h, record)
        pooled = mean_over_tokens(h.reshape(-1, tokens, h.shape[-1]), real)
        return recorder.part("shared")("linear", pooled, self.head(pooled), True), recorder.finish()


def mean_over_tokens(
    h: Float[Array, "n tokens width"], real: Bool[Array, "n tokens"] | None
) -> Float[Array, "n width"]:
    """Of those that are no padding; 0 where all are."""
    if real is None:
        return jnp.mean(h, axis=1)
    count = jnp.maximum(jnp.sum(real, axis=1, dtype=h.dtype), 1)
    return jnp.sum(jnp.where(real[:, :, None], h, 0), axis=1) / count[:, None]


def build_transformer(
    config: TransformerConfig,
    mixture: Callable[[PRNGKeyArray], MoE],
    inner: int,
    outer: int,
    vocabulary: int,
    *,
    key: PRNGKeyArray,
) -> Transformer:
    """`inner`: ids of a text (with a vocabulary of so many) or numbers of an image (with 0)."""
    keys, first = jax.random.split(key, 3 + config.layers), config.norm == "before"
    embed: WordEmbedding | Patches
    if vocabulary:
        embed = WordEmbedding(inner, vocabulary, config, key=keys[0])
    else:
        embed = Patches(inner, config.patch, config.width, key=keys[0])

    def block(key: PRNGKeyArray) -> Block:
        one, two = jax.random.split(key)
        attention = Attention(config.width, config.heads, key=one)
        return Block(LayerNorm(config.width), attention, LayerNorm(config.width), mixture(two), first)

    return Transformer(
        embed,
        Lookup(embed.tokens, config.width, 0.02, key=keys[1]),
        tuple(block(k) for k in keys[3:]),
        LayerNorm(config.width) if first else None,
        Linear(config.width, outer, key=keys[2]),
    )
