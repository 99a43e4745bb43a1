"""Paper 1, as coded: explicit regularisation, sharpness and calibration.

    weight_norm         ‖W‖² of the classifier's weight alone
    fisher_rao          √((5 + 1)² mean_i (⟨p_i, z_i⟩ − z_{i,y_i})²), the 5 being the layers of LeNet-5
    relative_flatness   κ on the first 7,500 samples, features normalised by editing weights   (`folded_features`)
    sam_sharpness       the largest of 10 changes of the loss under noise on the whole state, over ρ   (`state_noise`)
    log_igs             the mean over 20 batches of 64 of ln IGS with 3 eigenvectors

The tables give sam_sharpness times 100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate
from landscope.curvature.layer.sites import default_layer, weight_name
from landscope.measures.as_published.folded_features import FoldedRelativeFlatness
from landscope.measures.as_published.preset import AS_PUBLISHED, Preset
from landscope.measures.as_published.state_noise import StateNoiseSharpness
from landscope.measures.as_published.temperature import unconverged_temperature
from landscope.measures.base import Measure
from landscope.measures.sharpness.fisher_rao import FisherRao, FisherRaoHomogeneous
from landscope.measures.sharpness.gradients import L2Norm
from landscope.measures.sharpness.igs import InformationGeometricSharpness
from landscope.measures.sharpness.random_noise import RandomSharpness
from landscope.measures.sharpness.relative_flatness import RelativeFlatness
from landscope.probe.probe import Probe

__all__ = ["ClassifierNorm", "LogIGS"]


@dataclass(frozen=True, kw_only=True)
class ClassifierNorm(Measure):
    """‖W‖²_F of the classifier's weight: `l2_norm` of one parameter, squared; called the weight norm of the network.

    Args:
        layer: the classifier's name; default: the linear layer that gives the outputs.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    >>> torch.nn.init.constant_(net[1].weight, 3.0).shape
    torch.Size([2, 2])
    >>> ClassifierNorm()(Probe(net, (torch.randn(3, 2), torch.tensor([0, 1, 1]))))
    Estimate(36, exact)
    """

    key: ClassVar[str] = "classifier_norm"

    layer: str | None = None

    def _measure(self, probe: Probe) -> Estimate:
        layer = default_layer(probe) if self.layer is None else self.layer
        weight = weight_name(probe, layer)
        if weight is None:
            raise NotApplicableError(
                f"the weight of {layer!r} is computed from other parameters: it has no norm of its own"
            )
        return L2Norm(layer=weight, squared=True).last(probe)


@dataclass(frozen=True, kw_only=True)
class LogIGS(Measure):
    """The mean over batches of ln IGS at a low rank: the `mean_log` of `igs`.

    The paper's text says 20 eigenvectors; the call in its code asks for 3.

    >>> import torch
    >>> probe = Probe(torch.nn.Linear(4, 3).double(), (torch.eye(4).double(), torch.tensor([0, 2, 1, 1])))
    >>> estimate = LogIGS(rank=2)(probe)
    >>> abs(estimate.value - torch.tensor(estimate.details["igs"]).double().log()) < 1e-6
    tensor(True)
    """

    key: ClassVar[str] = "log_igs"

    rank: int = 3
    batch_size: int = 64
    batches: int | None = 20

    def _plain(self) -> InformationGeometricSharpness:
        return InformationGeometricSharpness(
            rank=self.rank, batch_size=self.batch_size, batches=self.batches, seed=self.seed
        )

    def __post_init__(self) -> None:
        self._plain()

    def _measure(self, probe: Probe) -> Estimate:
        found = self._plain().last(probe)
        mean_log, error = (found.details[name] for name in ("mean_log", "mean_log_data_stderr"))
        if not isinstance(mean_log, float):
            raise NotApplicableError("the IGS of some batch is zero: its logarithm does not exist")
        return Estimate(
            mean_log,
            data_stderr=error if isinstance(error, float) else None,
            status=found.status,
            reason=found.reason,
            details={**found.details, "igs": found.value},
        )


def _largest_over_rho(estimate: Estimate) -> float:
    return float(estimate.details["max_per_rho"])  # type: ignore[arg-type]


def _mean_log(estimate: Estimate) -> float:
    return float(estimate.details["mean_log"])  # type: ignore[arg-type]


AS_PUBLISHED.register("explicit-regularisation")(
    Preset(
        paper="I. Mason-Williams, I. Sterner, F. Ekholm. Explicit Regularisation, Sharpness and Calibration",
        measures={
            "weight_norm": ClassifierNorm(),
            "fisher_rao": FisherRaoHomogeneous(layers=6, root=True),
            "relative_flatness": FoldedRelativeFlatness(first=7500, batch_size=7500),
            "sam_sharpness": StateNoiseSharpness(rho=0.05, samples=10, statistic="max", temperature=True),
            "log_igs": LogIGS(rank=3, batch_size=64, batches=20),
        },
        corrected={
            "weight_norm": L2Norm(),
            "fisher_rao": FisherRao(root=True),
            "relative_flatness": RelativeFlatness(normalise=True),
            "sam_sharpness": RandomSharpness(rho=0.05, samples=20, statistic="max"),
            "log_igs": InformationGeometricSharpness(rank=20, batch_size=64, batches=20),
        },
        difference={
            "weight_norm": (
                "The squared norm of the classifier's weight matrix alone. Corrected: `l2_norm`, the norm of all parameters."
            ),
            "fisher_rao": (
                "The closed form for bias-free homogeneous networks with 5 + 1 layers, left over from LeNet-5, and the "
                "labels of the data. Corrected: `fisher_rao(root=True)`, exact for any network, with the model's labels "
                "as the text defines it."
            ),
            "relative_flatness": (
                "On the first 7,500 samples (the text says a random subset), with features normalised by editing weights, "
                "which also erases the weights of features that never vary. Corrected: `relative_flatness(normalise=True)` "
                "on all samples, by the closed form."
            ),
            "sam_sharpness": (
                "The largest of 10 changes (the text says 20) over ρ, under Gaussian noise of length ρ on average that also "
                "hits the statistics of BatchNorm and the temperature. Corrected: `random_sharpness(rho=0.05, samples=20)`, "
                "parameters only, ‖ε‖ = ρ exactly; compare its details['max_per_rho']. The maximum over the ball, which the "
                "text defines, is `sam_sharpness`."
            ),
            "log_igs": (
                "Three eigenvectors (the text says 20), and the mean of ln IGS over batches. Corrected: `igs(rank=20)`, the "
                "plain mean; its details['mean_log'] is the mean of logarithms."
            ),
        },
        setup=(
            "Pixels in [0, 1] without normalisation, training data; models trained with augmentation were measured on "
            "augmented data (landscope.freeze keeps one draw of it), temperature-scaled ones at the unconverged temperature of "
            "their code. Multiply sam_sharpness by 100 to compare with the tables, in which the early-stopped and the final "
            "models are swapped."
        ),
        scale={"sam_sharpness": _largest_over_rho, "log_igs": _mean_log},
        temperature=unconverged_temperature,
    )
)
