"""Networks by name: the settings of a trunk and the function that makes it."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sphere.errors import UserError, in_range
from sphere.nets.encoders import EncoderName, EncoderTrunk, build_encoder
from sphere.nets.mlp import DEEPEST, MLP
from sphere.nets.moe import Compute, MoE
from sphere.nets.routers import DeepSeek, ExpertChoice, LinearGate, Soft, TopK
from sphere.nets.transformer import Transformer, TransformerConfig, build_transformer

Kind = Literal["mlp", "top-k", "dense", "deepseek", "soft", "expert-choice"]


@dataclass(frozen=True)
class NetConfig:
    """A trunk: a plain MLP or a mixture of MLPs."""

    kind: Kind = "top-k"
    """mlp: one dense network; top-k, dense, deepseek, soft, expert-choice: mixtures, by router."""
    width: int = 256
    """Units of a hidden layer (of one expert; `deepseek` divides them by `split`)."""
    depth: int = 3
    """Hidden layers."""
    activation: Literal["relu", "tanh", "gelu"] = "relu"
    layer_norm: bool = False
    """LayerNorm after each hidden linear layer, before the activation, in experts and gate."""
    experts: int = 10
    """Number of experts E (of `deepseek`: before splitting)."""
    top_k: int = 2
    """Experts per sample K (of `deepseek`: before splitting)."""
    temperature: float = 1.0
    """Gate logits are divided by this."""
    split: int = 2
    """deepseek: each expert is split into this many of width / split."""
    shared: int = 1
    """deepseek: how many of the split experts are always on."""
    tokens: int = 8
    """soft: tokens that a state is projected into."""
    token_size: int = 64
    """soft: size of a token."""
    capacity: float = 2.0
    """expert-choice: experts that a sample meets on average."""
    group_size: int = 64
    """expert-choice: samples that an expert chooses among."""
    transformer: TransformerConfig | None = None
    """Set: an encoder whose feed-forward parts are top-k mixtures with these experts. The gate of each is one linear
    layer."""
    encoder: EncoderName | None = None
    """Of images: an IMPALA ResNet, or a ResNet-18 with GroupNorm; the network reads its features. shared: a critic
    reads those of the actor's, which then learns from both losses."""
    compute: Compute = "auto"
    """dense: every expert on every sample; grouped: only the chosen ones; auto: by size and device."""

    def __post_init__(self) -> None:
        positive = ("width", "experts", "top_k", "split", "tokens", "token_size", "group_size")
        in_range(self, {**dict.fromkeys(positive, (1, None)), "depth": (1, DEEPEST), "shared": (0, None)})


def build(
    config: NetConfig,
    inner: int | tuple[int, ...],
    outer: int,
    *,
    key: PRNGKeyArray,
    vocabulary: int = 0,
    numbers: int = 0,
) -> MLP | MoE | Transformer | EncoderTrunk:
    """A trunk from `inner` inputs, or inputs of that shape, to `outer` outputs. The gate of a mixture has the hidden
    shape of an expert. `vocabulary`: a Transformer reads ids below it; 0: it reads an image. `numbers`: of an image of
    bytes, those beside every frame."""
    shape = (inner,) if isinstance(inner, int) else inner
    if config.encoder is None:
        if len(shape) != 1:
            raise UserError(
                f"an observation is an image of shape {shape}, which a {config.kind} network cannot read by itself; "
                "set the encoder of actor and critic to impala or resnet-18"
            )
        return _build(config, shape[0], outer, vocabulary, key)
    if config.encoder == "shared":
        raise UserError("encoder=shared is for a critic, whose actor has an encoder; use impala or resnet-18 here")
    if config.transformer is not None:
        raise ValueError("a transformer reads images by itself; use it without an encoder, or an encoder without it")
    return _encoded(config, shape, outer, numbers, key)


@eqx.filter_jit
def _encoded(config: NetConfig, shape: tuple[int, ...], outer: int, numbers: int, key: PRNGKeyArray) -> EncoderTrunk:
    one, two = jax.random.split(key)
    encoder = build_encoder(str(config.encoder), shape, numbers, key=one)
    return EncoderTrunk(encoder, _build(config, encoder.features, outer, 0, two))  # type: ignore[arg-type]


