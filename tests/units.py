"""What tests of methods that reset units share: networks with moments, what is looked at, activity by definition."""

import jax
import jax.numpy as jnp
import networks
import numpy as np
from networks import np_gate, np_soft

from sphere.methods.method import Step, Weights
from sphere.nets import GaussianActor, Value
from sphere.nets.heads import Trunk

AS_IT_IS = dict.fromkeys(("actor", "critic"), lambda net: net)


def pair(kind="top-k", seed=0, **settings):
    """An actor of this kind and a dense critic, random in every leaf."""
    actor = GaussianActor(networks.network(kind, seed, **settings), networks.ACT)
    return {
        "actor": actor,
        "critic": Value(networks.network("mlp", seed + 1, width=6, depth=settings.get("depth", 2))),
    }


def moments_of(nets, seed=5):
    rng = np.random.default_rng(seed)

    def like(tree):
        return jax.tree.map(lambda leaf: jnp.asarray(rng.uniform(0.5, 1, leaf.shape), leaf.dtype), tree)

    return {role: Weights(net, like(net), like(net)) for role, net in nets.items()}


@jax.jit
def looked_at(nets, obs):
    return {role: net(obs)[1] for role, net in nets.items()}


def step_of(nets, trace, key, steps=0):
    return Step(nets, trace, {}, {"actor": {}, "critic": {}}, jnp.ones(()), jnp.asarray(steps), key, AS_IT_IS, AS_IT_IS)


def np_hidden(mlp, x, expert):
    """Features after every hidden layer of one input vector."""
    found = []
    for layer in mlp.hidden:
        kernel, bias = np.asarray(layer.kernel), np.asarray(layer.bias)
        x = np.maximum(
            x @ (kernel if expert is None else kernel[expert]) + (bias if expert is None else bias[expert]), 0
        )
        found.append(x)
    return found


def np_activity(trunk: Trunk, kind, obs):
    """Part -> (layers of mean |h| [experts][width], samples by expert), one sample and one expert at a time."""
    obs = np.asarray(obs)
    if kind == "mlp":
        rows = [np_hidden(trunk, row, None) for row in obs]
        return {
            "expert": ([np.mean([np.abs(r[i]) for r in rows], axis=0)[None] for i in range(len(rows[0]))], [len(obs)])
        }
    gate = np_gate(kind, trunk, obs)
    depth = len(trunk.experts.hidden)
    met = [[i for i in range(len(obs)) if gate[i, e] != 0] for e in range(trunk.num_experts)]
    layers = [np.zeros(trunk.experts.hidden[i].bias.shape) for i in range(depth)]
    for e, samples in enumerate(met):
        rows = [
            np_hidden(trunk.experts, np_soft(trunk.router, obs[i])[0][e] if kind == "soft" else obs[i], e)
            for i in samples
        ]
        for i in range(depth):
            if rows:
                layers[i][e] = np.mean([np.abs(row[i]) for row in rows], axis=0)
    found = {"expert": (layers, [len(samples) for samples in met])}
    if kind != "soft":
        found |= {"gate": np_activity(trunk.router.gate, "mlp", obs)["expert"]}
    return found
