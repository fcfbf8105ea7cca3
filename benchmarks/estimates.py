"""How far estimates are from the truth: `python -m benchmarks.estimates --keep results/estimates.json`.

Made-up data whose truth is known: r_e(K) in float32 against float64, its estimate by SLQ, bootstrap intervals over
runs, and the interval of lead-lag. docs/metrics.md and docs/report.md have the numbers, and a test compares them with
the file. Minutes on two cores.
"""

import argparse
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sphere import ntk, spectrum
from sphere.nets import NetConfig, build
from sphere.report.predictors import Series, predict_one_step
from sphere.report.scores import Scores
from sphere.report.statistics import interval

MEANS = (0, 1, 10, 30, 100, 1000)
PROBES = (4, 8, 32, 64)
SPECTRA = {
    "1 / k^2": 1.0 / np.arange(1, 33) ** 2,
    "one large eigenvalue": np.array([50.0] + 31 * [0.05]),
}
RUNS = (3, 5, 10, 30)
SERIES = {
    "noise, no effect": (0.0, 0.0, 0.0),
    "phi 0.9 and 0.5, no effect": (0.9, 0.5, 0.0),
    "phi 0.5 and 0.5, effect 0.3": (0.5, 0.5, 0.3),
    "phi 0.9 and 0.5, effect 0.3": (0.9, 0.5, 0.3),
}
"""Autocorrelation of the diagnostic and of the score, and what one does to the other."""


def float32() -> dict[str, Any]:
    """r_e(K) of a fresh mixture on 256 states whose 39 inputs have deviation 1 around means of some deviation."""
    found: dict[str, Any] = {}
    for deviation in MEANS:
        row: dict[str, float] = {}
        for kind in (jnp.float32, jnp.float64):
            net = build(NetConfig(kind="top-k"), 39, 4, key=jax.random.key(0))
            net = jax.tree.map(lambda leaf, kind=kind: leaf.astype(kind) if eqx.is_inexact_array(leaf) else leaf, net)
            rng = np.random.default_rng(0)
            x = jnp.asarray(rng.normal(size=(256, 39)) + deviation * rng.normal(size=39), kind)
            kernel = eqx.filter_jit(ntk.gram)(net, x)
            values = np.linalg.eigvalsh(np.asarray(kernel, np.float64 if kind == jnp.float64 else np.float32))
            row[kind.__name__] = float(spectrum.effective_rank_spsd(kernel))
            row["share"] = float(values[-1] / values.sum())
            if kind == jnp.float32:
                row["dropped"] = int(np.sum(values <= len(values) * np.finfo(np.float32).eps * values[-1]))
        found[str(deviation)] = row
    return found


def slq(estimates: int) -> dict[str, Any]:
    """Bias and error, relative to the truth, and how often it lies within 1.96 standard errors."""
    found: dict[str, Any] = {}
    for name, values in SPECTRA.items():
        share = values / values.sum()
        truth = float(np.exp(-np.sum(share * np.log(share))))
        basis = np.linalg.qr(np.random.default_rng(1).normal(size=(len(values),) * 2))[0]
        x = jnp.asarray(basis * np.sqrt(values), jnp.float32)
        found[name] = {"truth": truth}
        for probes in PROBES:

            def one(key: Any, x: Any = x, probes: int = probes) -> Any:
                got = ntk.slq_effective_rank(lambda p, x: x @ p, jnp.zeros(x.shape[1]), x, key, probes=probes, depth=32)
                return got.value, got.standard_error

            keys = jax.random.split(jax.random.key(2), estimates)
            value, error = (np.asarray(a) for a in jax.jit(lambda keys, one=one: jax.lax.map(one, keys))(keys))
            found[name][str(probes)] = {
                "bias": float(np.mean(value / truth - 1)),
                "error": float(np.sqrt(np.mean((value / truth - 1) ** 2))),
                "held": float(np.mean(np.abs(value - truth) <= 1.96 * error)),
            }
    return found


def intervals(trials: int) -> dict[str, float]:
    """How often the interval of a mean over runs holds the true one; scores are normal."""
    held = {}
    rng = np.random.default_rng(3)
    for runs in RUNS:
        found = 0
        for _ in range(trials):
            scores = Scores.of({(f"run{i}", i): {"task": [value]} for i, value in enumerate(rng.normal(size=runs))})
            one = interval(scores)
            found += one.low <= 0 <= one.high
        held[str(runs)] = found / trials
    return held


def lead_lag(trials: int) -> dict[str, Any]:
    """How often the interval of the coefficient holds that of a very long series."""
    return {
        name: {str(length): _held(length, trials, *how) for length in (100, 200)} | {"truth": _coefficient(*how)}
        for name, how in SERIES.items()
    }


def _series(length: int, rng: np.random.Generator, leads: float, own: float, effect: float) -> tuple[Series, Series]:
    leader, outcome = np.zeros(length + 100), np.zeros(length + 100)
    noise = rng.normal(size=(2, length + 100))
    for t in range(1, length + 100):
        leader[t] = leads * leader[t - 1] + noise[0, t]
        outcome[t] = own * outcome[t - 1] + effect * leader[t - 1] + noise[1, t]
    steps = np.arange(length)
    return Series("score", steps, outcome[100:]), Series("diagnostic", steps, leader[100:])


@lru_cache
def _coefficient(*how: float) -> float:
    found = predict_one_step(*_series(50_000, np.random.default_rng(4), *how), resamples=2)
    assert found is not None
    return found.coefficient


def _held(length: int, trials: int, *how: float) -> float:
    truth, rng, held = _coefficient(*how) if how[2] else 0.0, np.random.default_rng(5), 0
    for _ in range(trials):
        found = predict_one_step(*_series(length + 1, rng, *how), resamples=200)
        held += found is not None and found.low <= truth <= found.high
    return held / trials


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="write the numbers into this file")
    parser.add_argument("--trials", type=int, default=1000)
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    found: dict[str, Any] = {
        "command": "python -m benchmarks.estimates --keep results/estimates.json",
        "trials": options.trials,
        "slq": slq(options.trials),
        "intervals": intervals(options.trials),
        "lead-lag": lead_lag(options.trials),
    }
    with jax.enable_x64(True):
        found["float32"] = float32()
    text = json.dumps(found, indent=1)
    print(text)
    if options.keep:
        options.keep.write_text(text + "\n")


if __name__ == "__main__":
    main()
