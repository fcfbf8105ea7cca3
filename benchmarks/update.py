"""What one minibatch update costs in training: `python -m benchmarks.update [--learner td3]`.

Whole updates of fleets on synthetic data (observation 39, action 4): 32 minibatches a call (16 on a CPU), the state
donated, as in training. Milliseconds per minibatch, with and without the penalty, for fleets of several sizes. Best of
several, compiling excluded.

PPO has the paper's actor (Top-2, three layers of 256) and critic; in the same run it is timed by one jitted call per
minibatch of the same network, dense, one run, no scan: how the released code is built, without its other costs. TD3 has
twin Top-2 critics and a dense actor, two layers of 256 each; a minibatch is one update of the critics, every second
one also of the actor.
"""

import argparse
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import kept
from benchmarks.timing import count, device
from sphere.algos import replay, rows
from sphere.algos.learner import Clock, DataSpec
from sphere.algos.ppo import PPO, minibatch
from sphere.algos.ppo_equations import Rollout, prepare
from sphere.algos.td3 import TD3
from sphere.methods import Sphere
from sphere.nets import NetConfig

OBS, ACT, ENVS, EPOCHS = 39, 4, 8, 2
SPEC = DataSpec((OBS,), ACT, (-1.0,) * ACT, (1.0,) * ACT)
REMEMBERED = 100_000  # transitions: too many for a cache, as in training
ON_CPU = jax.default_backend() == "cpu"
MANY = 100  # experts from which a CPU gets less to do: Adam alone then moves gigabytes per minibatch
RHO = 0.1
COLUMNS = {"E": "d", "N": "d", "fleet": ""} | dict.fromkeys(("none", "penalty", "none, a run", "penalty, a run"), ".3f")
COLUMNS |= {"penalty / none": ".2f", "calls / none": ".1f", "calls / penalty": ".1f"}
"""Milliseconds per minibatch of the whole fleet and of a run, and ratios; calls: as often as there are runs."""


Config = PPO | TD3


def ppo(experts: int, batch: int, penalty: bool, minibatches: int, deterministic: bool = True) -> PPO:
    return PPO(
        deterministic=deterministic,
        num_envs=ENVS,
        rollout_steps=batch * minibatches // (ENVS * EPOCHS),
        batch_size=batch,
        epochs=EPOCHS,
        actor=NetConfig(kind="top-k", experts=experts),
        methods=(Sphere(),) if penalty else (),
    )


def td3(experts: int, batch: int, penalty: bool, minibatches: int, deterministic: bool = True) -> TD3:
    return TD3(
        deterministic=deterministic,
        num_envs=1,
        rollout_steps=minibatches,
        batch_size=batch,
        buffer_size=REMEMBERED,
        learning_starts=0,
        critic=NetConfig(kind="top-k", experts=experts, depth=2),
        methods=(Sphere(placement="critic"),) if penalty else (),
    )


LEARNERS: dict[str, Callable[..., Config]] = {"ppo": ppo, "td3": td3}


def scalars(config: Config) -> dict[str, Any]:
    """The numbers of one run."""
    return {name: jnp.float32(value) for name, value in (config.numbers | {"rho": RHO}).items()}


def numbers(config: Config, fleet: int) -> dict[str, Any]:
    return {name: jnp.full(fleet, value) for name, value in scalars(config).items()}


def shapes(config: Config) -> Any:
    return eqx.filter_eval_shape(lambda: config.init(SPEC, jnp.uint32(0), scalars(config)))


def fresh(config: Config, fleet: int | None) -> Any:
    """LeCun-scaled networks and zero moments, by numpy: `init` would take longer to compile than the rest to run."""
    rng = np.random.default_rng(0)

    def fill(path: Any, leaf: Any) -> jax.Array:
        name = jax.tree_util.keystr(path)
        value = jnp.zeros(leaf.shape, leaf.dtype)
        if "temperature" in name and "moments" not in name:
            value = jnp.ones(leaf.shape, leaf.dtype)
        elif "kernel" in name and "moments" not in name:
            value = jnp.asarray(leaf.shape[-2] ** -0.5 * rng.standard_normal(leaf.shape, np.float32))
        return value if fleet is None else jnp.repeat(value[None], fleet, axis=0)

    return jax.tree_util.tree_map_with_path(fill, shapes(config))


