"""The paper's supervised streams: SplitCIFAR-100 with an MLP and with a ViT, 20 Newsgroups with a Transformer."""

from collections.abc import Sequence

from sphere.experiments.arms import Arm
from sphere.experiments.beside_paper import beside_paper, last_value, success
from sphere.experiments.experiment import Experiment, Found, Results
from sphere.report.run import Run
from sphere.report.statistics import deviation
from sphere.report.tables import Measured

PAIR = {"Fine-tune": "none", "SPHERE": "sphere"}
"""The paper's rows, and the method of each."""
NOTE = (
    "Accuracy on a task's test examples right after its training, mean over tasks; mean and deviation over runs. The "
    'score is by argmax over {score}, as in the paper. The columns "within task" and "of all" are the same '
    "outputs by argmax over the task's classes and over all of them."
)


def column(runs: Sequence[Run], name: str) -> Measured | None:
    """Mean over tasks of a column of outcomes at the end of each task, over the runs that have finished."""
    import numpy as np

    found = []
    for run in runs:
        values = run.curve.values.get(f"evaluation/{name}")
        if run.finished and values is not None and len(values):
            found.append(float(np.nanmean(values)))
    each = np.array(found)
    return Measured(float(np.mean(each)), deviation(each)) if each.size else None


def stream(title: str, source: str, arms: Sequence[Arm], score: str, seeds: int = 5) -> Experiment:
    """A row for each arm. Evaluation is at the end of a task only, so the curve of the records is one over tasks."""
    labels = list(dict.fromkeys(arm.label for arm in arms))

    def results(found: Found) -> Results:
        from sphere.report.figures import curves

        rows = {}
        for label in labels:
            runs = found.runs(label)
            rows[label] = {
                "success": success(found.scores(label)),
                "r_e(K)": last_value(runs, "heldout/ntk_rank"),
                "within task": column(runs, "accuracy_within_task"),
                "of all": column(runs, "accuracy_of_all"),
                "feature norm": last_value(runs, "heldout/feature_norm"),
            }
        table = beside_paper("accuracy", title, source, rows, NOTE.format(score=score))
        one = found.comparison
        return Results([table], {"over-tasks": curves(one, "crl", [one.curve, "heldout/ntk_rank"])})

    return Experiment(title, source, tuple(arms), results, seeds)


def pair(preset: str) -> list[Arm]:
    return [Arm(label, method, preset=preset) for label, method in PAIR.items()]


def over_all(arm: Arm) -> Arm:
    """The same arm with a softmax over all experts."""
    return Arm(f"{arm.label}, softmax over all", arm.method, preset="newsgroups-all")


EXPERIMENTS = {
    "cifar100-mlp": stream(
        "SplitCIFAR-100, Top-K MLP", "tab:splitcifar100-in-task-success", pair("cifar100-mlp"), "all 100 classes"
    ),
    "cifar100-vit": stream(
        "SplitCIFAR-100, ViT with Top-K mixtures",
        "tab:splitcifar100-in-task-success-vit",
        [
            *pair("cifar100-vit"),
            Arm("SPHERE, all layers", "sphere", preset="cifar100-vit", penalty={"mixtures": "all"}),
        ],
        "all 100 classes",
    ),
    "newsgroups": stream(
        "20 Newsgroups, Transformer with Top-K mixtures",
        "tab:20news-in-task-success",
        [*pair("newsgroups"), *map(over_all, pair("newsgroups"))],
        "the ten classes of the task",
        seeds=10,
    ),
}
