"""The optimizer of a spec: torch's SGD, Adam or AdamW, decoupled decay for SGD, SAM around any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from landscope.training.optimizers.sam import SAM
from landscope.training.spec import TrainingSpec


class DecoupledSGD(SGD):
    """SGD with decoupled weight decay (Loshchilov and Hutter 2019): w ← (1 − lr·decay) w, then a step without decay.

    >>> w = torch.ones(1, requires_grad=True)
    >>> w.grad = torch.ones(1)
    >>> DecoupledSGD([w], lr=0.1, decay=0.5).step()
    >>> w.detach()
    tensor([0.8500])
    """

    def __init__(self, params: Iterable[Tensor], *, decay: float, **options: Any) -> None:
        super().__init__(params, **options)
        self.defaults["decay"] = decay
        for group in self.param_groups:
            group.setdefault("decay", decay)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Evaluate the closure, if there is one; shrink what has a gradient, then step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moving = [param for param in group["params"] if param.grad is not None]
            if moving and group["decay"]:
                torch._foreach_mul_(moving, 1 - group["lr"] * group["decay"])
        super().step()
        return loss


def build_optimizer(model: nn.Module, spec: TrainingSpec, *, fused: bool = False) -> Optimizer:
    """The optimizer of the spec over all parameters of the model that require gradients.

    `fused` is for CUDA: one kernel for all parameters, and the learning rate as a tensor on the device, so that a recorded
    step (a CUDA graph) can be replayed with another rate. Not with a GradScaler, which a fused step would ask by itself
    whether to step, after decoupled decay.
    """
    of = spec.optimizer
    params = [param for param in model.parameters() if param.requires_grad]
    options: dict[str, Any] = {"lr": of.lr}
    if fused:
        options |= {"lr": torch.tensor(of.lr, device=params[0].device), "fused": True}
    kind: Callable[..., Optimizer]
    if of.name == "sgd":
        decay = {"decay": of.weight_decay} if of.decoupled else {"weight_decay": of.weight_decay}
        kind, options = (
            (DecoupledSGD if of.decoupled else SGD),
            {**options, **decay, "momentum": of.momentum, "nesterov": of.nesterov},
        )
    else:
        kind = AdamW if of.decoupled or of.name == "adamw" else Adam
        options |= {"betas": of.betas, "eps": of.eps, "weight_decay": of.weight_decay}
        if fused:
            options["capturable"] = True
    if spec.sam is None:
        return kind(params, **options)
    return SAM(params, kind, rho=spec.sam.rho, adaptive=spec.sam.adaptive, eta=spec.sam.eta, **options)


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """The learning rate of every group, in place where it is a tensor that a recorded step reads."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
