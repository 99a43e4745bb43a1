"""Paper 2, as coded: a function-centric perspective on flat and sharp minima.

fisher_rao          √((D + 1)² mean_i (⟨p_i, z_i⟩ − z_{i,y_i})²), D the number of linear, conv and embedding layers
relative_flatness   the sum over mini-batches of κ, features normalised by editing weights      (`folded_features`)
sam_sharpness       the mean of |ΔL|/ρ over 100 noises on the whole state, ρ = 0.005            (`state_noise`)

For models trained with augmentation the code takes each of the 101 losses from the augmenting loader, with crops and flips drawn
anew (`RedrawnCropsSharpness`). Divided by ρ = 0.005, the noise of these draws drowns what noise on the weights does.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor, nn

from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.core.seeding import generator
from landscope.data.augment import Augmentation
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.measures.sharpness.fisher_rao import FisherRaoHomogeneous
from landscope.papers.explicit_regularisation.state_noise import with_state_noise
from landscope.probe.batches import map_tensors, tensors_in
from landscope.probe.perturbed import check_positive
from landscope.probe.probe import Probe

__all__ = ["CountedFisherRao", "RedrawnCropsSharpness"]

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


def _are_images(part: Tensor) -> bool:
    return part.dim() == 4 and part.is_floating_point()


@register("function-centric/redrawn_crops_sharpness")
@dataclass(frozen=True, kw_only=True)
class RedrawnCropsSharpness(Measure):
    """The mean of |L_j(s + ε_j) − L_0(s)|/ρ, each loss on crops and flips of its own; ε_j as `StateNoiseSharpness` draws it.

    Args:
        crop: pixels of padding.
        noise: without, the weights stay as they are: what the redrawing does alone.

    >>> import torch
    >>> net, y = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), torch.arange(32) % 2
    >>> probe = Probe(net, (torch.randn(32, 1, 8, 8), y))
    >>> still, moved = (RedrawnCropsSharpness(samples=8, noise=noise)(probe).value for noise in (False, True))
    >>> still > 1, 0.9 < moved / still < 1.1
    (True, True)
    """

    title, family, unit, better = "SAM-sharpness on redrawn crops", Family.PERTURBATION, "loss/ρ", None
    cost = "a forward pass for each draw"

    rho: float = 0.005
    samples: int = 100
    crop: int = 4
    flip: bool = True
    noise: bool = True

    def __post_init__(self) -> None:
        check_positive(rho=self.rho)
        if self.samples < 2:
            raise ValueError(f"samples must be at least 2, got {self.samples}")

    def _measure(self, probe: Probe) -> Estimate:
        scale = self.rho / math.sqrt(sum(p.numel() for p in probe.module("").parameters()))
        base = self._redrawn(probe, 0).value()
        changes = []
        for j in range(1, self.samples + 1):
            point = self._redrawn(probe, j)
            if self.noise:
                point = with_state_noise(point, scale, generator(self.seed, "state noise", j - 1), temperature=False)
            changes.append(abs(point.value() - base) / self.rho)
        error = statistics.stdev(changes) / math.sqrt(self.samples)
        return Estimate(
            statistics.mean(changes),
            stderr=error,
            status=Status.CONVERGED,
            details={"changes": [*changes], "loss": base},
        )

    def _redrawn(self, probe: Probe, draw: int) -> Probe:
        """The same point on crops and flips of the samples."""
        augment, rng = Augmentation(crop=self.crop, flip=self.flip), generator(self.seed, "redrawn crops", draw)

        batches = [
            map_tensors(lambda part: augment(part, rng) if _are_images(part) else part, batch.raw)
            for batch in probe.batches()
        ]
        if not any(_are_images(part) for part in tensors_in(batches[0])):
            raise NotApplicableError("crops and flips are for images, (n, channels, height, width)")
        return probe.with_data(batches)
