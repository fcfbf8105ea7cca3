"""TD3+BC (Fujimoto 2021): TD3 on recorded data, with a term that keeps the actor near the actions of the data."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from sphere.algos.td3 import TD3


@dataclass(frozen=True)
class TD3BC(TD3):
    """TD3+BC on recorded data: steps are updates. The authors' form of TD3."""

    name: ClassVar[str] = "td3-bc"
    title: ClassVar[str] = "TD3+BC"

    rollout_steps: int = 1000
    """Updates of an iteration."""
    alpha: float = 2.5  # type: ignore[misc]
    """Weight of the value beside the distance to the data's actions; the value is divided by its own mean size."""
    form: Literal["sbx", "authors"] = "authors"
    num_envs: int = 1
    update_ratio: float = 1.0
    learning_starts: int = 0
    exploration: float = 0.0

    @property
    def memory(self) -> int:
        """The data set is the memory."""
        return 0
