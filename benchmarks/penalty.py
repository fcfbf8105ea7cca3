"""What the penalty costs: `python -m benchmarks.penalty`.

Forward and backward pass of a Top-K actor (N 64, width 256, depth 3, K 2) without a penalty, with the dense sample Gram
and with the routed Gram, at E = 10, 100 and 1000, with a plain gradient step; then the penalty alone (value and
gradient by the features). Each is repeated inside one compiled scan, as in training; all in one run, best of several.
"""

import argparse
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

from benchmarks import kept
from benchmarks.timing import best_seconds, device
from sphere.nets import NetConfig, build
from sphere.penalty import anisotropy, gram, routed_gram, spread
from sphere.variants import feature_blocks, layer_gram

N, WIDTH, K, OBS, ACT = 64, 256, 2, 39, 4
EXPERTS = (10, 100, 1000)
REPEATS = 20


def actor_times(num_experts: int) -> dict[str, float]:
    net = build(NetConfig(kind="top-k", experts=num_experts, width=WIDTH, top_k=K), OBS, ACT, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (N, OBS))
    params, static = eqx.partition(net, eqx.is_inexact_array)

    def loss(params, penalised):
        output, trace = eqx.combine(params, static)(x)
        total = jnp.mean(jnp.square(output))
        if penalised == "dense":
            total = total + 1e-3 * anisotropy(gram(feature_blocks(trace.mixtures[0]).reshape(N, -1)))
        if penalised == "routed":
            total = total + 1e-3 * anisotropy(layer_gram(trace.mixtures[0]))
        return total

    modes = ("none", "dense", "routed")

    def repeated(mode):
        def step(params, _):
            grads = jax.grad(partial(loss, penalised=mode))(params)
            return jax.tree.map(lambda p, g: p - 1e-6 * g, params, grads), None

        return jax.jit(lambda params: jax.lax.scan(step, params, length=REPEATS))

    return {mode: best_seconds(repeated(mode), params, repeats=3) / REPEATS for mode in modes}


def penalty_times(num_experts: int) -> dict[str, float]:
    features = jax.random.normal(jax.random.key(0), (N, K, WIDTH))
    experts = jax.random.randint(jax.random.key(1), (N, 1), 0, num_experts - 1) + jnp.arange(K)[None, :]

    def dense(features):
        return anisotropy(gram(spread(features, experts, num_experts).reshape(N, -1)))

    def routed(features):
        return anisotropy(routed_gram(features, experts, num_experts, "routed"))

    def repeated(function):
        """Many evaluations in one program, as a training scan makes them, so that a GPU is not timed on launches."""

        def step(features, _):
            value, gradient = jax.value_and_grad(function)(features)
            return features - 1e-6 * gradient, value

        return jax.jit(lambda features: jax.lax.scan(step, features, length=REPEATS))

    return {f.__name__: best_seconds(repeated(f), features) / REPEATS for f in (dense, routed)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kept.add_option(parser)
    options = parser.parse_args()
    print(f"SPHERE penalty on {device()}: N {N}, K {K}, width {WIDTH}; milliseconds, best of 5\n")
    actor = {"actor": ".3f", "+ dense Gram": ".3f", "+ routed Gram": ".3f"}
    alone = {"penalty alone, dense": ".4f", "penalty alone, routed": ".4f", "dense / routed": ".1f"}
    table = kept.Table({"E": "d"} | actor | alone)
    for num_experts in EXPERTS:
        whole = [1e3 * value for value in actor_times(num_experts).values()]
        dense, routed = (1e3 * value for value in penalty_times(num_experts).values())
        table.add(num_experts, *whole, dense, routed, dense / routed)
    kept.keep(table, options.keep, device())


if __name__ == "__main__":
    main()
