"""What each method costs: `python -m benchmarks.methods`.

Whole updates of fleets on synthetic rollouts with the paper's actor (Top-2 of ten experts, three layers of 256,
observation 39, action 4) and critic, as in `benchmarks.update`: milliseconds per minibatch of a fleet, and how many
times that of no method, measured beside it in the same process. CBP is timed where every unit is mature and units are
replaced; ReDo at its period of 1,000 steps, none of them in the measurement, and once more as if every step were due.
"""

import argparse
import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from benchmarks import kept
from benchmarks.timing import count, device
from benchmarks.update import ON_CPU, best, fresh, minibatches, ppo, timed_update
from sphere import registry
from sphere.algos.ppo import PPO
from sphere.algos.state import init_methods
from sphere.methods import CBP, ReDo

UNITS = {"ms": ".3f", "times none": ".2f"}


def programs(config: PPO) -> dict[str, PPO]:
    """The update of each method, none first."""
    chosen = {"none": ()} | {name: (registry.method(name)(),) for name in registry.METHODS}
    chosen |= {"cbp": (CBP(maturity=0),), "redo, always due": (ReDo(period=1),)}
    return {name: dataclasses.replace(config, methods=methods) for name, methods in chosen.items()}


def prepared(config: PPO, fleet: int, repeats: int, seconds: float) -> Callable[[], float]:
    """A function that measures: milliseconds per minibatch of all runs together."""
    seeds = jnp.arange(fleet, dtype=jnp.uint32)
    state = fresh(config, fleet)
    own = jax.jit(jax.vmap(partial(init_methods, config.methods)))(state.nets, seeds)
    once = timed_update(config, dataclasses.replace(state, methods=own), fleet, progress=0.5)
    return lambda: 1e3 * best(once, repeats, seconds) / minibatches(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=count, default=256, help="samples of a minibatch")
    parser.add_argument(
        "--fleets", type=count, nargs="+", default=[1, 2] if ON_CPU else [1, 10], help="runs in a fleet"
    )
    parser.add_argument("--seconds", type=float, default=8.0 if ON_CPU else 30.0, help="longest measurement")
    parser.add_argument("--methods", nargs="+", help="only these, beside none")
    parser.add_argument("--fast", action="store_true", help="GPU kernels chosen by timing (deterministic=False)")
    kept.add_option(parser)
    arguments = parser.parse_args()
    config = ppo(10, arguments.batch, False, 8 if ON_CPU else 32, not arguments.fast)
    found = programs(config)
    if unknown := sorted(set(arguments.methods or ()) - set(found)):
        parser.error(f"no method {', '.join(unknown)}; there are {', '.join(found)}")
    chosen = [
        "none",
        *(name for name in found if name != "none" and (arguments.methods is None or name in arguments.methods)),
    ]
    print(f"PPO minibatch update of {arguments.batch} samples on {device()}: Top-2 of 10, width 256, depth 3")
    print("milliseconds per minibatch of the whole fleet, and that of no method times\n")
    heads = {f"fleet of {fleet}, {unit}": form for fleet in arguments.fleets for unit, form in UNITS.items()}
    table = kept.Table({"method": ""} | heads)
    repeats = 3 if ON_CPU else 5
    measure_none = {fleet: prepared(found["none"], fleet, repeats, arguments.seconds) for fleet in arguments.fleets}
    for name in chosen:
        row: list[float] = []
        for fleet in arguments.fleets:
            measure = prepared(found[name], fleet, repeats, arguments.seconds)
            # none before and after: other work on the machine then weighs on both
            pairs = [(measure_none[fleet](), measure()) for _ in range(2)]
            base, own = (min(column) for column in zip(*pairs, strict=True))
            row += [own, own / base]
        table.add(name, *row)
    kept.keep(table, arguments.keep, device())


if __name__ == "__main__":
    main()
