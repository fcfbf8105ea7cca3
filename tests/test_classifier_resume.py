"""A fleet of classifiers: records, exact resume after an exception and after kill -9, saved policies."""

import json

import fleets
import kill
import numpy as np
import pytest
from fleets import assert_same

import sphere
from sphere.algos.classifier import Classifier
from sphere.data.squares import Squares
from sphere.data.streams import COLUMNS, Stream
from sphere.nets import NetConfig
from sphere.training.loop import train
from sphere.training.settings import Evaluation, FleetConfig

TINY = FleetConfig(
    tasks=("squares/0", "squares/1"),
    steps_per_task=200,
    seeds=(0, 1),
    rho=(0.0, 0.1),
    learner=Classifier(examples=50, batch_size=25, actor=NetConfig(width=8, depth=1, experts=3)),
    source=Stream(classes=5, per_class=10, test_per_class=10, augment=True),
    evaluation=Evaluation(heldout=8, retention=True),
    checkpoint_every=2,
)
SPEC = {"observation": (192,), "action": 10, "low": (), "high": (), "vocabulary": 0}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    directory = tmp_path_factory.mktemp("straight") / "fleet"
    train(TINY, directory, quiet=True)
    return directory


def test_records_say_what_they_are_and_how_well_it_went(straight):
    for run in TINY.runs:
        record = json.loads((straight / run.name / "config.json").read_text())
        assert (record["learner"], record["source"], record["score"]) == ("classifier", "stream", "accuracy")
        assert record["columns"] == list(COLUMNS)
        assert record["label"] == ("SPHERE" if run.numbers["rho"] else "Top-K MoE")
        lines = [json.loads(line) for line in (straight / run.name / "episodes.jsonl").read_text().splitlines()]
        kinds = [(line["task"], line["kind"], line["step"]) for line in lines]
        assert kinds[:3] == [
            ("squares/0", "evaluation", 200),
            ("squares/0", "retention", 200),
            ("squares/1", "retention", 200),
        ]
        assert kinds[3:] == [("squares/1", "evaluation", 400), ("squares/0", "final", 400), ("squares/1", "final", 400)]
        assert all(line["accuracy"] == line["accuracy_of_all"] for line in lines)
        assert all(0 <= line[name] <= 1 for line in lines for name in COLUMNS)
        events = [json.loads(line) for line in (straight / run.name / "metrics.jsonl").read_text().splitlines()]
        assert [event["step"] for event in events if "train/loss" in event] == [50 * i for i in range(1, 9)]
        assert all(1 <= event["heldout/ntk_rank"] <= 8 for event in events if "heldout/ntk_rank" in event)


@pytest.mark.parametrize("iterations", [3, 6])
def test_a_run_that_was_cut_off_ends_with_the_same_bits(straight, tmp_path, iterations):
    fleets.write(TINY, tmp_path / "fleet", SPEC)
    fleets.cut_after(iterations, TINY, tmp_path / "fleet")
    train(TINY, tmp_path / "fleet", resume=True, quiet=True)
    assert_same(straight, tmp_path / "fleet")


def test_kill_nine_and_resume_equals_straight_through(straight, tmp_path):
    kill.train_with_kills(TINY, tmp_path / "killed", tmp_path / "cache", 2, seed=0, spec=SPEC)
    assert_same(straight, tmp_path / "killed")


def test_a_saved_classifier_is_evaluated_without_its_source(straight):
    policy = sphere.load(straight, "rho0.1-seed1")
    lines = (straight / "rho0.1-seed1" / "episodes.jsonl").read_text().splitlines()
    final = {line["task"]: line for line in map(json.loads, lines) if line["kind"] == "final"}
    for task in TINY.tasks:
        found = policy.evaluate(task)
        assert found == {name: pytest.approx(final[task][name]) for name in COLUMNS}
    data = Squares.load(None)
    images = ((data.test.obs[:3] / 255 - 0.5) / 0.25).astype(np.float32)
    assert policy.act(images).shape == (3, 10)
