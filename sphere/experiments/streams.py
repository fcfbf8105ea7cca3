"""The paper's supervised streams: SplitCIFAR-100 with an MLP and with a ViT, 20 Newsgroups with a Transformer."""

from collections.abc import Mapping, Sequence

from sphere.experiments.arms import Arm
from sphere.experiments.beside_paper import beside_paper, last_value, success
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.report.run import Run
from sphere.report.statistics import deviation
from sphere.report.tables import MeanStd

PAIR = {"Fine-tune": "none", "SPHERE": "sphere"}
"""The paper's rows, and the method of each."""
WITHIN, OVER_ALL = "accuracy_within_task", "accuracy_of_all"
CALLED = {WITHIN: "within the task", OVER_ALL: "of all classes"}
"""The two scores of a record in words: argmax over the classes of the task, and over all."""
NOTE = (
    "Accuracy on a task's test examples right after its training, mean over tasks; mean and deviation over runs. "
    '"Of all classes": argmax over all of them; "within the task": over those of the task. '
    "The paper's score is {score}. r_e(K) and feature norm are those after the last task, on held-out inputs."
)


def column(runs: Sequence[Run], name: str) -> MeanStd | None:
    """Mean over tasks of a column of outcomes at the end of each task, over the runs that have finished."""
    import numpy as np

    found = []
    for run in runs:
        values = run.curve.values.get(f"evaluation/{name}")
        if run.finished and values is not None and len(values):
            found.append(float(np.nanmean(values)))
    each = np.array(found)
    return MeanStd(float(np.mean(each)), deviation(each)) if each.size else None


def stream(title: str, source: str, arms: Sequence[Arm], score: str, seeds: int = 5) -> Experiment:
    """A row for each arm; `score` is the paper's. Evaluation is at the end of a task only, so the curve of the records
    is one over tasks."""
    labels = list(dict.fromkeys(arm.label for arm in arms))
    other = {WITHIN: OVER_ALL, OVER_ALL: WITHIN}[score]
    words = {"success": CALLED[score]}  # which the paper calls success

    def results(found: Found) -> Results:
        from sphere.report.figures import curves

        rows = {}
        for label in labels:
            runs = found.runs(label)
            rows[label] = {
                "success": success(found.scores(label)),
                CALLED[other]: column(runs, other),
                "r_e(K)": last_value(runs, "heldout/ntk_rank"),
                "feature norm": last_value(runs, "heldout/feature_norm"),
            }
        table = beside_paper("accuracy", title, source, rows, NOTE.format(score=CALLED[score]), words)
        one = found.comparison
        return Results([table], {"over-tasks": curves(one, "crl", [one.curve, "heldout/ntk_rank"])})

    return Experiment(title, source, tuple(arms), results, seeds)


def pair(preset: str) -> list[Arm]:
    return [Arm(label, method, preset=preset) for label, method in PAIR.items()]


TEXT = {
    "newsgroups-all": "softmax over all",
    "newsgroups-post-ln": "post-LN",
    "newsgroups-plain": "plain PyTorch",
}
VIT = {"cifar100-vit-post-ln": "post-LN"}
"""Other forms of the Transformers: the preset, and what its rows are called."""


def forms(presets: Mapping[str, str]) -> list[Arm]:
    return [
        Arm(f"{arm.label}, {form}", arm.method, preset=preset)
        for preset, form in presets.items()
        for arm in pair(preset)
    ]


EXPERIMENTS = {
    "cifar100-mlp": stream(
        "SplitCIFAR-100, Top-K MLP", "tab:splitcifar100-in-task-success", pair("cifar100-mlp"), OVER_ALL
    ),
    "cifar100-vit": stream(
        "SplitCIFAR-100, ViT with Top-K mixtures",
        "tab:splitcifar100-in-task-success-vit",
        [
            *pair("cifar100-vit"),
            Arm("SPHERE, all layers", "sphere", preset="cifar100-vit", penalty={"mixtures": "all"}),
            *forms(VIT),
        ],
        OVER_ALL,
    ),
    "newsgroups": stream(
        "20 Newsgroups, Transformer with Top-K mixtures",
        "tab:20news-in-task-success",
        [*pair("newsgroups"), *forms(TEXT)],
        WITHIN,
        seeds=10,
    ),
}
