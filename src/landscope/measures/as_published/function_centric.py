"""Paper 2, as coded: a function-centric perspective on flat and sharp minima.

fisher_rao          √((D + 1)² mean_i (⟨p_i, z_i⟩ − z_{i,y_i})²), D the number of linear, conv and embedding layers
relative_flatness   the sum over mini-batches of κ, features normalised by editing weights      (`folded_features`)
sam_sharpness       the mean of |ΔL|/ρ over 100 noises on the whole state, ρ = 0.005            (`state_noise`)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from landscope.core.estimate import Estimate
from landscope.measures.as_published.folded_features import FoldedRelativeFlatness
from landscope.measures.as_published.preset import AS_PUBLISHED, Preset
from landscope.measures.as_published.state_noise import StateNoiseSharpness
from landscope.measures.base import Measure
from landscope.measures.sharpness.fisher_rao import FisherRao, FisherRaoHomogeneous
from landscope.measures.sharpness.random_noise import RandomSharpness
from landscope.measures.sharpness.relative_flatness import RelativeFlatness
from landscope.probe.probe import Probe

__all__ = ["CountedFisherRao"]

COUNTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)


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

    key: ClassVar[str] = "counted_fisher_rao"

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """As `fisher_rao_homogeneous`."""
        counted = [name for name, module in probe.modules.items() if isinstance(module, COUNTED)]
        for found in FisherRaoHomogeneous(layers=len(counted) + 1, root=True).refine(probe):
            yield found and replace(found, details={**found.details, "counted": [*counted]})


def _mean_over_rho(estimate: Estimate) -> float:
    return float(estimate.details["mean_abs_per_rho"])  # type: ignore[arg-type]


_SUMMED = (
    "Summed over mini-batches of {} samples, so that it grows with their number, and with features normalised by editing "
    "the two parameters before the classifier, which changes the function of a ResNet. Corrected: "
    "`relative_flatness(normalise=True)`, a mean over samples by the closed form."
)

AS_PUBLISHED.register("function-centric")(
    Preset(
        paper="I. Mason-Williams, G. Mason-Williams, H. Yannakoudakis. A Function-Centric Perspective on Flat and Sharp Minima. "
        "TMLR 2026",
        measures={
            "fisher_rao": CountedFisherRao(),
            "relative_flatness": FoldedRelativeFlatness(batch_size=128),
            "relative_flatness_batch_256": FoldedRelativeFlatness(batch_size=256),
            "sam_sharpness": StateNoiseSharpness(rho=0.005, samples=100, statistic="mean_abs"),
        },
        corrected={
            "fisher_rao": FisherRao(root=True),
            "relative_flatness": RelativeFlatness(normalise=True),
            "relative_flatness_batch_256": RelativeFlatness(normalise=True),
            "sam_sharpness": RandomSharpness(rho=0.005, samples=100, statistic="mean_abs"),
        },
        difference={
            "fisher_rao": (
                "The closed form for bias-free homogeneous networks, with the labels of the data and one layer too many. "
                "Corrected: `fisher_rao(root=True)`, exact for any network, with the model's labels."
            ),
            "relative_flatness": _SUMMED.format(128),
            "relative_flatness_batch_256": _SUMMED.format(256),
            "sam_sharpness": (
                "Gaussian noise of length ρ on average that also hits the statistics of BatchNorm, divided by ρ. Corrected: "
                "`random_sharpness(rho=0.005, samples=100, statistic='mean_abs')`, parameters only, ‖ε‖ = ρ exactly; compare "
                "its details['mean_abs_per_rho']."
            ),
        },
        setup=(
            "Training data, for models trained with augmentation through the augmenting loader (landscope.freeze keeps one "
            "draw of it). The loss of sam_sharpness was a mean of batch means; here it is the mean over samples."
        ),
        scale={"sam_sharpness": _mean_over_rho},
    )
)
