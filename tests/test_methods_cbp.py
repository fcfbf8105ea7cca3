"""CBP against a plain statement over hundreds of steps, and before maturity."""

import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest
from networks import OBS
from units import looked_at, moments_of, np_activity, pair, step_of

from sphere.methods import CBP
from sphere.methods.units import mlps


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
