"""Paper 1, as coded: explicit regularisation, sharpness and calibration.

    weight_norm         ‖W‖² of the classifier's weight alone
    fisher_rao          √((5 + 1)² mean_i (⟨p_i, z_i⟩ − z_{i,y_i})²), the 5 being the layers of LeNet-5
    relative_flatness   κ on the first 7,500 samples, features normalised by editing weights   (`folded_features`)
    sam_sharpness       the largest of 10 changes of the loss under noise on the whole state, over ρ   (`state_noise`)
    log_igs             the mean over 20 batches of 64 of ln IGS with 3 eigenvectors

The tables give sam_sharpness times 100. Importing this module registers them all as explicit-regularisation/NAME.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.curvature.layer.sites import default_layer, weight_name
from landscope.measures.base import Measure, register
from landscope.measures.calibration.temperature import TEMPERATURE_FITS
from landscope.measures.facts import Family
from landscope.measures.sharpness.gradients import L2Norm
from landscope.measures.sharpness.igs import InformationGeometricSharpness
from landscope.papers.explicit_regularisation.folded_features import FoldedRelativeFlatness
from landscope.papers.explicit_regularisation.state_noise import RedrawnSamplesSharpness, StateNoiseSharpness
from landscope.probe.probe import Probe

__all__ = [
    "ClassifierNorm",
    "FoldedRelativeFlatness",
    "LogIGS",
    "RedrawnSamplesSharpness",
    "StateNoiseSharpness",
    "unconverged_temperature",
]


@register("explicit-regularisation/classifier_norm")
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

    title, family, unit, better = "squared norm of the classifier", Family.WEIGHTS, "", None
    cost = "nothing"

    layer: str | None = None

    def _measure(self, probe: Probe) -> Estimate:
        layer = default_layer(probe) if self.layer is None else self.layer
        weight = weight_name(probe, layer)
        if weight is None:
            raise NotApplicableError(
                f"the weight of {layer!r} is computed from other parameters: it has no norm of its own"
            )
        return L2Norm(layer=weight, squared=True).last(probe)


@register("explicit-regularisation/log_igs")
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

    title, family, unit, better = "mean log IGS", Family.CURVATURE, "", None
    cost = "a Gram matrix for each of 20 batches"

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


# A temperature whose fit ends before it arrives: L-BFGS with learning rate 0.01 and 50 iterations from T = 1.5. Every iteration
# moves by a hundredth of the step that would be right, so that T stays near its start: for logits whose optimum is at 1, 2, 3 and
# 10 it ends at 1.2, 1.6, 1.8 and 1.9. `fit_temperature` goes to the optimum.

START, RATE, ITERATIONS = 1.5, 0.01, 50


@TEMPERATURE_FITS.register("explicit-regularisation/temperature")
def unconverged_temperature(logits: Tensor, labels: Tensor) -> Estimate:
    """T as the code fits it to validation samples.

    >>> z = 6 * torch.randn(5000, 10, generator=torch.Generator().manual_seed(0))
    >>> y = torch.multinomial((z / 3).softmax(1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    >>> round(unconverged_temperature(z, y).value, 1)
    1.8
    """
    z, y = logits.detach().float(), labels
    with torch.enable_grad():
        temperature = torch.full((1,), START, device=z.device, requires_grad=True)
        optimizer = torch.optim.LBFGS([temperature], lr=RATE, max_iter=ITERATIONS)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(z / temperature, y)
            loss.backward()
            return loss

        optimizer.step(closure)
    if not bool(torch.isfinite(temperature).all()):
        return Estimate.failed("as coded, the fit ends in NaN: some logits are −inf (classes that are masked out)")
    return Estimate(
        float(temperature.detach()),
        status=Status.BUDGET_SPENT,
        reason=f"as coded: {ITERATIONS} iterations at rate {RATE} from {START}",
        details={"samples": len(y), "as_published": True},
    )
