"""`attach`: the penalty in a training loop that one does not own.

The output of a module passes through an identity whose backward step comes before any of the module's own. There the
penalty's gradient is taken, while the graph is whole; once the backward pass is over and the task's gradient stands in
`.grad`, lambda is set and the penalty's gradient added: before the loop clips or steps. `zero_grad` may come before or
after the forward pass. Without a backward pass nothing happens.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from sphere.torch import backward, ranks
from sphere.torch import coefficient as strengths
from sphere.torch.penalty import Mixture, routed_penalty

Penalty = Callable[[nn.Module, Any, Any], Tensor]


class Attached:
    """Adds the penalty whenever a tensor that went through it is differentiated. `remove()` ends that."""

    penalty: float = float("nan")
    coefficient: float = float("nan")
    felt: float = float("nan")

    def __init__(
        self,
        params: Iterable[Tensor],
        rho: float,
        coefficient: str = "gradient-norm",
        floor: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
        ddp: Any = None,
    ) -> None:
        strengths.check(rho, floor, coefficient, ("gradient-norm", "fixed"))
        self.params = backward.trainable(params)
        self.rho, self.floor, self.scaler, self.ddp = rho, floor, scaler, ddp
        self.fixed = coefficient == "fixed"
        self._handles: list[Any] = []
        self._terms: list[float] = []
        self._added: list[Tensor | None] | None = None
        self._before: list[Tensor | None] = []
        self._removed = False

    def __call__(self, tensor: Tensor, penalty: Tensor) -> Tensor:
        """The tensor unchanged; its backward pass will add the penalty. It must lie above all uses of the parameters
        that the penalty depends on: the loss always does, and so does the output of the module that has them."""
        if self._removed or self.rho == 0 or not torch.is_grad_enabled() or not tensor.requires_grad:
            return tensor
        if not penalty.requires_grad:
            raise ValueError("the penalty has no gradient; were the features detached, or made under no_grad?")
        return _Identity.apply(tensor, self, _Held(penalty))

    def remove(self) -> None:
        """No penalty from here on, not even for outputs that were made before."""
        self._removed = True
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> "Attached":
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def take(self, penalty: Tensor) -> None:
        """At the begin of a backward pass: the penalty's gradient, and what `.grad` holds before the task's."""
        if self._removed:
            return
        found = backward.gradient(penalty, self.params, self._scale())
        self._terms.append(float(penalty.detach()))
        if self._added is not None:  # the module ran twice: the penalty is the sum
            pairs = zip(self._added, found, strict=True)
            self._added = [a if b is None else b if a is None else a + b for a, b in pairs]
            return
        self._added = found
        self._before = [None if w.grad is None else w.grad.clone() for w in self.params]
        # queued twice: once for the end of the pass, and once more to come after DistributedDataParallel's own
        engine = Variable._execution_engine
        engine.queue_callback(lambda: engine.queue_callback(self._finish))

    def _finish(self) -> None:
        """At the end of a backward pass: lambda by the task's gradient, and the penalty's into `.grad`."""
        added, before, self._added, self._before = self._added, self._before, None, []
        terms, self._terms = self._terms, []
        if added is None or self._removed:
            return
        group = ranks.averaging(self.params, self.ddp)
        if group is not None:
            ranks.average(added, self.params, group)
            before = ranks.averaged_copy(before, group)
        self.penalty = sum(terms)
        if self.fixed:
            self.coefficient = self.rho
            backward.add(self.params, added, self.rho)
            return
        task = ranks.minus([w.grad for w in self.params], before)
        quiet = self.scaler is not None
        found = backward.combine(task, [added], self.params, [self.rho], self.floor, self._scale(), False, not quiet)
        (self.coefficient,), (self.felt,) = found

    def _scale(self) -> float:
        return float(self.scaler.get_scale()) if self.scaler is not None and self.scaler.is_enabled() else 1.0


class _Held:
    """A tensor that autograd shall not look into."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class _Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, attached: Attached, held: _Held) -> Tensor:
        ctx.attached, ctx.held = attached, held
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            ctx.attached.take(ctx.held.tensor)
        return above, None, None


def attach(
    target: nn.Module | Iterable[Tensor],
    rho: float,
    penalty: Penalty | None = None,
    *,
    coefficient: str = "gradient-norm",
    floor: float | None = None,
    scaler: torch.amp.GradScaler | None = None,
    ddp: Any = None,
) -> Attached:
    """Adds the penalty to the gradients of a loop that one does not own, until `remove()`.

    A module: whenever it is called with gradients on, the penalty of that call is added in the backward pass that goes
    through its output, at `rho` times the length of the task's gradient, over the module's own parameters
    (`coefficient="fixed"`: times rho). `penalty(module, inputs, output)` computes it; by default the module leaves what
    its experts did in `module.mixture`, a `sphere.torch.Mixture`, as `sphere.torch.TopK` does. Silent under `no_grad`.

    Parameters: nothing is hooked; write `loss = attached(loss, penalty)` where the loss is made.

    `attached.penalty`, `.coefficient` and `.felt` are those of the last backward pass. `scaler` and `ddp` as in
    `penalised_backward`.
    """
    module = target if isinstance(target, nn.Module) else None
    params = module.parameters() if module is not None else target
    attached = Attached(params, rho, coefficient, floor, scaler, ddp)
    if module is None:
        return attached
    if penalty is None and not hasattr(module, "mixture"):
        raise ValueError(
            f"{type(module).__name__} has no mixture: pass penalty=function(module, inputs, output), or let its "
            "forward pass set self.mixture = sphere.torch.Mixture(features, experts, num_experts)"
        )
    measure = penalty or _of_mixture

    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        if rho == 0 or not torch.is_grad_enabled() or not any(t.requires_grad for t in _tensors(output)):
            return output
        return _replaced(output, lambda tensor: attached(tensor, measure(module, inputs, output)))

    attached._handles.append(module.register_forward_hook(hook))
    return attached


def _of_mixture(module: nn.Module, inputs: Any, output: Any) -> Tensor:
    mixture = module.mixture
    if not isinstance(mixture, Mixture):
        raise TypeError(f"{type(module).__name__}.mixture is a {type(mixture).__name__}, wanted a sphere.torch.Mixture")
    return routed_penalty(*mixture)


def _tensors(output: Any) -> Sequence[Tensor]:
    found = output if isinstance(output, tuple | list) else (output,)
    return [value for value in found if isinstance(value, Tensor)]


def _replaced(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The output with the first of its tensors that has a gradient changed."""
    if isinstance(output, Tensor):
        return change(output)
    found, done = [], False
    for value in output:
        apply = not done and isinstance(value, Tensor) and value.requires_grad
        found.append(change(value) if apply else value)
        done = done or apply
    return type(output)(found) if type(output) in (tuple, list) else type(output)(*found)
