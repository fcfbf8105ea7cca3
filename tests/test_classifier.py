"""The classifier: its loss and AdamW against PyTorch, head rows of other classes, learning, fleets, methods by name."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoders import CLASSES, LENGTH, VOCABULARY, as_torch, config, forward, texts, torch

from sphere import registry
from sphere.algos import rows
from sphere.algos.classifier import Classifier, masked_cross_entropy
from sphere.algos.learner import Clock, DataSpec
from sphere.algos.source import Wanted
from sphere.data.streams import Stream
from sphere.methods import Sphere
from sphere.nets import NetConfig

TEXT = DataSpec((LENGTH,), CLASSES, vocabulary=VOCABULARY)
SMALL = NetConfig(width=16, depth=2, experts=4)


def numbers_of(learner, runs=1, rho=0.0):
    return {name: jnp.full(runs, value, jnp.float32) for name, value in ({"rho": rho} | learner.numbers).items()}


def started(learner, spec, seeds=(0,), rho=0.0):
    seeds, numbers = np.array(seeds, np.uint32), numbers_of(learner, len(seeds), rho)
    return rows.init(learner, spec, seeds, numbers), numbers, seeds


def batches(runs=1, examples=8):
    rng = np.random.default_rng(0)
    obs = np.stack([texts(examples, seed) for seed in range(runs)])
    allowed = np.array([[True, False, True, False]] * runs)
    return {"obs": obs, "label": rng.choice([0, 2], size=(runs, examples)).astype(np.int32), "allowed": allowed}


def test_the_loss_is_over_the_classes_of_the_task_alone():
    logits = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    label, allowed = np.array([1, 4, 1, 3, 4, 4]), np.array([False, True, False, True, True])
    loss, right = masked_cross_entropy(jnp.asarray(logits), jnp.asarray(label), jnp.asarray(allowed))
    kept = [1, 3, 4]
    want = [
        -math.log(math.exp(row[y]) / sum(math.exp(row[c]) for c in kept)) for row, y in zip(logits, label, strict=True)
    ]
    np.testing.assert_allclose(loss, np.mean(want), rtol=1e-6)
    best = [max(kept, key=lambda c, row=row: row[c]) for row in logits]
    np.testing.assert_allclose(right, np.mean(np.array(best) == label))
    grad = jax.grad(lambda z: masked_cross_entropy(z, jnp.asarray(label), jnp.asarray(allowed))[0])(jnp.asarray(logits))
    assert not np.any(grad[:, ~allowed])
    assert np.all(np.isfinite(grad))


def test_an_epoch_is_torchs_adamw():
    """A Transformer on texts, two minibatches, against PyTorch's AdamW on the plain statement of the network."""
    learner = Classifier(
        examples=8,
        batch_size=4,
        learning_rate=1e-3,
        weight_decay=0.3,
        # large, because Adam divides by |g|: the gradient by a key's bias is 0 but for rounding
        adam_eps=1e-3,
        actor=config(temperature=0.5),
        methods=(),
    )
    state, numbers, seeds = started(learner, TEXT)
    data = batches()
    net = jax.tree.map(lambda leaf: leaf[0], state.nets["actor"].trunk)
    tensors, plain = as_torch(net)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(net)]
    learned = [tensor for tensor, name in zip(tensors, names, strict=True) if "temperature" not in name]
    optimiser = torch.optim.AdamW(learned, lr=1e-3, weight_decay=0.3, eps=1e-3)
    losses = []
    for start in (0, 4):
        part = slice(start, start + 4)
        logits = forward(plain, data["obs"][0, part])[0][:, [0, 2]]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(data["label"][0, part] // 2, dtype=torch.long))
        optimiser.zero_grad()
        loss.backward()
        for tensor in learned:  # what the loss does not reach is decayed too
            tensor.grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        optimiser.step()
        losses.append(loss.item())
    state, metrics = rows.update(learner, state, numbers, data, seeds, Clock(np.int32(0), np.float32(1)))
    np.testing.assert_allclose(metrics["loss"][0], np.mean(losses), rtol=1e-5)
    assert bool(metrics["finite"][0])
    for leaf, tensor, name in zip(jax.tree.leaves(state.nets["actor"].trunk), tensors, names, strict=True):
        np.testing.assert_allclose(leaf[0], tensor.detach().numpy(), atol=2e-6, err_msg=name)


def test_head_rows_of_other_classes_feel_weight_decay_only():
    for decay in (0.0, 0.5):
        learner = Classifier(examples=8, batch_size=4, weight_decay=decay, actor=config(), methods=())
        state, numbers, seeds = started(learner, TEXT)
        before = np.asarray(state.nets["actor"].trunk.head.kernel[0])
        state, _ = rows.update(learner, state, numbers, batches(), seeds, Clock(np.int32(0), np.float32(1)))
        after = np.asarray(state.nets["actor"].trunk.head.kernel[0])
        np.testing.assert_allclose(after[:, [1, 3]], before[:, [1, 3]] * (1 - 5e-4 * decay) ** 2, rtol=1e-6)
        assert np.all(np.any(after[:, [0, 2]] != before[:, [0, 2]], axis=0))


def test_rho_0_gives_the_plain_programs_bits_and_another_rho_does_not():
    plain = Classifier(examples=8, batch_size=4, actor=config(top_k=1), methods=())
    with_penalty = dataclasses.replace(plain, methods=(Sphere(mixtures="all"),))
    moment = Clock(np.int32(0), np.float32(1))
    ends = {}
    for name, learner, rho in (("plain", plain, 0.0), ("0", with_penalty, 0.0), ("0.1", with_penalty, 0.1)):
        state, numbers, seeds = started(learner, TEXT, rho=rho)
        state, metrics = rows.update(learner, state, numbers, batches(), seeds, moment)
        ends[name] = [np.asarray(leaf) for leaf in jax.tree.leaves(state.nets)]
        assert (float(metrics["penalty"][0]) > 0) == (name != "plain")
    assert all(np.array_equal(*pair) for pair in zip(ends["plain"], ends["0"], strict=True))
    assert not all(np.array_equal(*pair) for pair in zip(ends["plain"], ends["0.1"], strict=True))
    np.testing.assert_allclose(metrics["felt"], 0.1, rtol=1e-4)


def trained(seeds, tasks=("squares/0",), epochs=8):
    """A fleet of these seeds: its state, and its accuracy on the last task."""
    learner = Classifier(examples=100, batch_size=20, learning_rate=3e-3, actor=SMALL, methods=())
    settings = Stream(classes=5, per_class=20, test_per_class=20, augment=False)
    (source,) = settings.open(Wanted(tasks, learner.rollout, 1, 0), [list(seeds)])
    state, numbers, runs = started(learner, source.spec, seeds)
    for i, task in enumerate(tasks):
        source.enter(task, None if i == 0 else object())
        for iteration in range(i * epochs, (i + 1) * epochs):
            data, _ = source.collect(None, iteration)
            state, _ = rows.update(learner, state, numbers, data, runs, Clock(np.int32(iteration), np.float32(1)))
    return state, source.evaluate(rows.policy(learner, state), tasks[-1]).columns


def test_it_learns_and_a_fleet_equals_single_runs_bit_for_bit():
    state, found = trained((0, 1, 2))
    assert np.all(found["accuracy_within_task"] > 0.8)  # chance is 0.2
    again, other = trained((0, 1, 2))
    alone, single = trained((1,))
    for one, two, three in zip(*(jax.tree.leaves(s) for s in (state, again, alone)), strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one[1], three[0])
    for name in found:
        np.testing.assert_array_equal(found[name], other[name])
        assert found[name][1] == single[name][0]


@pytest.mark.parametrize("name", registry.METHODS)
def test_every_method_runs_on_it_by_name(name):
    """Traced with all its shapes; `layernorm` changes the experts."""
    method = registry.method(name)()
    learner = Classifier(examples=8, batch_size=4, actor=config(depth=2), methods=(method,))
    numbers = {key: value[0] for key, value in numbers_of(learner, rho=0.1).items()}
    data = {key: jnp.asarray(value[0]) for key, value in batches().items()}
    seed, moment = jnp.zeros((), jnp.uint32), Clock(jnp.int32(0), jnp.float32(1))
    state = jax.eval_shape(lambda: learner.init(TEXT, seed, numbers))
    after, metrics = jax.eval_shape(lambda state: learner.update(state, numbers, data, seed, moment), state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert metrics["finite"].shape == ()
    experts = state.nets["actor"].trunk.blocks[0].mixture.experts
    assert bool(experts.norms) == (name == "layernorm")


def test_several_methods_at_once_keep_all_numbers_finite():
    chosen = tuple(registry.method(name)() for name in ("sphere", "cbp", "spectral-reg", "load-balance"))
    learner = Classifier(examples=8, batch_size=4, actor=config(), methods=chosen)
    state, numbers, seeds = started(learner, TEXT, rho=0.1)
    for i in range(2):
        state, metrics = rows.update(learner, state, numbers, batches(), seeds, Clock(np.int32(i), np.float32(1)))
    assert bool(metrics["finite"][0])


def test_bad_settings_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="not a multiple of batch_size=7; use one of"):
        Classifier(examples=50, batch_size=7)
    with pytest.raises(ValueError, match="weight_decay=-1"):
        Classifier(weight_decay=-1)
    assert Classifier(examples=50, batch_size=64).iteration_steps == 50
    learner = Classifier(actor=NetConfig(experts=4, top_k=5))
    with pytest.raises(ValueError, match="top_k=5 experts of 4"):
        eqx.filter_eval_shape(learner.init, DataSpec((6,), 3), jnp.zeros((), jnp.uint32), {})
