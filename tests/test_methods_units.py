"""CBP and ReDo against plain numpy statements, unit by unit and expert by expert, written from the publications."""

import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest
from networks import MIXTURES, OBS, np_gate, np_soft

from sphere.methods import CBP, ReDo
from sphere.methods.method import Step, Weights
from sphere.methods.units import activities, mlps, reset_units, with_mlps
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


# Plain statements -----------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("compute", ["dense", "grouped"])
@pytest.mark.parametrize("kind", ["mlp", *MIXTURES])
def test_activity_is_that_of_the_samples_that_an_expert_met(kind, compute):
    if kind == "mlp" and compute == "grouped":
        pytest.skip("nothing to group")
    net = networks.network(kind, compute=compute)
    obs = networks.states(8)
    trace = networks.forward(net, obs)[1]
    want = np_activity(net, kind, obs)
    for part, (layers, samples) in want.items():
        found = activities(trace, [part])[part]
        np.testing.assert_array_equal(found.seen, np.array(samples) > 0)
        for a, b in zip(found.mean, layers, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# CBP ------------------------------------------------------------------------------------------------------------------


class PlainCBP:
    """One layer of one expert: Dohare 2024, generate and test."""

    def __init__(self, width, rate, maturity):
        self.u, self.age = np.zeros(width), np.zeros(width, int)
        self.rate, self.maturity = rate, maturity

    def step(self, mean, outgoing):
        """Corrected utilities, and which units are eligible."""
        self.age += 1
        self.u = 0.99 * self.u + 0.01 * mean * np.abs(outgoing).mean(axis=1)
        return self.u / (1 - 0.99**self.age), np.flatnonzero(self.age > self.maturity)

    def replaced(self, units):
        self.u[units], self.age[units] = 0, 0


@pytest.mark.parametrize(("rate", "maturity", "steps"), [(0.06, 60, 300), (0.45, 25, 100)])
def test_hundreds_of_steps_of_cbp(rate, maturity, steps):
    """Utilities, ages, eligibility and replacement by layer and expert, while parameters move and experts go unused."""
    method = CBP(replacement_rate=rate, maturity=maturity)
    nets = pair(width=6, experts=3, top_k=1, compute="dense")
    own = method.init(nets, jax.random.key(0))
    rng = np.random.default_rng(0)
    plain = {
        (role, part, layer, e): PlainCBP(6, rate, maturity)
        for role, net in nets.items()
        for part, mlp in mlps(net).items()
        for layer in range(2)
        for e in range(mlp.head.kernel.shape[0])
    }

    @jax.jit
    def after(own, weights, obs, key):
        nets = {role: one.params for role, one in weights.items()}
        return method.after(own, weights, step_of(nets, looked_at(nets, obs), key))

    weights = moments_of(nets)
    drift = jax.jit(lambda nets, key: jax.tree.map(lambda leaf: leaf + 1e-3 * jax.random.normal(key, leaf.shape), nets))
    count = expected = variance = idle = 0
    for t in range(steps):
        key = jax.random.key(t)
        obs = jnp.asarray(rng.normal(size=(4, OBS)) + rng.choice([-2, 0, 2]), jnp.float32)
        before = jax.device_get(drift({role: one.params for role, one in weights.items()}, key))
        weights = {role: one._replace(params=before[role]) for role, one in weights.items()}
        done = jax.device_get(after(own, weights, obs, key))
        total = 0
        for role, net in before.items():
            seen = np_activity(net.trunk, "top-k" if role == "actor" else "mlp", obs)
            parts, new = mlps(net), mlps(done.weights[role].params)
            for part, (means, samples) in seen.items():
                layers = (*parts[part].hidden, parts[part].head)
                want = [(np.array(layer.kernel), np.array(layer.bias)) for layer in layers]
                for layer in range(2):
                    for e, tokens in enumerate(samples):
                        one = plain[role, part, layer, e]
                        units = done.own[role][part][layer]
                        if not tokens:  # no evidence: nothing moves
                            idle += 1
                            fresh = np.zeros(0, int)
                        else:
                            utility, eligible = one.step(means[layer][e], np.asarray(layers[layer + 1].kernel)[e])
                            fresh = np.flatnonzero(np.asarray(units.age[e]) == 0)
                            number = rate * len(eligible)
                            if number >= 1:
                                assert len(fresh) == int(number)
                            else:
                                assert len(fresh) <= 1
                                count, expected = count + len(fresh), expected + number
                                variance += number * (1 - number)
                            lowest = sorted(eligible, key=lambda i, u=utility: u[i])[: len(fresh)]
                            assert sorted(lowest) == list(fresh), (t, role, part, layer, e)
                            one.replaced(fresh)
                        total += len(fresh)
                        np.testing.assert_array_equal(units.age[e], one.age)
                        np.testing.assert_allclose(units.utility[e], one.u, rtol=2e-4, atol=1e-7)
                        drawn = np.asarray(new[part].hidden[layer].kernel)[e][:, fresh]
                        bound = np.sqrt(3 / drawn.shape[0])
                        assert (np.abs(drawn) <= bound).all()
                        assert not len(fresh) or np.abs(drawn).max() > 0.1 * bound
                        want[layer][0][e][:, fresh], want[layer][1][e][fresh] = drawn, 0
                        want[layer + 1][0][e][fresh] = 0
                for layer in range(2):  # a weight between two units that both begin anew is an incoming one
                    for e in range(len(samples)):
                        fresh = np.flatnonzero((np.asarray(done.own[role][part][layer].age[e]) == 0) & (samples[e] > 0))
                        want[layer][0][e][:, fresh] = np.asarray(new[part].hidden[layer].kernel)[e][:, fresh]
                for found, (kernel, bias) in zip((*new[part].hidden, new[part].head), want, strict=True):
                    np.testing.assert_array_equal(found.kernel, kernel)
                    np.testing.assert_array_equal(found.bias, bias)
            for a, b in zip(jax.tree.leaves(done.weights[role][1:]), jax.tree.leaves(weights[role][1:]), strict=True):
                np.testing.assert_array_equal(a, b)  # Adam's moments stay, as published
        assert float(done.replaced) == total
        own, weights = done.own, done.weights
    assert idle > steps / 10  # else unused experts were not tested
    if variance:
        assert abs(count - expected) < 4 * np.sqrt(variance)
        assert count > 20
    unused = [one.age.max() for (role, part, *_), one in plain.items() if (role, part) == ("actor", "expert")]
    assert rate > 0.1 or min(unused) < steps  # an expert that met fewer batches is younger than the run


def test_cbp_reaches_no_unit_before_maturity():
    method = CBP(replacement_rate=1.0, maturity=10)
    nets = pair("mlp", width=6)
    own, weights = method.init(nets, jax.random.key(0)), moments_of(nets)
    trace = looked_at(nets, networks.states(4))
    after = jax.jit(lambda own, key: method.after(own, weights, step_of(nets, trace, key)))
    for t in range(10):
        own, _, replaced = after(own, jax.random.key(t))
        assert replaced == 0
    own, _, replaced = after(own, jax.random.key(10))
    assert replaced == 2 * 6 * 2  # all of them, actor and critic


def test_impossible_settings_are_answered_in_a_sentence():
    with pytest.raises(ValueError, match="replacement_rate=2"):
        CBP(replacement_rate=2)
    with pytest.raises(ValueError, match="period=0"):
        ReDo(period=0)
    with pytest.raises(ValueError, match="window=0"):
        ReDo(window=0)


# ReDo -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mlp", "top-k", "soft"])
def test_redo_masks_redraws_and_forgets(kind):
    method = ReDo(tau=0.3, period=7, window=1)
    nets = pair(kind, width=12, experts=4, top_k=1, layer_norm=kind == "top-k", depth=2)
    own = method.init(nets, jax.random.key(0))
    weights = moments_of(nets)
    obs = networks.states(5)
    trace = looked_at(nets, obs)
    after = jax.jit(lambda steps: method.after(own, weights, step_of(nets, trace, jax.random.key(3), steps)))
    for steps in (0, 5, 7):  # not due
        done = after(steps)
        assert done.replaced == 0
        for a, b in zip(jax.tree.leaves(done.weights), jax.tree.leaves(weights), strict=True):
            np.testing.assert_array_equal(a, b)
    done = after(6)
    total, kept = 0, 0
    for role, net in nets.items():
        which = kind if role == "actor" else "mlp"
        if which == "top-k":  # the plain statement has no LayerNorm: take features from the trace, routing from numpy
            gate = np_gate("top-k", net.trunk, np.asarray(obs))
            samples = {"expert": (gate != 0).sum(axis=0), "gate": [len(obs)]}
            means = {
                "expert": [
                    np.stack(
                        [
                            np.abs(np.asarray(h))[gate[:, e] != 0, e].mean(axis=0)
                            if samples["expert"][e]
                            else np.zeros(12)
                            for e in range(4)
                        ]
                    )
                    for h in trace[role].mixtures[0].hidden
                ],
                "gate": [
                    np.abs(np.asarray(layer.input)).mean(axis=0)
                    for layer in trace[role].layers
                    if layer.part == "gate" and layer.kind == "linear"
                ][1:],
            }
            seen = {part: (means[part], samples[part]) for part in means}
        else:
            seen = np_activity(net.trunk, which, obs)
        before, now = (tuple(mlps(tree) for tree in one) for one in (weights[role], done.weights[role]))
        for part, (means_of, samples_of) in seen.items():
            for layer, mean in enumerate(means_of):
                for e in range(len(mean)):
                    score = mean[e] / (mean[e].mean() + 1e-9)
                    dormant = (score <= 0.3) & (samples_of[e] > 0)
                    total, kept = total + dormant.sum(), kept + (~dormant).sum()
                    for number in range(3):  # parameters, mu, nu
                        old, new = before[number][part], now[number][part]
                        into, out = np.asarray(new.hidden[layer].kernel)[e], (*new.hidden, new.head)[layer + 1]
                        was = np.asarray(old.hidden[layer].kernel)[e]
                        alive = ~dormant if layer == 0 else None
                        if layer == 0:
                            np.testing.assert_array_equal(into[:, alive], was[:, alive])
                        if number == 0:
                            assert not (into[:, dormant] == was[:, dormant]).any()
                            assert (np.abs(into[:, dormant]) < 4 * into.shape[0] ** -0.5).all()
                        else:
                            np.testing.assert_array_equal(into[:, dormant], 0)
                        np.testing.assert_array_equal(np.asarray(new.hidden[layer].bias)[e][dormant], 0)
                        np.testing.assert_array_equal(np.asarray(out.kernel)[e][dormant], 0)
                        if new.norms:
                            np.testing.assert_array_equal(np.asarray(new.norms[layer].scale)[e][dormant], number == 0)
                np.testing.assert_array_equal(now[0][part].head.bias, before[0][part].head.bias)
    assert float(done.replaced) == total
    assert total > 5
    assert kept > 5
    if kind == "top-k":
        assert min(samples["expert"]) == 0  # an expert without samples was there, and stayed


@pytest.mark.parametrize("kind", ["mlp", "top-k", "soft"])
def test_redo_judges_by_all_samples_of_its_last_minibatches(kind):
    """Three of them are one that is three times as large; what came before them does not count, nor what came before
    the last time."""
    nets = pair(kind, width=12, experts=4, top_k=1, depth=2)
    weights = moments_of(nets)
    obs = [networks.states(4, seed=i) for i in range(5)]
    traces = [looked_at(nets, one) for one in obs]
    together = looked_at(nets, jnp.concatenate(obs[2:]))
    key = jax.random.key(3)

    def stepped(method):
        return jax.jit(lambda own, trace, steps: method.after(own, weights, step_of(nets, trace, key, steps)))

    once, several = (stepped(ReDo(tau=0.3, period=5, window=window)) for window in (1, 3))
    fresh = ReDo().init(nets, key)
    want = once(fresh, together, 4)
    for start in (0, 5):  # a second time as the first
        own = fresh
        for steps, trace in enumerate(traces):
            done = several(own, trace, start + steps)
            own = done.own
        assert done.replaced == want.replaced > 3
        for a, b in zip(jax.tree.leaves(done.weights), jax.tree.leaves(want.weights), strict=True):
            np.testing.assert_array_equal(a, b)
        for a, b in zip(jax.tree.leaves(own), jax.tree.leaves(fresh), strict=True):
            np.testing.assert_array_equal(a, b)
    assert once(fresh, traces[-1], 4).replaced != want.replaced  # that one alone says something else


def test_a_reset_touches_one_unit_and_its_weights_only():
    net = GaussianActor(networks.network("top-k", layer_norm=True), networks.ACT)
    parts = mlps(net)
    units = np.zeros((5, 16), bool)
    units[2, 7] = True
    parts["expert"] = reset_units(parts["expert"], 0, jnp.asarray(units), jnp.full((5, OBS, 16), 9.0))
    changed = jax.tree.map(lambda a, b: np.argwhere(np.asarray(a != b)), with_mlps(net, parts), net)
    found = {
        jax.tree_util.keystr(path): len(rows)
        for path, rows in jax.tree_util.tree_leaves_with_path(changed)
        if len(rows)
    }
    experts = ".trunk.experts"
    assert found == {
        f"{experts}.hidden[0].kernel": OBS,
        f"{experts}.hidden[0].bias": 1,
        f"{experts}.hidden[1].kernel": 16,
        f"{experts}.norms[0].scale": 1,
        f"{experts}.norms[0].bias": 1,
    }
