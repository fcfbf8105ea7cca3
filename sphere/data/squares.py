"""Made-up images for tests and first tries: 8 x 8 pixels, ten classes, each a pattern of squares with noise. No
files."""

from functools import cache
from typing import Any, ClassVar

import numpy as np

from sphere.data.labelled import Labelled, Split

SIDE, TRAIN, TEST = 8, 40, 20
"""Pixels of a side; images of a class."""


class Squares:
    classes: ClassVar[int] = 10

    @staticmethod
    def load(settings: Any) -> Labelled:
        return _load()


@cache
def _load() -> Labelled:
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 2, size=(Squares.classes, 2, 2, 3)).repeat(SIDE // 2, axis=1).repeat(SIDE // 2, axis=2)

    def split(number: int) -> Split:
        label = np.repeat(np.arange(Squares.classes, dtype=np.int32), number)
        noise = rng.normal(size=(len(label), SIDE, SIDE, 3))
        pixels = np.clip(64 + 128 * patterns[label] + 48 * noise, 0, 255).astype(np.uint8)
        return Split(pixels.reshape(len(label), -1), label)

    names = tuple(f"pattern {i}" for i in range(Squares.classes))
    return Labelled(split(TRAIN), split(TEST), names, (0.5,) * 3, (0.25,) * 3)