def experience(config: PPO, fleet: int) -> Rollout:
    """Observations of unit scale, actions of the first policy's kind, episodes that end by time limit."""
    rng = np.random.default_rng(1)
    shape = (fleet, config.rollout_steps, config.num_envs)

    def normal(*more: int) -> np.ndarray:
        return rng.standard_normal((*shape, *more), np.float32)

    action = normal(ACT)
    log_prob = -0.5 * np.sum(action**2 + np.log(2 * np.pi, dtype=np.float32), axis=-1)
    done = rng.random(shape) < 0.01
    return Rollout(normal(OBS), action, log_prob, normal(), normal(OBS), np.zeros(shape, bool), done)


def remembered(config: TD3, fleet: int) -> dict[str, Any]:
    """Full memories with transitions of unit scale."""
    shape = (fleet, config.buffer_size, replay.width(SPEC))
    table = np.random.default_rng(1).standard_normal(shape, np.float32)
    table[..., -1] = 0  # no episode has ended
    return replay.data(table, np.arange(fleet), config.buffer_size)


def best(once: Callable[[], float], repeats: int, seconds: float) -> float:
    """Best of up to `repeats` timed calls, as many as fit into about `seconds`, after one that compiles."""
    once()
    times = [once()]
    while len(times) < repeats and sum(times) + times[-1] < seconds:
        times.append(once())
    return min(times)


def timed_update(config: Config, state: Any, fleet: int, progress: float = 0.0) -> Callable[[], float]:
    """A function that carries out one update of all runs and returns its seconds. It takes over `state`."""
    made = remembered(config, fleet) if isinstance(config, TD3) else experience(config, fleet)._asdict()
    data = jax.device_put(made)
    seeds = jnp.arange(fleet, dtype=jnp.uint32)
    of_runs, clock = numbers(config, fleet), Clock(np.int32(0), np.float32(progress))

    def once() -> float:
        nonlocal state
        start = time.perf_counter()
        state, metrics = rows.update(config, state, of_runs, data, seeds, clock)
        jax.block_until_ready((state, metrics))
        elapsed = time.perf_counter() - start
        if not bool(jnp.all(metrics["finite"])):
            raise RuntimeError("the synthetic update became NaN: its times mean nothing")
        return elapsed

    return once


def minibatches(config: Config) -> int:
    if isinstance(config, TD3):
        return config.updates
    return config.epochs * config.num_envs * config.rollout_steps // config.batch_size


def fleet_milliseconds(config: Config, fleet: int, repeats: int, seconds: float) -> float:
    """Per minibatch of all runs together, by whole updates."""
    return 1e3 * best(timed_update(config, fresh(config, fleet), fleet), repeats, seconds) / minibatches(config)


def call_milliseconds(config: PPO, repeats: int, seconds: float) -> float:
    """Per minibatch by a jitted call each: dense experts, one run, nothing scanned or donated."""
    config = dataclasses.replace(config, actor=dataclasses.replace(config.actor, compute="dense"))
    state = fresh(config, None)
    rollout = Rollout(*(jnp.asarray(leaf[0]) for leaf in experience(config, 1)))
    data = jax.jit(partial(prepare, gamma=config.gamma, gae_lambda=config.gae_lambda))(state.nets["critic"], rollout)
    batches = [
        jax.tree.map(lambda leaf, i=i: leaf[i : i + config.batch_size], data)
        for i in range(0, data.returns.shape[0], config.batch_size)
    ]
    own = scalars(config)
    step = jax.jit(partial(minibatch, config))

    def once() -> float:
        nonlocal state
        start = time.perf_counter()
        for batch in batches:
            state, metrics = step(state, own, own["learning_rate"], batch)
        jax.block_until_ready((state, metrics))
        return time.perf_counter() - start

    return 1e3 * best(once, repeats, seconds) / len(batches)


def memory() -> int:
    """Bytes that can be used."""
    if ON_CPU:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 2**63)


def refusal(config: Config, fleet: int, alone: float | None, limit: float) -> str | None:
    """Why a fleet is not timed, if it is not. `alone`: milliseconds of one run."""
    experts = max(net.experts for net in config.nets.values() if net.kind != "mlp")
    if ON_CPU and fleet > 1 and experts >= MANY:
        return f"on a CPU, {experts} experts are timed with one run only"
    parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes(config).nets))
    # parameters and two moments, two gradients and their sum, and the same again for what is under way
    need = 4 * parameters * fleet * 10
    if isinstance(config, TD3):
        need += 4 * fleet * config.buffer_size * replay.width(SPEC)
    if need > memory():
        return f"needs about {need / 2**30:.0f} GiB, there are {memory() / 2**30:.0f}"
    expected = 0.0 if alone is None else 2e-3 * alone * fleet * minibatches(config)
    if expected > limit:
        return f"would take about {expected:.0f} s a measurement, the limit is {limit:.0f} (--seconds)"
    return None


