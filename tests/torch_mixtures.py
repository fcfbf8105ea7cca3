"""Features and chosen experts of made-up mixtures, in numpy."""

import numpy as np


def random_mixture(rng, n, k, width, experts, *, skew=0.0):
    """Features and chosen experts; `skew` 1: expert 0 is in every row."""
    chosen = np.stack([rng.permutation(experts)[:k] for _ in range(n)])
    for row in chosen[rng.random(n) < skew]:
        if 0 not in row:
            row[0] = 0
    return rng.normal(size=(n, k, width)), chosen
