"""The numbers that are shown over training: what each is called, what it says, its unit, and which way is better."""

from typing import NamedTuple

from sphere.report.names import score_of


class MetricInfo(NamedTuple):
    word: str
    meaning: str = ""
    """In half a sentence, for people who have not read docs/diagnostics.md."""
    unit: str = ""
    better: int = 0
    """1: more is better, -1: less is better, 0: neither by itself."""


MEASURES = {
    "ntk_rank": MetricInfo("r_e(K)", "directions in which one update can move the network", "directions", 1),
    "feature_rank": MetricInfo("r_e(A_last)", "directions that the experts' features fill", "directions", 1),
    "dormant_ratio": MetricInfo("dormant units", "units of experts that hardly ever act", "share of units", -1),
    "feature_norm": MetricInfo("feature norm", "length of the experts' features", "norm"),
    "gradient_norm": MetricInfo("gradient norm", "how strongly outputs answer to the parameters", "norm"),
    "saturation": MetricInfo(
        "actions cut off", "exploring actions beyond what the simulator takes", "share of actions", -1
    ),
    "trace_weight_entropy": MetricInfo(
        "trace-weight entropy", "how evenly features come from all experts", "0 to 1", 1
    ),
    "overlap": MetricInfo("overlap", "how alike the features of two chosen experts are", "cosine", -1),
    "orthogonality": MetricInfo(
        "orthogonality", "how unlike the features of two chosen experts are", "1 − |cosine|", 1
    ),
    "silhouette": MetricInfo("silhouette", "how clearly the gate tells the experts' states apart", "−1 to 1", 1),
    "knn_jaccard": MetricInfo("kNN Jaccard", "how far states that are alike get the same experts", "0 to 1", 1),
    "max_violation": MetricInfo("MaxVio", "load of the busiest expert above the mean", "times the mean load", -1),
    "active_ratio": MetricInfo("active experts", "experts that any state is sent to", "share of experts", 1),
    "routing_entropy": MetricInfo("routing entropy", "how evenly states are spread over experts", "0 to 1", 1),
}
"""Directions of the last seven as in the paper's table of expert specialisation."""

PLACES = {
    "heldout": "held-out states",
    "online": "states of the last rollout",
    "standardised": "held-out states, standardised",
}
UNITS = {"success": "share of episodes", "accuracy": "share of examples", "return": "return of an episode"}
"""Of scores, by their words."""
DIRECTIONS = {1: "↑ more is better", -1: "↓ less is better", 0: "neither way is better by itself"}


def measure(name: str) -> MetricInfo:
    """Of a metric by its name in records: "heldout/ntk_rank", "heldout/critic/ntk_rank", "evaluation/return"."""
    place, _, rest = name.partition("/")
    if place == "evaluation":
        score = score_of(rest)
        better = 0 if rest == "length" else 1
        return MetricInfo(score.meaning, unit=UNITS.get(score.word, ""), better=better)
    role, _, last = rest.rpartition("/")
    found = MEASURES.get(last) or MetricInfo((last or place).replace("_", " "))
    return found._replace(word=f"{found.word}, {role}") if role else found


def metric_words(name: str) -> str:
    return measure(name).word


def full_words(name: str) -> str:
    """With the states that a number is of: for tables that have several kinds."""
    place = PLACES.get(name.partition("/")[0])
    return f"{metric_words(name)}, {place}" if place else metric_words(name)


def is_bounded(metric: str) -> bool:
    """Whether a metric over training is a score between 0 and 1."""
    place, _, column = metric.partition("/")
    return place == "evaluation" and score_of(column).bounded
