"""Networks as values: `net(x, taps=None) -> (output, trace)`. See `trace.py` for taps and traces."""

from sphere.nets.build import NetConfig, build, parameter_count, widened
from sphere.nets.heads import Gaussian, GaussianActor, TwinQ, Value
from sphere.nets.mlp import MLP, LayerNorm, Linear
from sphere.nets.moe import MoE
from sphere.nets.routers import DeepSeek, ExpertChoice, Soft, TopK
from sphere.nets.trace import Layer, Routing, Trace, expert_signals, output_signals, zero_taps

__all__ = [
    "MLP",
    "DeepSeek",
    "ExpertChoice",
    "Gaussian",
    "GaussianActor",
    "Layer",
    "LayerNorm",
    "Linear",
    "MoE",
    "NetConfig",
    "Routing",
    "Soft",
    "TopK",
    "Trace",
    "TwinQ",
    "Value",
    "build",
    "expert_signals",
    "output_signals",
    "parameter_count",
    "widened",
    "zero_taps",
]
