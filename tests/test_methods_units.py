"""CBP and ReDo against plain numpy statements, unit by unit and expert by expert, written from the publications."""

import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest
from networks import MIXTURES, OBS, np_gate
from units import looked_at, moments_of, np_activity, pair, step_of

from sphere.methods import CBP, ReDo
from sphere.methods.units import activities, mlps, reset_units, with_mlps
from sphere.nets import GaussianActor


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


def test_impossible_settings_are_answered_in_a_sentence():
    with pytest.raises(ValueError, match="replacement_rate=2"):
        CBP(replacement_rate=2)
    with pytest.raises(ValueError, match="period=0"):
        ReDo(period=0)
    with pytest.raises(ValueError, match="window=0"):
        ReDo(window=0)


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
