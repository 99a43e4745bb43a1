"""An optimizer around another one: they share parameter groups, state and defaults.

Whoever changes a learning rate here (schedulers) changes it there, and a state dict taken here holds the state of the one
that is wrapped. The wrapper's own settings lie in the same parameter groups, so that each group may have its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

__all__ = ["Around"]

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
