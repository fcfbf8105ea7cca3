"""Where acting and learning choose other experts for one state: `python -m benchmarks.expert_ties FLEET`.

Simulator processes act by float32 products. A GPU learns by TF32 products (10 bits of a factor count), and by these are
the log-probabilities of the actions. Where two experts nearly tie at the gate, the two may choose differently, and the
mean jumps: the action then is all but impossible by its recorded probability, and when an update moves the gate back,
the ratio is huge. Here: how many states of a rollout that is, and by how much the log-probability of an action falls
on average, half the squared distance of the means in deviations. TF32 is imitated by rounding factors, so any machine
will do.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sphere.envs import policy_arrays
from sphere.envs.policy import Network, NumpyActor
from sphere.saved import SavedFleet

BITS = 13
"""Of float32's mantissa, that TF32 drops."""


def tf32(x: np.ndarray) -> np.ndarray:
    """To the nearest number with 10 bits of mantissa."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    half = np.uint32((1 << (BITS - 1)) - 1) + ((bits >> np.uint32(BITS)) & np.uint32(1))
    return ((bits + half) & np.uint32(0xFFFFFFFF << BITS & 0xFFFFFFFF)).view(np.float32)


class Rounded(Network):
    """A network whose products have rounded factors."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        for kernel, bias, _, _ in self.layers[:-1]:
            x = np.maximum(tf32(x) @ tf32(kernel) + bias, 0)
        kernel, bias, _, _ = self.layers[-1]
        return tf32(x) @ tf32(kernel) + bias


def actors(fleet: SavedFleet, run: int) -> tuple[NumpyActor, NumpyActor]:
    """As simulator processes have it, and as a GPU."""
    spec = policy_arrays.spec(fleet.policy)
    if spec is None or spec.router != "top-k":
        raise SystemExit(f"{fleet.directory} has no Top-K actor; wanted one whose experts are chosen by a gate")
    arrays: Mapping[str, np.ndarray] = {name: one[run] for name, one in policy_arrays.arrays(fleet.policy).items()}
    exact, rounded = NumpyActor(spec, arrays), NumpyActor(spec, arrays)
    rounded.gate = Rounded(arrays, "gate", spec.activation)
    experts = {name: array for name, array in arrays.items() if name.startswith("experts/")}
    count = len(rounded.experts)
    rounded.experts = [
        Rounded({name: array[e] for name, array in experts.items()}, "experts", spec.activation) for e in range(count)
    ]
    return exact, rounded


def chosen(actor: NumpyActor, obs: np.ndarray) -> np.ndarray:
    return np.sort(np.argsort(-actor.gate(obs), axis=1, kind="stable")[:, : actor.spec.top_k], axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("fleet", type=Path, help="directory of a fleet with checkpoints; its simulators are started")
    parser.add_argument("--steps", type=int, default=64, help="of every environment")
    options = parser.parse_args()
    fleet = SavedFleet.open(options.fleet)
    source = fleet.open_source()
    try:
        data, _ = source.sample(fleet.policy, options.steps, fleet.counters["total_iterations"])
    finally:
        source.close()
    print(f"{'run':<20} {'states':>7} {'other experts':>14}   nats lost there, 50% 90% 100%   elsewhere, 100%")
    for run, one in enumerate(fleet.config.runs):
        obs = np.asarray(data["obs"])[run].reshape(-1, *fleet.spec.observation)
        exact, rounded = actors(fleet, run)
        apart = (exact.forward(obs) - rounded.forward(obs)) / fleet.policy.spread()[run]
        lost = 0.5 * np.square(apart).sum(axis=1)
        differ = (chosen(exact, obs) != chosen(rounded, obs)).any(axis=1)
        there = np.quantile(lost[differ], (0.5, 0.9, 1.0)) if differ.any() else np.full(3, np.nan)
        words = "".join(f" {value:>8.2g}" for value in there)
        begin = f"{one.name:<20} {len(obs):>7,} {differ.sum():>6} {differ.mean():>7.2%}"
        print(f"{begin}   {words} {lost[~differ].max():>17.2g}")


if __name__ == "__main__":
    main()
