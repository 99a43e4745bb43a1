"""FAM on several layers of one network: L + λ Σ_l κ_l, with the interface of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from landscope.probe.frozen import unwrap
from landscope.training.objectives.fam import FAM


class SeveralFAM:
    """Adds λ times the sum of the κ of some layers to a loss.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> fams = SeveralFAM(net, [FAM(net, layer=layer, strength=0.1) for layer in ("0", "2")])
    >>> loss = nn.functional.cross_entropy(net(torch.randn(32, 4)), torch.arange(32) % 3)
    >>> total = fams(loss)
    >>> bool(torch.isclose(total, loss + 0.1 * fams.value)), fams.layer
    (True, '0')
    """

    def __init__(self, model: nn.Module, parts: Sequence[FAM]) -> None:
        self._parts = tuple(parts)
        order = [name for name, _ in unwrap(model).named_modules()]
        self.layer = min((part.layer for part in parts), key=order.index)
        """The first of the layers."""

    @property
    def value(self) -> Tensor | None:
        """Σ κ of the last batch, detached."""
        values = [part.value for part in self._parts if part.value is not None]
        return torch.stack(values).sum() if values else None

    @property
    def strength(self) -> float | Tensor:
        """λ, one for all layers."""
        return self._parts[0].strength

    @strength.setter
    def strength(self, strength: float | Tensor) -> None:
        for part in self._parts:
            part.strength = strength

    def __call__(self, loss: Tensor) -> Tensor:
        """`loss` + λ Σ κ."""
        total = loss
        for part in self._parts:
            total = total + (part(loss) - loss)
        return total

    def redraw(self) -> None:
        """New signs for a step that was recorded as a CUDA graph."""
        for part in self._parts:
            part.redraw()

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Run forward passes in here."""
        with ExitStack() as stack:
            for part in self._parts:
                stack.enter_context(part.ready())
            yield

    def state_dict(self) -> dict[str, dict[str, int]]:
        return {part.layer: part.state_dict() for part in self._parts}

    def load_state_dict(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Continue from where `state_dict` was taken."""
        for part in self._parts:
            part.load_state_dict(state[part.layer])

    def remove(self) -> None:
        for part in self._parts:
            part.remove()
