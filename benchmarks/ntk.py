"""Exact NTK against its stochastic estimate: `python -m benchmarks.ntk`.

r_e(K) of the paper's actor (Top-2 of 10, three layers of 256) on 512 states: exact from layer factors, and by
stochastic Lanczos quadrature with several numbers of probes and depths; time and error of each.
"""

import argparse
import time
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

from benchmarks import kept
from benchmarks.timing import best_seconds, device
from sphere import ntk
from sphere.algos.rows import EXACT
from sphere.nets import NetConfig, build

N, OBS, ACT = 512, 51, 19


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kept.add_option(parser)
    options = parser.parse_args()
    numbers = {"r_e(K)": ".3f", "standard error": ".3f", "true error": ".3f", "ms": ",.1f", "first call, s": ".1f"}
    table = kept.Table({"method": ""} | numbers)
    net = build(NetConfig(kind="top-k"), OBS, ACT, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (N, OBS))
    params, static = eqx.partition(net, eqx.is_inexact_array)
    with jax.default_matmul_precision("highest"):
        exact = eqx.filter_jit(ntk.effective_rank)
        reference = float(exact(net, x))
        print(f"r_e(K) on {device()}: Top-2 of 10, width 256, depth 3, N {N}\n")
        milliseconds = 1e3 * best_seconds(exact, net, x)
        table.add("exact, from layer factors", reference, None, None, milliseconds, None)
        for probes, depth in [(8, 16), (16, 32)]:
            # Kernels by rule: timing them for every product of a Lanczos step took a GPU longer than all else.
            @partial(jax.jit, compiler_options=EXACT)
            def estimate(params, key, probes=probes, depth=depth):
                def mean(params, x):
                    return eqx.combine(params, static)(x)[0]

                return ntk.slq_effective_rank(mean, params, x, key, probes=probes, depth=depth)

            keys = jax.random.split(jax.random.key(2), 4)
            start = time.perf_counter()
            jax.block_until_ready(estimate(params, keys[0]))
            compiling = time.perf_counter() - start
            start = time.perf_counter()
            runs = jax.block_until_ready([estimate(params, key) for key in keys])
            milliseconds = 1e3 * (time.perf_counter() - start) / len(keys)
            value, error = runs[0]
            root = float(jnp.sqrt(jnp.mean(jnp.square(jnp.stack([run.value for run in runs]) - reference))))
            name = f"SLQ, {probes} probes, depth {depth}"
            table.add(name, float(value), float(error), root, milliseconds, compiling)
    print("\ntrue error: root mean square difference from exact over 4 keys")
    kept.keep(table, options.keep, device())


if __name__ == "__main__":
    main()
