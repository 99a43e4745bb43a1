"""Paper 2, as coded: a function-centric perspective on flat and sharp minima.

fisher_rao          √((D + 1)² mean_i (⟨p_i, z_i⟩ − z_{i,y_i})²), D the number of linear, conv and embedding layers
relative_flatness   the sum over mini-batches of κ, features normalised by editing weights      (`folded_features`)
sam_sharpness       the mean of |ΔL|/ρ over 100 noises on the whole state, ρ = 0.005            (`state_noise`)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

from landscope.core.estimate import Estimate
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.measures.sharpness.fisher_rao import FisherRaoHomogeneous
from landscope.probe.probe import Probe

__all__ = ["CountedFisherRao"]

COUNTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)


@register("function-centric/counted_fisher_rao")
@dataclass(frozen=True, kw_only=True)
class CountedFisherRao(Measure):
    """The homogeneous Fisher–Rao norm with one layer too many: D + 1 in place of D.

    Liang et al. write L + 1 for L hidden layers, which are L + 1 weight layers; the code counts weight layers and adds
    one. In a bias-free ReLU network of D linear layers the value is (D + 1)/D times the norm.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(2, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    >>> CountedFisherRao()(Probe(net, (torch.randn(20, 2), torch.arange(20) % 3))).details["layers"]
    3
    """

    title, family, unit, better = "Fisher–Rao norm with one layer too many", Family.SCALE_INVARIANT, "", None
    cost = "a forward pass"

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """As `fisher_rao_homogeneous`."""
        counted = [name for name, module in probe.modules.items() if isinstance(module, COUNTED)]
        for found in FisherRaoHomogeneous(layers=len(counted) + 1, root=True).refine(probe):
            yield found and replace(found, details={**found.details, "counted": [*counted]})
