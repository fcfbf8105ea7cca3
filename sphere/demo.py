"""A stream of small tasks, with and without the SPHERE penalty: `make demo`, about half a minute, no files written.

A Top-2 mixture of 8 small experts learns one random classification task after another and never starts anew. The same
seeds are trained with and without the penalty, all networks in one compiled program. What is said at the end is computed
from the table, for better or worse. The outcome depends on the step size: see docs/log.md for one at which the loss is worse.
"""

import sys
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

import sphere
from sphere.nets import MLP, MoE, NetConfig, build
from sphere.spectrum import effective_rank_spsd
from sphere.variants import PenaltyConfig, feature_blocks, penalty

RHOS = (0.0, 0.1)  # no penalty; the paper's value for MetaWorld
SEEDS = 5
TASKS, STEPS = 8, 300
OBSERVATION, CLASSES = 16, 4
POINTS, BATCH, HELD_OUT = 512, 32, 256

NET = NetConfig(kind="top-k", width=32, depth=2, experts=8, top_k=2)
PENALTY = PenaltyConfig(variant="last", coefficient="gradient-norm")
ADAM = optax.adam(3e-3)
NETWORKS, TASK, BATCHES = range(3)  # what a key is for


class Learner(NamedTuple):
    net: MLP | MoE
    moments: Any


class Spectrum(NamedTuple):
    """What one network can still do; of a fleet of them, arrays [rho, seed]."""

    rank_k: Float[Array, "*fleet"]  # r_e(K)
    rank_a: Float[Array, "*fleet"]  # r_e(A_last)
    experts: Int[Array, "*fleet"]  # in use


def key_for(purpose: int, seed: Array | int, task: Array | int = 0) -> PRNGKeyArray:
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(jax.random.key(0), purpose), seed), task)


def begin() -> Learner:
    """The fleet: for every rho the same networks, one per seed."""
    nets = [build(NET, OBSERVATION, CLASSES, key=key_for(NETWORKS, seed)) for seed in range(SEEDS)]

    @jax.jit
    def repeat(nets: list[MLP | MoE]) -> MLP | MoE:
        return jax.tree.map(lambda *leaf: jnp.stack(leaf * len(RHOS)), *nets)

    fleet = repeat(nets)
    return Learner(fleet, jax.jit(jax.vmap(ADAM.init))(fleet))


def losses(net: MLP | MoE, x: Array, label: Array) -> tuple[Array, Array, None]:
    """Task loss, penalty, and nothing else: what `penalised_value_and_grad` wants."""
    logits, trace = net(x)
    return cross_entropy(logits, label), penalty(PENALTY, net, x, trace), None


def cross_entropy(logits: Float[Array, "n classes"], label: Int[Array, " n"]) -> Float[Array, ""]:
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, label))


def measure(net: MLP | MoE) -> Spectrum:
    """On states that no task is made of."""
    x = jax.random.normal(jax.random.key(1), (HELD_OUT, OBSERVATION))
    trace = net(x)[1]
    phi = feature_blocks(trace).reshape(HELD_OUT, -1)
    routing = trace.routing
    assert routing is not None  # a mixture has a router
    used = jnp.sum(jnp.any(routing.chosen, axis=0))
    return Spectrum(sphere.ntk.effective_rank(net, x), effective_rank_spsd(phi @ phi.T / HELD_OUT), used)


def task_data(seed: Array, task: Array) -> tuple[Array, Array]:
    """Points, and labels from a random network with two hidden layers of 32."""
    keys = jax.random.split(key_for(TASK, seed, task), 4)
    x = hidden = jax.random.normal(keys[0], (POINTS, OBSERVATION))
    for key in keys[1:3]:
        hidden = jax.nn.relu(hidden @ jax.random.normal(key, (hidden.shape[1], 32)))
    return x, jnp.argmax(hidden @ jax.random.normal(keys[3], (32, CLASSES)), axis=1)


def learn(learner: Learner, rho: Array, seed: Array, task: Array) -> tuple[Learner, Float[Array, ""]]:
    """One task: Adam on its points; the loss on all of them at the end."""
    x, label = task_data(seed, task)
    value_and_grad = sphere.penalised_value_and_grad(losses, PENALTY.coefficient)

    def step(learner: Learner, rows: Int[Array, " batch"]) -> tuple[Learner, None]:
        _, gradient = value_and_grad(learner.net, rho, x[rows], label[rows])
        updates, moments = ADAM.update(gradient, learner.moments)
        return Learner(eqx.apply_updates(learner.net, updates), moments), None

    rows = jax.random.randint(key_for(BATCHES, seed, task), (STEPS, BATCH), 0, POINTS)
    learner, _ = jax.lax.scan(step, learner, rows)
    return learner, cross_entropy(learner.net(x)[0], label)


def title(rho: float) -> str:
    return f"SPHERE, rho {rho:g}" if rho else "no penalty"


