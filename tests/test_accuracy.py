"""Accuracy on texts that are sorted by length and read without most of their padding."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoders import CLASSES, LENGTH, VOCABULARY, image_net, text_net, texts

from sphere.data import accuracy
from sphere.data.labelled import Labelled, Split
from sphere.nets import Logits
from sphere.nets.transformer import longest_text, reading

NONE = Split(np.zeros((0, LENGTH), np.int32), np.zeros(0, np.int32))
DATA = Labelled(NONE, NONE, tuple("abcd"), vocabulary=VOCABULARY)
RUNS, N = 2, 11


def nets():
    return [text_net(1, layers=2, seed=seed) for seed in range(RUNS)]


def stacked(nets):
    return Logits(jax.tree.map(lambda *leaves: jnp.stack(leaves), *nets))


@pytest.fixture(params=["cpu", "gpu"])
def small(request, monkeypatch):
    """Several lengths and chunks, the first not full; runs in turns or side by side."""
    monkeypatch.setattr(jax, "default_backend", lambda: request.param)
    monkeypatch.setattr(accuracy, "TEXTS", 3)


def answers(obs):
    """The best class of all and of the first three, text by text, each without any padding."""
    run = eqx.filter_jit(lambda net, words: net(words)[0])
    logits = np.zeros((RUNS, N, CLASSES))
    for i, net in enumerate(nets()):
        for j, text in enumerate(obs[i]):
            length = int(np.max(np.flatnonzero(text))) + 1
            logits[i, j] = run(reading(net, length), jnp.asarray(text[None, :length]))[0]
    return np.argmax(logits, axis=2), np.argmax(logits[:, :, :3], axis=2)


@pytest.mark.usefixtures("small")
def test_every_text_gets_the_answer_that_it_gets_alone():
    obs = np.stack([texts(N, seed) for seed in range(RUNS)]).astype(np.int32)
    obs[0, obs[0, :, -1] > 0, 0] = 0  # a hole is no end
    of_all, within = answers(obs)
    assert len(np.unique(of_all)) == CLASSES
    allowed = np.tile(np.arange(CLASSES) < 3, (RUNS, 1))
    policy = stacked(nets())
    for label, which in ((of_all, 0), (within, 1)):
        found = accuracy.accuracies(DATA, policy, obs, label, allowed)
        np.testing.assert_array_equal(found[which], 1)
        wrong = label.copy()
        wrong[0, 4] = (label[0, 4] + 1) % CLASSES
        found = accuracy.accuracies(DATA, policy, obs, wrong, allowed)
        np.testing.assert_allclose(found[which], [1 - 1 / N, 1])


def test_chunks_are_by_length_and_what_fills_them_is_never_right():
    obs, label = texts(N).astype(np.int32)[None], np.arange(N)[None]
    rows, labels, last = accuracy.in_chunks(obs, label, 4, sort=True)
    assert rows.shape == (1, 3, 4, LENGTH)
    assert labels.shape == (1, 3, 4)
    order = labels.reshape(-1)
    assert list(order[:1]) == [-1]
    np.testing.assert_array_equal(rows.reshape(-1, LENGTH)[1:], obs[0, order[1:]])
    assert not np.any(rows[0, 0, 0])
    length = np.sum(rows != 0, axis=3)
    assert np.all(np.diff(length.reshape(-1)) >= 0)
    np.testing.assert_array_equal(last, length.max(axis=2))
    rows, labels, last = accuracy.in_chunks(obs, label, 4, sort=False)
    np.testing.assert_array_equal(labels.reshape(-1), [-1, *range(N)])
    assert not np.any(last)


@pytest.mark.parametrize("n", [9, 11])
@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.int64])
def test_classes_may_be_numbers_of_any_kind(kind, n):
    """Those of small data sets are often bytes, of which none is below 0. With and without places to fill."""
    obs, label = np.zeros((1, n, LENGTH), np.uint8), np.arange(n, dtype=kind)[None]
    _, labels, _ = accuracy.in_chunks(obs, label, 3, sort=False)
    np.testing.assert_array_equal(labels.reshape(-1), [*[-1] * (-n % 3), *range(n)])


def test_a_network_for_shorter_texts_is_the_same_network():
    net, x = nets()[0], texts().astype(np.int32)
    x[:, 4:] = 0
    run = eqx.filter_jit(lambda net, x: net(x)[0])
    np.testing.assert_allclose(run(reading(net, 4), jnp.asarray(x[:, :4])), run(net, jnp.asarray(x)), atol=1e-6)
    assert longest_text(Logits(net)) == LENGTH
    assert longest_text(Logits(image_net())) is None
    assert longest_text(Logits(text_net(masked=False))) is None  # padding counts there and is not cut off
    with pytest.raises(ValueError, match=r"wanted \[n, 4\]"):
        reading(net, 4)(jnp.asarray(x))
