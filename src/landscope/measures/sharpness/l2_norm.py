"""The norm of the weights, ‖θ‖₂: of all measured parameters, or of one layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from landscope.core.estimate import Estimate
from landscope.core.probe import Probe
from landscope.measures.base import Measure, register
from landscope.measures.tied import saying_ties

__all__ = ["L2Norm"]


@register("l2_norm")
@dataclass(frozen=True, kw_only=True)
class L2Norm(Measure):
    """‖θ‖₂, or its square; costs nothing.

    Args:
        layer: only the parameters of this layer, or this parameter (`"fc.weight"`).
        squared: ‖θ‖₂² instead.

    >>> import torch
    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> torch.nn.init.ones_(net.weight).shape
    torch.Size([2, 2])
    >>> L2Norm()(Probe(net, (torch.randn(3, 2), torch.tensor([0, 1, 1]))))
    Estimate(2, exact)
    """

    invariant_to: ClassVar[frozenset[str]] = frozenset({"permutation"})
    layer: str | None = None
    squared: bool = False

    def _measure(self, probe: Probe) -> Estimate:
        at = probe if self.layer is None else probe.restrict(self.layer)
        squares = {name: float(p.double().square().sum()) for name, p in at.params.items()}
        total = sum(squares.values())
        by_layer = {layer: sum(squares[name] for name in names) ** 0.5 for layer, names in at.layers().items()}
        found = Estimate(
            total if self.squared else total**0.5, details={"parameters": at.n_params, "by_layer": by_layer}
        )
        return found if self.layer is None else saying_ties(found, probe, at.space.names)

    def passes(self, probe: Probe) -> float:
        """None: the data is not looked at."""
        return 0.0
