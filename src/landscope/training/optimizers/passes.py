"""One evaluation of a loss with its gradients, as sharpness-aware steps need two of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler, OptState
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from landscope.core.errors import StepOrderError

__all__ = ["Around", "accumulate_gradients", "clip_gradients", "shares", "unscaled_since", "without_averaging"]


def accumulate_gradients(
    closure: Callable[[], Tensor], params: Sequence[Tensor], scaler: GradScaler | None = None, share: float = 1.0
) -> Tensor:
    """Add the gradients of `share` times the loss, scaled where there is a scaler; the plain loss is returned.

    The closure may clear gradients, which does not lose those it is to add to, but not call `backward`.

    >>> w = torch.tensor(3.0, requires_grad=True)
    >>> accumulate_gradients(lambda: w * w, [w], share=0.5), w.grad
    (tensor(9.), tensor(3.))
    """
    so_far = [param.grad for param in params]
    for param in params:
        param.grad = None
    try:
        with torch.enable_grad():
            loss = closure()
        called_backward = any(param.grad is not None for param in params)
    finally:
        for param, grad in zip(params, so_far, strict=True):
            param.grad = grad
    if called_backward or not isinstance(loss, Tensor) or not loss.requires_grad:
        found = "called backward itself" if called_backward else f"returned {_told(loss)}"
        raise StepOrderError(
            f"expected a closure that returns the loss as a tensor with its graph and leaves backward to this step, which "
            f"weighs and scales the loss first; the closure {found}. Leave out its backward call and return the loss; "
            f"closures that call backward are for `step`."
        )
    with torch.enable_grad():
        weighted = share * loss
        (weighted if scaler is None else scaler.scale(weighted)).backward()
    return loss.detach()


def _told(loss: object) -> str:
    return "a tensor without a graph" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"


def shares(count: int, sizes: Sequence[float] | None) -> list[float]:
    """What each of `count` micro-batches weighs: its part of the sum of `sizes`, which are equal if not given.

    >>> shares(2, [1, 3]), shares(2, None)
    ([0.25, 0.75], [0.5, 0.5])
    """
    weights = [1.0] * count if sizes is None else [float(size) for size in sizes]
    total = sum(weights)
    if not count or len(weights) != count or min(weights) < 0 or total == 0 or not math.isfinite(total):
        raise ValueError(
            f"expected one closure per micro-batch and as many sizes, finite, not negative and not all 0; got {count} "
            f"closures and sizes {weights}. Pass the number of samples in each micro-batch."
        )
    return [weight / total for weight in weights]


def clip_gradients(params: Sequence[Tensor], max_norm: float) -> None:
    """Shorten the gradients, all together, to a length of at most `max_norm`."""
    if not max_norm >= 0:
        raise ValueError(f"max_norm must be a number of at least 0, got {max_norm}; leave it out for no clipping")
    clip_grad_norm_(params, max_norm)


def unscaled_since(scaler: GradScaler, optimizer: Optimizer, first: Tensor) -> bool:
    """Whether the scaler unscaled the gradients that the optimizer has now under its name, and not those of length `first`.

    It remembers that it did, not when: either the first gradients were longer by its scale, or those now are.
    """
    if not scaler.is_enabled() or scaler._per_optimizer_states[id(optimizer)]["stage"] is not OptState.UNSCALED:
        return False
    grads = [param.grad for group in optimizer.param_groups for param in group["params"] if param.grad is not None]
    now, then = float(get_total_norm(grads)), float(first)
    return 0 < now < then < float("inf") if scaler.get_scale() > 1 else 0 < then < now < float("inf")


def without_averaging(model: nn.Module | None) -> AbstractContextManager[None]:
    """Inside, each process of a `DistributedDataParallel` keeps its gradients to itself."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


# An optimizer around another one: they share parameter groups, state and defaults.
#
# Whoever changes a learning rate here (schedulers) changes it there, and a state dict taken here holds the state of the one
# that is wrapped. The wrapper's own settings lie in the same parameter groups, so that each group may have its own.


NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Around(Optimizer):
    """What a wrapper of `base_optimizer` needs apart from its step, which subclasses define.

    `settings` are the wrapper's own options with their defaults, `base_options` those of the base optimizer. A state dict of
    the base alone can be loaded: its groups get the wrapper's defaults.
    """

    base_optimizer: Optimizer

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: Callable[..., Optimizer],
        settings: Mapping[str, object],
        base_options: Mapping[str, object],
    ) -> None:
        if not callable(base_optimizer):
            raise TypeError(
                f"base_optimizer must be a class of optimizers or a function that makes one from parameters, got "
                f"{type(base_optimizer).__name__}. Write {type(self).__name__}(params, torch.optim.SGD, lr=0.1)."
            )
        base = base_optimizer(params, **base_options)
        if not isinstance(base, Optimizer):
            raise TypeError(f"base_optimizer must make a torch.optim.Optimizer, but made a {type(base).__name__}")
        if any(
            option.default is option.empty
            for option in signature(base.step).parameters.values()
            if option.kind in NAMED
        ):
            raise TypeError(
                f"{type(base).__name__} cannot step without a closure: it evaluates the loss itself, which "
                f"{type(self).__name__} has to do. Choose a base optimizer that steps by the gradients it is given."
            )
        if clash := sorted(set(settings) & set(base.defaults)):
            raise ValueError(
                f"{type(base).__name__} has options of its own called {', '.join(clash)}, which {type(self).__name__} could "
                f"not tell from its own in the parameter groups. Choose another base optimizer."
            )
        self.setting_names = tuple(settings)
        base.defaults.update(settings)
        super().__init__(base.param_groups, base.defaults)
        self.base_optimizer = base
        self.param_groups, self.state = base.param_groups, base.state

    def settings(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """The wrapper's own options in a group, by default where the group does not name them."""
        return {name: group.get(name, self.defaults[name]) for name in self.setting_names}

    def __getstate__(self) -> dict[str, Any]:
        own = {"base_optimizer": self.base_optimizer, "setting_names": self.setting_names}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.update(self.settings(group))
        # `load_state_dict` ends here with new groups and state: the base shares them
        self.base_optimizer.__setstate__({"state": self.state, "param_groups": self.param_groups})
