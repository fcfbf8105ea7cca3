"""The empirical neural tangent kernel K = J J^T of any module, exact for small batches, estimated for others.

Row i of J is the gradient of f(x_i), the sum of the module's outputs for sample i, by the parameters. One forward pass
serves all of it, so that a module with dropout or a random router is seen in one state.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sphere.torch.spectrum import effective_rank_spsd

EXACT = 2**28
"""Numbers in a Jacobian up to which it is formed: 1 GB in float32."""


class Estimate(NamedTuple):
    value: float
    standard_error: float  # 0 where the value is exact
    method: str  # "exact" or "slq"

    @property
    def interval(self) -> tuple[float, float]:
        """About 95%: two standard errors to both sides of log r_e, and nothing below 1, where no rank is."""
        far = math.exp(2 * self.standard_error / self.value) if self.value else 1.0
        return max(self.value / far, min(self.value, 1.0)), self.value * far


def ntk_effective_rank(
    module: nn.Module,
    x: Any,
    method: str = "auto",
    *,
    params: Iterable[Tensor] | None = None,
    forward: Callable[[nn.Module, Any], Tensor] | None = None,
    probes: int = 64,
    depth: int = 32,
    seed: int = 0,
) -> Estimate:
    """r_e(K), spectral plasticity: in how many directions an update can move the outputs on the samples x.

    `exact` forms the Jacobian, `slq` estimates by stochastic Lanczos quadrature with `probes` random vectors and
    `depth` steps (the paper's way), `auto` is exact up to 2^28 numbers in the Jacobian. `params`: by which parameters,
    all that are trained if None (leave out a policy's log standard deviation). `forward(module, x)` gives [n] or [n,
    ...] where the module does not.
    """
    if method not in ("auto", "exact", "slq"):
        raise ValueError(f"method {method!r} is not known; use auto, exact or slq")
    weights = _weights(module, params)
    with torch.enable_grad():
        outputs = _outputs(module, x, forward)
        if method == "auto":
            method = "exact" if outputs.numel() * sum(w.numel() for w in weights) <= EXACT else "slq"
        if method == "exact":
            return Estimate(float(effective_rank_spsd(_gram(outputs, weights))), 0.0, "exact")
        generator = torch.Generator().manual_seed(seed)
        z = 2.0 * torch.randint(2, (probes, outputs.numel()), generator=generator) - 1  # Rademacher
        return slq(_multiplier(outputs, weights), z.to(outputs), depth)


def ntk_gram(
    module: nn.Module,
    x: Any,
    *,
    params: Iterable[Tensor] | None = None,
    forward: Callable[[nn.Module, Any], Tensor] | None = None,
) -> Tensor:
    """K [n, n], exact. Needs the Jacobian [n, parameters] in memory."""
    weights = _weights(module, params)
    with torch.enable_grad():
        return _gram(_outputs(module, x, forward), weights)


def slq(multiply: Callable[[Tensor], Tensor], z: Tensor, depth: int) -> Estimate:
    """r_e of the matrix behind `multiply` from probes z [probes, n]. With T the mean of z^T K z and F that of
    z^T K log K z, log r_e = log T - F / T, kept between 1 and n; the standard error is that of this ratio to first
    order. With few probes the estimate is too high on average and its error bar too short (docs/metrics.md)."""
    if len(z) < 2:
        raise ValueError(f"probes={len(z)}: a standard error needs at least 2")
    found = torch.stack([_quadrature(multiply, row, min(depth, z.shape[1])) for row in z]).double()
    traces, entropies = found.T
    trace, entropy = traces.mean(), entropies.mean()
    if float(trace) == 0:
        return Estimate(0.0, 0.0, "slq")
    rank = min(max(float((trace.log() - entropy / trace).exp()), 1.0), float(z.shape[1]))
    slope = traces / trace - (entropies - entropy * traces / trace) / trace
    return Estimate(rank, rank * float(slope.std()) / len(z) ** 0.5, "slq")


def _weights(module: nn.Module, params: Iterable[Tensor] | None) -> list[Tensor]:
    weights = [w for w in (module.parameters() if params is None else params) if w.requires_grad]
    if not weights:
        raise ValueError("the module has no parameters that require gradients; unfreeze some or pass params")
    return weights


def _outputs(module: nn.Module, x: Any, forward: Callable[[nn.Module, Any], Tensor] | None) -> Tensor:
    found = module(x) if forward is None else forward(module, x)
    if not isinstance(found, Tensor):
        raise TypeError(
            f"the module gives a {type(found).__name__}, wanted a tensor [n] or [n, ...]; "
            "pass forward=lambda module, x: module(x).logits or the like"
        )
    if found.ndim == 0 or not found.numel():
        raise ValueError(f"the module gives shape {tuple(found.shape)}, wanted [n] or [n, ...] with a row per sample")
    if not found.requires_grad:
        raise ValueError("the module's output has no gradient; is it detached, or computed under no_grad?")
    scalars = found.reshape(len(found), -1)
    # in float32 at least: LAPACK has no half precision
    scalars = (scalars if scalars.dtype == torch.float64 else scalars.float()).sum(dim=1)
    if not bool(torch.isfinite(scalars).all()):
        raise ValueError("the module's output holds NaN or infinite numbers; look for a diverged loss")
    return scalars


def _gram(outputs: Tensor, weights: list[Tensor]) -> Tensor:
    """Row by row: vmap over the backward pass knows no random or data-dependent operation, and a mixture has some."""
    rows = []
    for output in outputs:
        found = torch.autograd.grad(output, weights, retain_graph=True, allow_unused=True)
        rows.append(torch.cat([_flat(g, w) for g, w in zip(found, weights, strict=True)]).to(outputs.dtype))
    jacobian = torch.stack(rows)
    if not bool(jacobian.any()):
        raise ValueError("the module's output does not depend on any of its parameters; pass params that it depends on")
    with torch.autocast(jacobian.device.type, enabled=False):
        return jacobian @ jacobian.T


def _flat(gradient: Tensor | None, weight: Tensor) -> Tensor:
    return weight.new_zeros(weight.numel()) if gradient is None else gradient.reshape(-1)


def _multiplier(outputs: Tensor, weights: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """v -> J (J^T v). J u is the derivative by w of (J^T w) . u, so that only backward passes are needed."""
    w = torch.ones_like(outputs, requires_grad=True)
    pulled = torch.autograd.grad(outputs, weights, w, create_graph=True, allow_unused=True)
    reached = [(weight, g) for weight, g in zip(weights, pulled, strict=True) if g is not None and g.requires_grad]
    used, back = [weight for weight, _ in reached], [g for _, g in reached]
    if not used:
        raise ValueError("the module's output does not depend on any of its parameters; pass params that it depends on")

    def multiply(v: Tensor) -> Tensor:
        pulled = torch.autograd.grad(outputs, used, v.to(outputs.dtype), retain_graph=True)
        # divided before J is applied and multiplied after, in float64: of small outputs K is out of float32's range
        size = max(float(g.abs().max()) for g in pulled if g.numel()) or 1.0
        found = torch.autograd.grad(back, w, [g / size for g in pulled], retain_graph=True)[0]
        return found.double() * size

    return multiply


def _quadrature(multiply: Callable[[Tensor], Tensor], z: Tensor, depth: int) -> Tensor:
    """z^T K z and z^T K log K z; NaN if one product with K is."""
    length = z.double().norm()
    tridiagonal = lanczos(multiply, z / length.to(z.dtype), depth)
    if not bool(torch.isfinite(tridiagonal).all()):
        return torch.full((2,), math.nan, dtype=torch.float64)
    value, vector = torch.linalg.eigh(tridiagonal)
    tiny = torch.finfo(z.dtype).eps * len(z) * value.abs().max()
    value = torch.where(value <= tiny, 0, value)
    weight = length**2 * vector[0].square()
    logarithm = torch.where(value == 0, 1, value).log()
    return torch.stack([length**2 * tridiagonal[0, 0], (weight * value * logarithm).sum()]).cpu()


def lanczos(multiply: Callable[[Tensor], Tensor], start: Tensor, depth: int) -> Tensor:
    """T = Q^T K Q, tridiagonal, Q an orthonormal basis of span(v, K v, ...) from the unit vector v. Each vector is made
    orthogonal to all before it, twice; where the space is used up the rest of T is zero. In float64: of the products
    only as many digits count as the type of v has."""
    if depth < 1:
        raise ValueError(f"depth={depth}: Lanczos takes at least 1 step; 32 are enough for most spectra")
    used_up = 10 * torch.finfo(start.dtype).eps * len(start) ** 0.5
    q = start.double() / start.double().norm()
    tridiagonal = q.new_zeros(depth, depth)
    basis, scale = q.new_zeros(depth, len(q)), 0.0
    for i in range(depth):
        basis[i] = q
        w = multiply(q).detach().double()
        tridiagonal[i, i] = q @ w
        scale = max(scale, float(w.norm()))
        for _ in range(2):
            w = w - basis.T @ (basis @ w)
        beta = w.norm()
        if i + 1 == depth or float(beta) <= used_up * scale:
            break
        tridiagonal[i, i + 1] = tridiagonal[i + 1, i] = beta
        q = w / beta
    return tridiagonal
