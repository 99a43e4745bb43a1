"""Everything that a run changes, and so everything that a checkpoint holds.

Data order, augmentation, dropout and the learning rate are functions of the seed and the step: none of them has a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from landscope.core.json import Plain
from landscope.training.averaging import Average
from landscope.training.evaluate import precise
from landscope.training.loop.step import METRICS
from landscope.training.objectives import FAM
from landscope.training.schedule import Row

__all__ = ["State", "weights_of"]


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, as copies that share no storage with the model or with each other."""
    return {name: value.detach().clone() for name, value in model.state_dict().items() if isinstance(value, Tensor)}


class State:
    """A run at an optimizer step; `tensors` and `plain` are read back by `restore`, bit for bit."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        average: Average | None = None,
        fam: FAM | None = None,
        scaler: GradScaler | None = None,
    ) -> None:
        self.model, self.optimizer, self.average, self.fam, self.scaler = model, optimizer, average, fam, scaler
        self.step = 0
        """Optimizer steps done."""
        self.seconds = 0.0
        self.history: list[Row] = []
        device = next(model.parameters()).device
        self.totals = torch.zeros(len(METRICS), dtype=precise(device), device=device)
        """Sums over the training rows since the last row of the history."""
        self.best: dict[str, Tensor] | None = None
        """The weights that were best on the validation rows."""

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state."""
        found = {f"model.{name}": value for name, value in weights_of(self.model).items()}
        found |= {f"best.{name}": value for name, value in (self.best or {}).items()}
        if self.average is not None:
            found |= {f"average.{at}": value for at, value in enumerate(self.average.weights)}
        for at, entries in self._optimizer_state().items():
            found |= {f"optimizer.{at}.{k}": value for k, value in entries.items() if isinstance(value, Tensor)}
        return {**found, "totals": self.totals}

    def plain(self) -> dict[str, Plain]:
        """Everything else, as JSON knows it."""
        others = {
            str(at): {key: value for key, value in entries.items() if not isinstance(value, Tensor)}
            for at, entries in self._optimizer_state().items()
        }
        return {
            "step": self.step,
            "seconds": self.seconds,
            "history": [dict(row) for row in self.history],
            "optimizer": cast(Plain, others),
            "averaged": self.average.count if self.average is not None else 0,
            "fam": cast(Plain, self.fam.state_dict()) if self.fam is not None else None,
            "scaler": cast(Plain, self.scaler.state_dict()) if self.scaler is not None else None,
        }

    def _optimizer_state(self) -> dict[int, dict[str, Any]]:
        return cast(dict[int, dict[str, Any]], self.optimizer.state_dict()["state"])

    def restore(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of the same spec."""
        self.step, self.seconds = int(plain["step"]), float(plain["seconds"])
        self.history = [dict(row) for row in plain["history"]]
        self.model.load_state_dict(_under("model.", tensors), strict=False)
        best = _under("best.", tensors)
        self.best = {name: value.to(self.totals.device) for name, value in best.items()} or None
        if self.average is not None:
            count = int(plain["averaged"])
            weights = _under("average.", tensors)
            self.average.load([weights[str(at)] for at in range(len(weights))], count)
        self._restore_optimizer(_under("optimizer.", tensors), plain["optimizer"])
        if self.fam is not None:
            self.fam.load_state_dict(plain["fam"])
        if self.scaler is not None:
            self.scaler.load_state_dict(plain["scaler"])
        self.totals.copy_(tensors["totals"])

    def _restore_optimizer(self, tensors: Mapping[str, Tensor], others: Mapping[str, Mapping[str, Any]]) -> None:
        own = self.optimizer.state_dict()
        params = [param for group in self.optimizer.param_groups for param in group["params"]]
        state: dict[int, dict[str, Any]] = {int(at): dict(entries) for at, entries in others.items()}
        for name, value in tensors.items():
            at, _, key = name.partition(".")
            param = params[int(at)]
            # in the memory layout of the parameter, which a file does not keep
            alike = value.shape == param.shape and value.dim() > 0
            state[int(at)][key] = torch.empty_like(param, dtype=value.dtype).copy_(value) if alike else value
        self.optimizer.load_state_dict({"state": state, "param_groups": own["param_groups"]})


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
