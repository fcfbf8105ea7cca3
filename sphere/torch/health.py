"""Is the mixture alive: load, entropy, active experts, overlap and rank of one batch, by the names of the report."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sphere.torch import checks
from sphere.torch.penalty import spread
from sphere.torch.spectrum import effective_rank_spsd, power_of_two, spectral_entropy


class RoutingHealth(NamedTuple):
    """Numbers of one layer of experts on one batch; definitions: docs/diagnostics.md. NaN: does not apply."""

    routing_entropy: float  # H(load) / log E: 1 if balanced; 0 for a single expert
    active_ratio: float  # share of experts that were chosen at all
    max_violation: float  # max_e |c_e - mean c| / mean c: 0 if balanced
    expert_load: Tensor  # [experts], sums to 1
    feature_rank: float  # r_e(A_last)
    feature_norm: float  # mean length of a row of phi
    overlap: float  # mean cosine between the features of two experts of one row; NaN: no row has two
    orthogonality: float  # mean of 1 - |cosine|
    trace_weight_entropy: float  # H(beta) / log E, beta_e = Tr(A_ee) / Tr(A)

    def numbers(self, prefix: str = "") -> dict[str, float]:
        """For a logger: all but the vector, and only what applies."""
        found = {name: value for name, value in self._asdict().items() if isinstance(value, float)}
        return {f"{prefix}{name}": value for name, value in found.items() if not math.isnan(value)}


@torch.no_grad()
def routing_health(features: Tensor | None, experts: Tensor, num_experts: int, samples: int = 2048) -> RoutingHealth:
    """Of gate-weighted features [n, k, width] and the chosen experts [n, k], as in `routed_penalty`.

    Without features (None) what needs them is NaN. `feature_rank` needs a matrix [n, n]: of more than `samples` rows it
    is taken from so many, evenly spaced.
    """
    if features is None:
        if not isinstance(experts, Tensor) or experts.ndim != 2 or not experts.numel():
            raise ValueError("experts must be a tensor [samples, chosen experts] with at least one row")
        experts = checks.indices("experts", experts, experts.shape, num_experts, experts.device)
    else:
        features = checks.real("features", features, 3, "[samples, chosen experts, width]")
        experts = checks.indices("experts", experts, features.shape[:2], num_experts, features.device)
    counts = torch.bincount(experts.reshape(-1), minlength=num_experts).double()
    load = counts / counts.sum()
    return RoutingHealth(
        _share_of_log(spectral_entropy(counts), num_experts),
        float((counts > 0).double().mean()),
        float((counts - counts.mean()).abs().max() / counts.mean()),
        load,
        *(_of_features(features, experts, num_experts, samples) if features is not None else (math.nan,) * 5),
    )


def _of_features(features: Tensor, experts: Tensor, num_experts: int, samples: int) -> tuple[float, ...]:
    with torch.autocast(features.device.type, enabled=False):
        factor = _power_of_two(features)
        features = features * factor
        mass = features.square().sum(dim=2)
        by_expert = mass.new_zeros(num_experts).index_add(0, experts.reshape(-1), mass.reshape(-1))
        return (
            feature_rank(features, experts, num_experts, samples),
            float(mass.sum(dim=1).sqrt().mean()) / factor,
            *_similarity(features),
            _share_of_log(spectral_entropy(by_expert), num_experts),
        )


def _power_of_two(features: Tensor) -> float:
    """1 up to entries of 1.7e7, else what brings the largest to about 1: squares of features of 1e18, summed, overflow.
    Exact, as in `sphere.values.moderate`."""
    largest = checks.largest(features)
    return power_of_two(largest) if largest > 2.0**24 else 1.0


def feature_rank(features: Tensor, experts: Tensor, num_experts: int, samples: int) -> float:
    """r_e(A_last), from the smaller of the feature Gram and the sample Gram: the larger one is singular."""
    n, k, width = features.shape
    if n > samples:
        # in whole numbers: of a fraction just below one, devices make different rows
        rows = torch.arange(samples, device=features.device) * (n - 1) // max(1, samples - 1)
        features, experts, n = features[rows], experts[rows], samples
    if num_experts * width <= n:
        phi = spread(features, experts, num_experts)
        return float(effective_rank_spsd(phi.T @ phi / n))
    kernel = features.new_zeros(n, n)
    for i in range(k):
        for j in range(k):
            same = experts[:, i, None] == experts[None, :, j]
            kernel += torch.where(same, features[:, i] @ features[:, j].T, 0)
    return float(effective_rank_spsd(kernel / n))


def _similarity(features: Tensor) -> tuple[float, float]:
    """Means of cos and of 1 - |cos| over all rows and pairs of their experts; cos = 0 where a vector is zero."""
    k = features.shape[1]
    if k < 2:
        return math.nan, math.nan
    length = features.norm(dim=2, keepdim=True)
    unit = torch.where(length == 0, 0, features / torch.where(length == 0, 1, length))
    cosine = (unit @ unit.mT)[:, ~torch.eye(k, dtype=torch.bool, device=features.device)]
    return float(cosine.mean()), float((1 - cosine.abs()).mean())


def _share_of_log(entropy: Tensor, number: int) -> float:
    return float(entropy) / math.log(number) if number > 1 else 0.0