def compare(
    make: Callable[..., Config], experts: int, batch: int, fleets: list[int], seconds: float, quick: bool, exact: bool
) -> Iterator[list[Any]]:
    """All rows of one number of experts and one minibatch size."""
    large = ON_CPU and experts >= MANY
    updates = 4 if large else 8 if quick else 16 if ON_CPU else 32
    repeats = 2 if quick else 3 if ON_CPU else 5
    off, on = (make(experts, batch, penalty, updates, exact) for penalty in (False, True))
    reason = refusal(on, 1, None, seconds)
    if reason:
        print(f"{experts:>5} {batch:>4}   skipped: {reason}", flush=True)
        return
    calls = [float("nan")] * 2
    row = f"{experts:>5} {batch:>4} {'calls':>6}"  # of what is skipped
    if make is td3:
        pass  # nobody has published a mixture as TD3's critic
    elif large and seconds < 60:
        print(f"{row}   skipped: all {experts} experts on every sample take 10 to 20 s a minibatch here (--seconds 60)")
    else:
        calls = [call_milliseconds(config, repeats, seconds) for config in (off, on) if isinstance(config, PPO)]
        yield [experts, batch, "calls", *calls, *calls, calls[1] / calls[0], None, None]
    alone = None
    for fleet in fleets:
        row = f"{experts:>5} {batch:>4} {fleet:>6}"
        reason = refusal(on, fleet, alone, seconds)
        if reason:
            print(f"{row}   skipped: {reason}", flush=True)
            continue
        try:
            times = [fleet_milliseconds(config, fleet, repeats, seconds) for config in (off, on)]
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            print(f"{row}   skipped: more memory than there is", flush=True)
            continue
        alone = alone or times[1] / fleet
        faster = [None if np.isnan(call) else call * fleet / whole for call, whole in zip(calls, times, strict=True)]
        yield [experts, batch, str(fleet), *times, *(whole / fleet for whole in times), times[1] / times[0], *faster]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--learner", choices=LEARNERS, default="ppo")
    parser.add_argument("--experts", type=count, nargs="+", default=[10, 1000])
    parser.add_argument("--batch", type=count, nargs="+", help="samples of a minibatch (64 256; TD3: 256)")
    parser.add_argument("--fleets", type=count, nargs="+", default=[1, 5, 10], help="runs in a fleet")
    parser.add_argument("--seconds", type=float, default=20.0 if ON_CPU else 60.0, help="longest measurement")
    parser.add_argument("--fast", action="store_true", help="GPU kernels chosen by timing (deterministic=False)")
    parser.add_argument("--quick", action="store_true", help="fewer minibatches and repeats")
    kept.add_option(parser)
    arguments = parser.parse_args()
    off_policy = arguments.learner == "td3"
    what = "TD3: twin Top-2 critics and a dense actor, depth 2" if off_policy else "PPO: Top-2 actor, depth 3"
    print(f"minibatch update of {what}, width 256, observation {OBS}, action {ACT}, on {device()}")
    calls = "" if off_policy else "; 'calls': one jitted call per minibatch, dense, one run, no scan"
    print(f"milliseconds per minibatch{calls}")
    chosen = "timing" if arguments.fast else "rule: the same bits in every process"
    print(f"products at default precision (TF32 on NVIDIA GPUs), GPU kernels chosen by {chosen}\n")
    columns = {name: form for name, form in COLUMNS.items() if not (off_policy and name.startswith("calls"))}
    table = kept.Table(columns)
    started = time.perf_counter()
    for experts in arguments.experts:
        for batch in arguments.batch or ([256] if off_policy else [64, 256]):
            how = (sorted(arguments.fleets), arguments.seconds, arguments.quick, not arguments.fast)
            for row in compare(LEARNERS[arguments.learner], experts, batch, *how):
                table.add(*row[: len(columns)])
    kept.keep(table, arguments.keep, device())
    print(f"\n{time.perf_counter() - started:.0f} s in all, compiling included")


if __name__ == "__main__":
    main()
