"""A claim of the paper as a value: two settings, which of them is ahead, and by how much."""

from dataclasses import dataclass

from sphere.report.paper import Printed


@dataclass(frozen=True)
class Side:
    """The runs of one label and which number of them is compared."""

    label: str
    protocol: str = "crl"
    suite: str | None = None
    number: str = "success"
    """success, final success, hours, or a metric at an evaluation or over all: "first heldout/ntk_rank", "last ...",
    "mean ..."."""

    @property
    def words(self) -> str:
        return f"{self.label} under RL" if self.protocol == "rl" else self.label


@dataclass(frozen=True)
class Claim:
    text: str
    sides: tuple[Side, ...]
    """Two: the first over the second. Four: how much of the gap RL - CRL of the first pair the second has closed."""
    printed: tuple[Printed, ...] | None = None
    """The paper's number of each side."""
    below: bool = False
    """Where the paper prints no number: the first is claimed to be below the second."""

    @property
    def nothing(self) -> float:
        """The effect if there is none."""
        return 0.0 if len(self.sides) == 4 else 1.0

    @property
    def paper(self) -> float | None:
        if self.printed is None:
            return None
        means = [one.mean for one in self.printed]
        if len(means) == 4:
            return 1 - (means[2] - means[3]) / (means[0] - means[1])
        return means[0] / means[1]


def claim(
    first: Side,
    second: Side,
    printed: tuple[Printed, Printed] | None = None,
    *,
    below: bool = False,
    text: str | None = None,
) -> Claim:
    """In words: which one is ahead by the paper's numbers."""
    if printed is not None:
        below = printed[0].mean < printed[1].mean
    relation = "below" if below else "above"
    if printed is not None and abs(printed[0].mean / printed[1].mean - 1) < 0.01:
        relation = "as good as"
    return Claim(text or f"{first.words} {relation} {second.words}", (first, second), printed, below)
