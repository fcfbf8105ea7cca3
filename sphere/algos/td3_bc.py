"""TD3+BC (Fujimoto 2021): TD3 on recorded data, with a term that keeps the actor near the actions of the data."""

from dataclasses import dataclass
from typing import ClassVar

from sphere.algos.td3 import TD3


@dataclass(frozen=True)
class TD3BC(TD3):
    """TD3+BC on recorded data, in the authors' form. A step is an update; nothing is collected."""

    name: ClassVar[str] = "td3-bc"
    title: ClassVar[str] = "TD3+BC"
    # settings of TD3 that have no meaning here
    form: ClassVar[str] = "authors"  # type: ignore[misc]
    num_envs: ClassVar[int] = 1  # type: ignore[misc]
    update_ratio: ClassVar[float] = 1.0  # type: ignore[misc]
    buffer_size: ClassVar[int] = 2**31  # type: ignore[misc]
    learning_starts: ClassVar[int] = 0  # type: ignore[misc]
    exploration: ClassVar[float] = 0.0  # type: ignore[misc]

    rollout_steps: int = 1000
    """Updates of an iteration."""
    alpha: float = 2.5  # type: ignore[misc]
    """Weight of the value beside the distance to the data's actions; the value is divided by its own mean size."""

    @property
    def memory(self) -> int:
        """The data set is the memory, one for all runs."""
        return 0
