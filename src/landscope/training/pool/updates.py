"""Steps of SGD, Adam and AdamW for many models at once: torch's own formulas on stacked tensors.

Parameter k of all n members is one tensor (n, …). Every setting may differ from member to member: it is one number for each,
broadcast over what follows the first dimension. Decay, momentum and bias corrections are those of `torch.optim.SGD`,
`Adam` and `AdamW`, in the same order:

    sgd     g ← g + λ w;  m ← μ m + g;  w ← w − η m           (Nesterov: w ← w − η (g + μ m))
    adam    g ← g + λ w;  m ← m + (1−β₁)(g − m);  v ← β₂ v + (1−β₂) g²;  w ← w − η/(1−β₁ᵗ) · m / (√v/√(1−β₂ᵗ) + ε)
    decoupled decay       w ← (1 − η λ) w first, and no λ w in the gradient

A member with rate η = 0 and gradient 0 stays where it is: that is how a member that failed is frozen. Cost: a few passes over
the parameters, whatever n; everything is done in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from landscope.training.spec import OptimizerSpec

State = dict[str, dict[str, Tensor]]
"""What an optimizer remembers, by its name and the parameter's, stacked as the parameters are."""


class Settings:
    """The optimizer settings of n members: `settings(factor, count)` is what step `count` (from 1) multiplies with, in float64.

    `factor` scales the learning rates.

    >>> settings = Settings([OptimizerSpec(name="adam", lr=0.1), OptimizerSpec(name="adam", lr=0.2)])
    >>> settings(factor=0.5, count=1)["rate"], settings(factor=0.5, count=1)["corrected_rate"]
    (tensor([0.0500, 0.1000], dtype=torch.float64), tensor([0.5000, 1.0000], dtype=torch.float64))
    """

    def __init__(self, specs: Sequence[OptimizerSpec]) -> None:
        rows = [(s.lr, s.momentum, s.betas[0], s.betas[1], s.eps, s.weight_decay) for s in specs]
        columns = torch.tensor(rows, dtype=torch.float64).unbind(1)
        self._lr, self._momentum, self._beta1, self._beta2, self._eps, self._decay = columns
        self._adaptive = specs[0].name != "sgd"
        self._steady: tuple[float, dict[str, Tensor]] | None = None
        self.decays = any(spec.weight_decay for spec in specs)
        self.remembers = self._adaptive or any(spec.momentum for spec in specs)

    def __call__(self, factor: float, count: int) -> dict[str, Tensor]:
        """One number per member, by name; what did not change since the last call are the same tensors."""
        if self._steady is None or self._steady[0] != factor:
            self._steady = factor, self._of(factor)
        steady = self._steady[1]
        if not self._adaptive:
            return dict(steady)
        return {
            **steady,
            "corrected_rate": steady["rate"] / (1 - self._beta1**count),
            "root_correction": (1 - self._beta2**count).sqrt(),
        }

    def _of(self, factor: float) -> dict[str, Tensor]:
        """What does not depend on the step."""
        rate = self._lr * factor
        shared = {"rate": rate, "decay": self._decay, "shrink": 1 - rate * self._decay}
        if not self._adaptive:
            return {**shared, "momentum": self._momentum}
        return {
            **shared,
            "towards_gradient": 1 - self._beta1,
            "beta2": self._beta2,
            "towards_square": 1 - self._beta2,
            "eps": self._eps,
        }


def over(values: Tensor, tensor: Tensor) -> Tensor:
    """One number per member, shaped to multiply a stacked tensor.

    >>> over(torch.ones(3), torch.zeros(3, 4, 5)).shape
    torch.Size([3, 1, 1])
    """
    return values.view(-1, *[1] * (tensor.dim() - 1))


def fresh_state(spec: OptimizerSpec, params: Mapping[str, Tensor], remembers: bool = True) -> State:
    """Zeros for what the optimizer remembers; SGD without momentum remembers nothing."""
    names = () if not remembers else ("momentum",) if spec.name == "sgd" else ("mean", "square")
    return {name: {key: torch.zeros_like(p, requires_grad=False) for key, p in params.items()} for name in names}


@torch.no_grad()
def update(
    spec: OptimizerSpec,
    params: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    state: State,
    settings: Mapping[str, Tensor],
    decays: bool = True,
) -> None:
    """One step of every member, in place; parameters without a gradient stay, as in torch.

    `spec` says which optimizer it is, `settings` its numbers in the type of the parameters.

    >>> w, spec = {"w": torch.ones(2, 1)}, OptimizerSpec(momentum=0.0)
    >>> c = {name: values.float() for name, values in Settings([spec, spec])(2.0, 1).items()}
    >>> update(spec, w, {"w": torch.ones(2, 1)}, {}, c)
    >>> w["w"]
    tensor([[0.9000],
            [0.9000]])
    """
    decoupled = spec.decoupled or spec.name == "adamw"
    for key, grad in grads.items():
        param = params[key]
        if decays and decoupled:
            param.mul_(over(settings["shrink"], param))
        elif decays:
            grad = torch.addcmul(grad, param, over(settings["decay"], param))
        own = {name: tensors[key] for name, tensors in state.items()}
        if spec.name == "sgd":
            _sgd(param, grad, own.get("momentum"), settings, spec.nesterov)
        else:
            _adam(param, grad, own["mean"], own["square"], settings)


def _sgd(param: Tensor, grad: Tensor, momentum: Tensor | None, c: Mapping[str, Tensor], nesterov: bool) -> None:
    if momentum is not None:
        share = over(c["momentum"], param)
        torch.addcmul(grad, momentum, share, out=momentum)
        grad = torch.addcmul(grad, momentum, share) if nesterov else momentum
    param.addcmul_(grad, over(c["rate"], param), value=-1)


def _adam(param: Tensor, grad: Tensor, mean: Tensor, square: Tensor, c: Mapping[str, Tensor]) -> None:
    mean.lerp_(grad, over(c["towards_gradient"], param))
    square.mul_(over(c["beta2"], param)).addcmul_(grad, grad * over(c["towards_square"], param))
    denominator = (square.sqrt() / over(c["root_correction"], param)).add_(over(c["eps"], param))
    param.addcdiv_(mean * over(c["corrected_rate"], param), denominator, value=-1)
