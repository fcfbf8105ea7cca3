"""A policy in plain numpy, for worker processes that choose their actions by themselves.

Asking the learner for every action costs a round trip to its device, about a millisecond on a GPU, for a few
microseconds of arithmetic; here a worker has the parameters in shared memory. Products are made of four rows at a time,
whatever the number of rows: BLAS rounds by the shape of a product, and no environment's numbers may depend on which
others its worker has.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

ROWS = 4
"""Rows of a product: the number of environments that a worker usually has. Most of the time goes into reading the
kernel (two rows 5.4 microseconds, four 6.4, twice two 8.8), so padding costs little."""

EPSILON, CLIP = 1e-8, 10.0
"""Of observations that are normalised by running statistics."""


class Spec(NamedTuple):
    """What the parameters do not say."""

    router: str
    """none (one expert), "top-k", "deepseek" or "soft"."""
    activation: str
    top_k: int = 1
    shared: int = 0
    tokens: int = 1
    squash: bool = False
    """centre + half tanh(output), as of a deterministic actor."""


def normalised(obs: np.ndarray, mean: np.ndarray, var: np.ndarray) -> Float[np.ndarray, "... obs"]:
    """As VecNormalize does it: in float64, clipped, then single precision."""
    return np.clip((obs - mean) / np.sqrt(var + EPSILON), -CLIP, CLIP).astype(np.float32)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    e /= e.sum(axis=axis, keepdims=True)
    return e


class Network:
    """An MLP: layers of (kernel, bias, LayerNorm's scale and bias if it has them)."""

    def __init__(self, arrays: Mapping[str, np.ndarray], name: str, activation: str) -> None:
        self.relu = activation == "relu"
        self.layers: list[tuple[np.ndarray, np.ndarray | None, np.ndarray | None, np.ndarray | None]] = []
        while (place := f"{name}/{len(self.layers)}") + "/kernel" in arrays:
            bias, scale, shift = (arrays.get(f"{place}/{part}") for part in ("bias", "scale", "shift"))
            self.layers.append((arrays[f"{place}/kernel"], bias, scale, shift))

    def __call__(self, x: Float[np.ndarray, "n inner"]) -> Float[np.ndarray, "n outer"]:
        n = len(x)
        if n % ROWS:
            x = np.concatenate([x, np.zeros((-n % ROWS, x.shape[1]), np.float32)])
        if n > ROWS:
            x = x.reshape(-1, ROWS, x.shape[1])
        for kernel, bias, scale, shift in self.layers[:-1]:
            x = x @ kernel if n > ROWS else x.dot(kernel)  # the same product; numpy starts the latter faster
            if bias is not None:
                x += bias
            if scale is not None:
                x -= x.mean(axis=-1, keepdims=True)
                x *= 1 / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(1e-6))
                x = scale * x + shift
            x = np.maximum(x, 0, out=x) if self.relu else np.tanh(x, out=x)
        kernel, bias, _, _ = self.layers[-1]
        x = x @ kernel
        if bias is not None:
            x += bias
        return x.reshape(-1, x.shape[-1])[:n]


class NumpyActor:
    """The mean action of one run's mixture (or single network)."""

    def __init__(self, spec: Spec, arrays: Mapping[str, np.ndarray]) -> None:
        self.spec, self.temperature = spec, arrays.get("temperature")
        experts = {name: array for name, array in arrays.items() if name.startswith("experts/")}
        number = len(next(iter(experts.values())))
        self.experts = [
            Network({name: array[e] for name, array in experts.items()}, "experts", spec.activation)
            for e in range(number)
        ]
        self.gate = Network(arrays, "gate", spec.activation)
        self.slots = arrays.get("slots")
        routers: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "none": self.experts[0],
            "top-k": self._top_k,
            "deepseek": self._deepseek,
            "soft": self._soft,
        }
        self.forward = routers[spec.router]
        if spec.squash:
            self.inner, self.centre, self.half = self.forward, arrays["centre"], arrays["half"]
            self.forward = self._squashed

    def _squashed(self, x: np.ndarray) -> np.ndarray:
        return self.centre + self.half * np.tanh(self.inner(x))

    def _top_k(self, x: np.ndarray) -> np.ndarray:
        logits = self.gate(x) / self.temperature
        # stable: of equal logits the first expert, as in the learner
        expert = (-logits).argsort(axis=1, kind="stable")[:, : self.spec.top_k]
        return self._mix(x, softmax(logits[np.arange(len(x))[:, None], expert]), expert)

    def _deepseek(self, x: np.ndarray) -> np.ndarray:
        logits = self.gate(x) / self.temperature
        expert = np.argsort(-logits, axis=1, kind="stable")[:, : self.spec.top_k]
        weight = softmax(logits)[np.arange(len(x))[:, None], expert]
        on = np.tile(np.arange(self.spec.shared), (len(x), 1))
        ones = np.ones(on.shape, np.float32)
        return self._mix(x, np.concatenate([ones, weight], 1), np.concatenate([on, self.spec.shared + expert], 1))

    def _mix(self, x: np.ndarray, weight: np.ndarray, expert: Int[np.ndarray, "n k"]) -> np.ndarray:
        """Tokens are sorted by expert, so that each expert gets a slice: few calls, and these are what takes time
        here."""
        owner = expert.ravel()
        order = owner.argsort(kind="stable")
        tokens = x.take(order // expert.shape[1], axis=0)
        owners = owner[order].tolist()
        parts, first = [], 0
        while first < len(owners):
            last = first + owners.count(owners[first])
            parts.append(self.experts[owners[first]](tokens[first:last]))
            first = last
        output = np.empty((len(owners), parts[0].shape[1]), np.float32)
        output[order] = np.concatenate(parts)
        return np.einsum("ns,nso->no", weight, output.reshape(*expert.shape, -1))

    def _soft(self, x: np.ndarray) -> np.ndarray:
        tokens = self.gate(x).reshape(len(x), self.spec.tokens, -1)
        logits = tokens @ self.slots / self.temperature
        inputs = softmax(logits, axis=1).swapaxes(1, 2) @ tokens
        combine = softmax(logits, axis=2).mean(axis=1)
        return sum(combine[:, e, None] * expert(inputs[:, e]) for e, expert in enumerate(self.experts))


class FleetPolicy:
    """The policies of all runs that a worker has environments of; `parts` gives the rows of each run."""

    def __init__(self, spec: Spec, arrays: Mapping[str, np.ndarray], parts: Sequence[tuple[int, slice]]) -> None:
        self.parts = []
        for run, rows in parts:
            own = {name: array[run] for name, array in arrays.items()}
            self.parts.append((rows, own.get("mean"), own.get("var"), NumpyActor(spec, own).forward))

    def __call__(self, obs: Float[np.ndarray, "env obs"]) -> Float[np.ndarray, "env act"]:
        means = []
        for rows, mean, var, forward in self.parts:
            x = obs[rows]
            if mean is not None and var is not None:
                x = normalised(x, mean, var)
            means.append(forward(x))
        return means[0] if len(means) == 1 else np.concatenate(means)
