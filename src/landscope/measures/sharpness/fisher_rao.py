"""The Fisher–Rao norm: of any architecture, and its closed form for homogeneous networks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from landscope.core.distributed import processes
from landscope.core.errors import DifferentiationError, NotApplicableError
from landscope.core.estimate import Estimate
from landscope.core.json import Plain
from landscope.curvature import EmpiricalFisher, Fisher
from landscope.curvature.layer.sites import layer_sites, some_samples
from landscope.curvature.per_sample import TANGENT_LOAD, TANGENT_PASSES, output_tangents, sample_rows
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.measures.row_measure import RowMeasure, output_looks, row_means
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.probe.rows.means import RowMean, row_mean
from landscope.probe.rows.outputs import Outputs, outputs_of
from landscope.probe.shared import FORWARD_LOAD
from landscope.probe.totals import FORWARD

# The Fisher–Rao norm (Liang et al. 2019) of any architecture, by one forward-mode derivative.
#
#     θᵀFθ = (1/n) Σ_i (J_iθ)ᵀ B_i (J_iθ),   J_iθ = d/dt f_{(1+t)θ}(x_i) at t = 0
#
# With the model's own labels B_i is that of the Fisher matrix (diag(p) − ppᵀ for cross-entropy; see
# `landscope.curvature.Fisher`), with the data's labels r_i r_iᵀ, r_i = ∂ℓ_i/∂z_i. How the outputs change when θ grows does not
# depend on the parametrisation: the norm is unchanged by any linear reparametrisation that preserves the function.


def root_of(mean: float, error: float | None) -> tuple[float, float | None]:
    """√mean, and its standard error to first order; `None` at zero, where the root has no derivative.

    >>> root_of(4.0, 0.4)
    (2.0, 0.1)
    """
    root = math.sqrt(max(mean, 0.0))
    return root, None if error is None or root == 0 else error / (2 * root)


def norm_of(mean: RowMean, root: bool) -> Estimate:
    """A mean of squares as an estimate, or its root: both ends of a bracket are taken to it, and none is below zero."""
    found = mean.estimate()
    squared: dict[str, Plain] = {"squared": mean.value}
    if found.status.is_bound:
        low = max(found.value, 0.0)
        return replace(found, value=math.sqrt(low) if root else low, details=squared)
    value, data_stderr = root_of(found.value, found.data_stderr) if root else (found.value, found.data_stderr)
    bracket = found.bracket
    if bracket is not None:
        low, high = max(bracket[0], 0.0), bracket[1]
        bracket = (math.sqrt(low), math.sqrt(high)) if root else (low, high)
    error = found.stderr or 0.0
    if root and error:
        error = error / (2 * value) if value > 0 else math.sqrt(error)
    return replace(found, value=value, stderr=error, data_stderr=data_stderr, bracket=bracket, details=squared)


@register("fisher_rao")
@dataclass(frozen=True, kw_only=True)
class FisherRao(Measure):
    """How much predictions change when all weights are scaled: θᵀFθ, exact; costs two forward passes.

    Args:
        labels: `"model"`: expectation over the model's own predictions; `"data"`: the labels of the data (empirical Fisher).
        root: √(θᵀFθ) instead.

    >>> probe = Probe(torch.nn.Linear(1, 2, bias=False), (torch.ones(3, 1), torch.tensor([0, 1, 1])))
    >>> estimate = FisherRao()(probe)
    >>> w = probe.vector(); p = w.softmax(0)
    >>> bool(abs(estimate.value - (p @ w**2 - (p @ w)**2)) < 1e-6)
    True
    """

    title = "Fisher–Rao norm"
    family = Family.SCALE_INVARIANT
    unit = "nats"
    better = None
    cost = "two forward passes"
    reference = "Liang et al. 2019"
    invariant_to: ClassVar[frozenset[str]] = frozenset(
        {"layer_rescaling", "neuron_rescaling", "batchnorm_scaling", "permutation", "logit_shift"}
    )
    turn = 1
    labels: Literal["model", "data"] = "model"
    root: bool = False

    def __post_init__(self) -> None:
        if self.labels not in ("model", "data"):
            raise ValueError(f"labels must be 'model' or 'data', got {self.labels!r}")

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """Row by row; where forward mode cannot follow the model, one product with the matrix."""
        matrix = Fisher(probe) if self.labels == "model" else EmpiricalFisher(probe)
        if self.labels == "data" and probe.mode == "batch_statistics":
            raise NotApplicableError("per-sample gradients are not defined where samples share batch statistics")

        def rows(batch: Batch) -> Tensor:
            z, u = output_tangents(probe, batch, probe.params, "the Fisher–Rao norm")
            return (u * matrix._curve(z, u, batch)).reshape(batch.size, -1).sum(1, dtype=torch.float64)

        details: dict[str, Plain] = {"by": "forward-mode derivative", "labels": self.labels}
        try:
            for mean in row_means(probe, rows, load=TANGENT_LOAD, passes=TANGENT_PASSES):
                found = norm_of(mean, self.root)
                yield replace(found, details={**details, **found.details})
            return
        except DifferentiationError:
            yield None
        theta = probe.vector()
        squared = float(theta.double() @ (matrix @ theta).double())
        value, _ = root_of(squared, None) if self.root else (squared, None)
        details |= {"by": "product with the Fisher matrix", "squared": squared}
        yield Estimate(value, details=details)


# The closed form of the Fisher–Rao norm for homogeneous networks (Liang et al. 2019), under its assumptions only.
#
# A network of D weight layers without biases and with activations φ(ct) = cφ(t), c > 0, has J_iθ = D z_i, so that with the
# labels of the data
#
#     θᵀFθ = D² mean_i ⟨∂ℓ_i/∂z_i, z_i⟩²        (the paper writes L + 1 for D)
#
# Where the assumptions fail the formula is a function of the outputs times an arbitrary factor. They are tested: scaling all
# weights by 2^(1/D), biases set to zero, must double the outputs. Biases are tolerated with a warning that says how far the
# outputs with biases are from doubling. `fisher_rao` needs no assumptions.


NEVER_HOMOGENEOUS = (
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.Mish,
    nn.PReLU,
    nn.Softplus,
    nn.Sigmoid,
    nn.Tanh,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Softmax,
    nn.MultiheadAttention,
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RNNBase,
)
"""Refused by name; whatever else is not homogeneous is found by the test."""

TOLERATED = 1e-3
"""Relative departure from homogeneity that rounding in float32 may cause."""


@register("fisher_rao_homogeneous")
@dataclass(frozen=True, kw_only=True)
class FisherRaoHomogeneous(RowMeasure):
    """The Fisher–Rao norm with the given labels, by homogeneity: D² mean_i ⟨∂ℓ_i/∂z_i, z_i⟩², or its root; one forward pass.

    Args:
        layers: D; default: the number of weight layers that a forward pass runs. Where it is given, failed assumptions only warn.
        root: the square root instead.

    >>> net = nn.Sequential(nn.Linear(2, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    >>> FisherRaoHomogeneous()(Probe(net, (torch.randn(20, 2), torch.arange(20) % 3))).details["layers"]
    2
    """

    title = "Fisher–Rao norm (homogeneous)"
    family = Family.SCALE_INVARIANT
    unit = "nats"
    better = None
    cost = "one forward pass"
    reference = "Liang et al. 2019"
    invariant_to: ClassVar[frozenset[str]] = frozenset(
        {"layer_rescaling", "neuron_rescaling", "batchnorm_scaling", "permutation", "logit_shift"}
    )
    load = FORWARD_LOAD
    passes = FORWARD
    layers: int | None = None
    root: bool = False

    def __post_init__(self) -> None:
        if self.layers is not None and self.layers < 1:
            raise ValueError(f"layers must be at least 1, got {self.layers}")

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """Row by row, after a look at the assumptions."""
        depth = self._depth(probe)
        counted: Plain = [*counted_layers(probe)] if self.layers is None else "given"
        details: dict[str, Plain] = {"layers": depth, "counted": counted}
        warning = self._assumptions(probe, depth)
        if warning:
            details["assumption"] = warning
        by_rows = row_means(probe, lambda batch: self.rows(probe, batch), load=self.load, passes=self.passes)
        for mean in self._from_outputs(probe, depth) if _labels_seen(probe) else by_rows:
            found = self.finish(mean)
            yield replace(found, reason=warning or found.reason, details={**details, **found.details})

    def _from_outputs(self, probe: Probe, depth: int) -> Iterator[RowMean]:
        """The same from the forward pass that everything shares: ∂ℓ_i/∂z_i = p_i − e_y."""

        def mean(outputs: Outputs) -> RowMean:
            z, labels, order = outputs.outputs, outputs.targets, outputs.order
            assert z is not None
            assert labels is not None
            assert order is not None
            slope = z.softmax(1)
            slope[torch.arange(len(z)), labels.clamp(min=0)] -= 1
            slope[labels < 0] = 0  # not counted
            along = torch.where(slope == 0, 0.0, slope.double() * z.double()).sum(1)
            return row_mean(outputs.read_values((depth * along).square()), order)

        for outputs in output_looks(probe):
            yield mean(outputs)
        yield mean(outputs_of(probe))

    def _depth(self, probe: Probe) -> int:
        return sum(counted_layers(probe).values()) if self.layers is None else self.layers

    def rows(self, probe: Probe, batch: Batch) -> Tensor:
        """D² ⟨∂ℓ_i/∂z_i, z_i⟩² of every sample."""
        with torch.no_grad():
            z = sample_rows(probe.outputs(probe.params, batch), batch, "the homogeneous Fisher–Rao norm")
        z = z.detach().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(probe.loss_of(z, batch), z)
        along = torch.where(slope == 0, 0.0, slope.double() * z.detach().double())  # 0 for a logit of −∞
        along = along.flatten(1) if z.dim() > 1 else along[:, None]
        return (self._depth(probe) * along.sum(1, dtype=torch.float64)).square()

    def finish(self, mean: RowMean) -> Estimate:
        """The mean, or its root."""
        return norm_of(mean, self.root)

    def _assumptions(self, probe: Probe, depth: int) -> str:
        """Which assumption does not hold; refused where it fails grossly, unless the number of layers was given."""
        suspects = sorted({type(m).__name__ for m in probe.modules.values() if isinstance(m, NEVER_HOMOGENEOUS)})
        if depth < 1:
            raise NotApplicableError(
                "no linear or convolutional layer with a measured weight runs, so there are no layers to count"
            )
        biases = {
            name: torch.zeros_like(p) for name, p in probe.modules[""].named_parameters() if name.endswith("bias")
        }
        bare = departure(probe, depth, biases)
        if suspects or bare > TOLERATED:
            found = ", ".join(suspects) or "shortcuts, another number of layers, or operations that are not homogeneous"
            text = (
                f"the network is not homogeneous of degree {depth} in its weights ({found}): weights times 2^(1/{depth}) "
                f"should double its outputs, which are off by {bare:.2g} (relative)"
            )
            if self.layers is None:
                raise NotApplicableError(
                    f"{text}. The closed form would be an arbitrary number; use fisher_rao, or pass layers= to get the "
                    f"formula's value anyway."
                )
            return f"{text}; the value is the formula's, not the norm's"
        with_biases = departure(probe, depth, {})
        if with_biases > TOLERATED:
            return (
                f"the network has biases, the formula assumes none: outputs are off by {with_biases:.2g} (relative) from "
                f"doubling with the weights; fisher_rao is exact"
            )
        return ""


def _labels_seen(probe: Probe) -> bool:
    """Whether the shared outputs are logits of one label for each sample, under a plain cross-entropy."""
    loss, outputs = probe.loss, outputs_of(probe)
    plain = loss.known and loss.name == "cross_entropy" and loss.weigh is None and loss.share is None
    if processes() > 1 or not plain or not (outputs.rows or outputs.advance()) or outputs.order is None:
        return False
    z, labels = outputs.outputs, outputs.targets
    return (
        z is not None and labels is not None and z.dim() == 2 and labels.dim() == 1 and not labels.is_floating_point()
    )


def counted_layers(probe: Probe) -> dict[str, int]:
    """How often a forward pass runs each linear and convolutional layer whose weight is measured."""
    measured = {id(p) for name, p in probe.modules[""].named_parameters() if name in probe.params}
    return {
        site.name: site.calls
        for site in layer_sites(probe).values()
        if site.calls and id(probe.modules[site.name]._parameters.get("weight")) in measured
    }


def departure(probe: Probe, depth: int, fixed: Mapping[str, Tensor]) -> float:
    """‖f(2^(1/D) θ) − 2 f(θ)‖ / ‖2 f(θ)‖ on a few samples, with the parameters in `fixed` held at those values."""
    batch = some_samples(probe, 32)
    grown = {name: p * 2 ** (1 / depth) for name, p in probe.params.items()}
    with probe.measuring(), torch.no_grad():
        before, after = (probe.outputs({**params, **fixed}, batch) for params in (probe.params, grown))
    if not (isinstance(before, Tensor) and isinstance(after, Tensor)):
        raise NotApplicableError("the homogeneous Fisher–Rao norm needs a model that returns one tensor")
    twice = 2 * before.double()
    return float((after.double() - twice).norm() / twice.norm().clamp(min=torch.finfo(torch.float64).tiny))
