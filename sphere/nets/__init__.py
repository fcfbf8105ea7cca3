"""Networks as values: `net(x, taps=None) -> (output, trace)`. See `trace.py` for taps and traces."""

from sphere.nets.build import NetConfig, build, parameter_count, widened, with_temperature
from sphere.nets.encoders import EncoderTrunk
from sphere.nets.heads import DeterministicActor, Explorer, Gaussian, GaussianActor, Logits, Trunk, TwinQ, Value
from sphere.nets.mlp import MLP, LayerNorm, Linear
from sphere.nets.moe import MoE, with_compute
from sphere.nets.routers import DeepSeek, ExpertChoice, Soft, TopK
from sphere.nets.trace import (
    Layer,
    Mixture,
    Recorder,
    Routing,
    Trace,
    expert_signals,
    output_signals,
    traces_of,
    trunks_of,
    zero_taps,
)
from sphere.nets.transformer import Transformer, TransformerConfig

__all__ = [
    "MLP",
    "DeepSeek",
    "DeterministicActor",
    "EncoderTrunk",
    "ExpertChoice",
    "Explorer",
    "Gaussian",
    "GaussianActor",
    "Layer",
    "LayerNorm",
    "Linear",
    "Logits",
    "Mixture",
    "MoE",
    "NetConfig",
    "Recorder",
    "Routing",
    "Soft",
    "TopK",
    "Trace",
    "Transformer",
    "TransformerConfig",
    "Trunk",
    "TwinQ",
    "Value",
    "build",
    "expert_signals",
    "output_signals",
    "parameter_count",
    "traces_of",
    "trunks_of",
    "widened",
    "with_compute",
    "with_temperature",
    "zero_taps",
]