@eqx.filter_jit  # one compilation instead of one per initialiser and shape: a second instead of ten
def _build(config: NetConfig, inner: int, outer: int, vocabulary: int, key: PRNGKeyArray) -> MLP | MoE | Transformer:
    c = config
    if c.transformer is not None:
        return _transformer(c, c.transformer, inner, outer, vocabulary, key)
    shape: dict[str, Any] = {"depth": c.depth, "activation": c.activation, "layer_norm": c.layer_norm}
    if c.kind == "mlp":
        return MLP(inner, outer, c.width, **shape, key=key)
    gate_key, expert_key = jax.random.split(key)

    def gate(outputs: int) -> MLP:
        return MLP(inner, outputs, c.width, **shape, key=gate_key)

    width, number, expert_inner = c.width, c.experts, inner
    router: TopK | DeepSeek | Soft | ExpertChoice
    if c.kind == "top-k":
        router = TopK(gate(number), c.top_k, c.temperature)
    elif c.kind == "dense":
        router = TopK(gate(number), number, c.temperature)
    elif c.kind == "deepseek":
        if c.width % c.split:
            raise ValueError(f"width={c.width} cannot be split into {c.split}; use a multiple")
        width, number = c.width // c.split, c.experts * c.split
        if not c.shared < c.split * c.top_k:
            raise ValueError(f"shared={c.shared} leaves no routed expert among split*top_k={c.split * c.top_k}")
        router = DeepSeek(gate(number - c.shared), c.shared, c.split * c.top_k - c.shared, c.temperature)
    elif c.kind == "soft":
        router = Soft(inner, number, c.tokens, c.token_size, c.temperature, key=gate_key)
        expert_inner = c.token_size
    elif c.kind == "expert-choice":
        router = ExpertChoice(gate(number), c.capacity, c.group_size, c.temperature)
    else:
        raise ValueError(f"network kind {c.kind!r} is not known; use one of {', '.join(Kind.__args__)}")
    return MoE(router, number, expert_inner, outer, width, **shape, compute=c.compute, key=expert_key)


def _transformer(
    c: NetConfig, encoder: TransformerConfig, inner: int, outer: int, vocabulary: int, key: PRNGKeyArray
) -> Transformer:
    if c.kind != "top-k":
        raise ValueError(f"a transformer has mixtures of the kind 'top-k', not {c.kind!r}; set kind to top-k")

    shape: dict[str, Any] = {"depth": c.depth, "activation": c.activation, "layer_norm": c.layer_norm}

    def mixture(key: PRNGKeyArray) -> MoE:
        """Of MLPs on tokens, with a linear router without bias."""
        one, two = jax.random.split(key)
        router = TopK(LinearGate(encoder.width, c.experts, key=one), c.top_k, c.temperature, encoder.softmax)
        return MoE(router, c.experts, encoder.width, encoder.width, c.width, **shape, compute=c.compute, key=two)

    return build_transformer(encoder, mixture, inner, outer, vocabulary, key=key)


def with_temperature(trunk: Any, temperature: Float[Array, ""]) -> Any:
    """The same network with another gate temperature, which may be traced, in all its mixtures; a dense network has
    none."""

    def found(net: Any) -> list[Any]:
        nodes = jax.tree.leaves(net, is_leaf=lambda node: isinstance(node, MoE))
        return [node.router.temperature for node in nodes if isinstance(node, MoE)]

    old = found(trunk)
    return eqx.tree_at(found, trunk, [jnp.asarray(temperature, one.dtype) for one in old]) if old else trunk


def parameter_count(net: eqx.Module) -> int:
    """Trainable numbers of a network; the gate temperature is not one."""
    leaves = jax.tree_util.tree_leaves_with_path(net)
    return sum(leaf.size for path, leaf in leaves if "temperature" not in jax.tree_util.keystr(path))


def widened(config: NetConfig, inner: int | tuple[int, ...], outer: int, factor: float) -> NetConfig:
    """The same network with the smallest width that gives at least `factor` times its parameters, as in PPO(10x)."""

    unit = config.split if config.kind == "deepseek" else 1  # a width that cannot be split is none

    def count(units: int) -> int:
        wider = dataclasses.replace(config, width=units * unit)
        return parameter_count(
            eqx.filter_eval_shape(lambda key: build(wider, inner, outer, key=key), jax.random.key(0))
        )

    low = high = config.width // unit
    target = factor * count(low)
    while count(high) < target:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < target else (low, middle)
    return dataclasses.replace(config, width=high * unit)