def line(first: str, spectrum: Spectrum, loss: np.ndarray | None = None) -> str:
    """A row of the table: means over seeds."""
    cells = []
    for index in range(len(RHOS)):
        rank_k, rank_a, experts = (np.mean(part[index]) for part in spectrum)
        fit = "" if loss is None else f"{np.mean(loss[index]):.3f}"
        cells.append(f"{fit:>5} {rank_k:>6.1f} {rank_a:>6.1f} {experts:>4.1f}")
    return f"{first:>5} | " + " | ".join(cells)


def compare(with_penalty: np.ndarray, without: np.ndarray, better: int) -> bool | None:
    """Whether the penalty is better in every seed (True), in none (False), or in some (None); `better` is the good sign."""
    wins = int(np.sum(better * (with_penalty - without) > 0))
    return {len(without): True, 0: False}.get(wins)


def verdict(start: Spectrum, rank: np.ndarray, loss: np.ndarray) -> str:
    """What r_e(K) and the loss [task, rho, seed] say, in words."""
    if not (np.all(np.isfinite(rank)) and np.all(np.isfinite(loss))):
        return "A network diverged: some figures are not finite, so nothing is concluded."
    more = {
        True: "more directions stayed open in every seed",
        False: "fewer directions stayed open in every seed",
        None: "the seeds disagree on r_e(K)",
    }
    fit = {
        True: "later tasks were fitted better in every seed",
        False: "later tasks were fitted worse in every seed",
        None: "the seeds disagree on the loss",
    }
    late_rank, late_loss = (np.mean(figures[TASKS // 2 :], axis=0) for figures in (rank, loss))
    text = [
        "Without the penalty",
        f"  r_e(K) went from {np.mean(start.rank_k[0]):.1f} at the start to {np.mean(rank[-1, 0]):.1f} after task {TASKS};",
        f"  the loss after {STEPS} steps went from {np.mean(loss[0, 0]):.3f} on task 1 to {np.mean(loss[-1, 0]):.3f} "
        f"on task {TASKS}.",
    ]
    for index, rho in enumerate(RHOS[1:], start=1):
        text += [
            f"With rho {rho:g}, on average over tasks {TASKS // 2 + 1} to {TASKS},",
            f"  r_e(K) was {np.mean(late_rank[index]):.1f} against {np.mean(late_rank[0]):.1f}: "
            f"{more[compare(late_rank[index], late_rank[0], 1)]};",
            f"  the loss was {np.mean(late_loss[index]):.3f} against {np.mean(late_loss[0]):.3f}: "
            f"{fit[compare(late_loss[index], late_loss[0], -1)]}.",
        ]
    return "\n".join([*text, f"{SEEDS} seeds of a toy problem: a picture of the method, not evidence for it."])


def main() -> None:
    began = time.perf_counter()
    print(
        f"{TASKS} tasks in a row, {STEPS} steps of Adam each. Top-{NET.top_k} of {NET.experts} experts. "
        f"Means of {SEEDS} seeds.\n\n"
        "loss    on the task just learned, after its last step\n"
        f"r_e(K)  in how many directions an update can move the outputs on {HELD_OUT} held-out states\n"
        "r_e(A)  effective rank of the gate-weighted expert features, on which the penalty acts\n"
        "E       experts in use\n"
    )
    print("      | " + " | ".join(f"{title(rho):^24}" for rho in RHOS).rstrip())
    print(" task | " + " | ".join(f"{'loss':>5} {'r_e(K)':>6} {'r_e(A)':>6} {'E':>4}" for _ in RHOS))
    rho = jnp.repeat(jnp.array(RHOS), SEEDS)
    seed = jnp.tile(jnp.arange(SEEDS), len(RHOS))
    fleet = begin()
    train = jax.jit(jax.vmap(learn, in_axes=(0, 0, 0, None)), donate_argnums=0)
    look = jax.jit(jax.vmap(measure))

    def table(figures: Array) -> np.ndarray:
        return np.asarray(figures).reshape(len(RHOS), SEEDS)

    start = jax.tree.map(table, look(fleet.net))
    print(line("start", start), flush=True)
    ranks, fits = [], []
    for task in range(TASKS):
        if task == 0 and sys.stdout.isatty():
            print("      | compiling ...", end="\r", flush=True)
        fleet, loss = train(fleet, rho, seed, jnp.asarray(task))
        spectrum = jax.tree.map(table, look(fleet.net))
        ranks.append(spectrum.rank_k)
        fits.append(table(loss))
        print(line(str(task + 1), spectrum, fits[-1]), flush=True)
    print("\n" + verdict(start, np.stack(ranks), np.stack(fits)))
    print(f"\n{len(seed)} networks, {time.perf_counter() - began:.0f} s on {jax.devices()[0].platform}.")


if __name__ == "__main__":
    main()
