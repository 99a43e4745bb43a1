"""Norms: of the gradient, of its noise over samples, and of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from landscope.core.errors import DifferentiationError, NotApplicableError
from landscope.core.estimate import Estimate, Status, student_quantile
from landscope.core.json import Plain
from landscope.curvature.per_sample import (
    TANGENT_LOAD,
    TANGENT_PASSES,
    linear_layers,
    output_tangents,
    squared_gradient_norms,
)
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.measures.row_measure import RowValues, early_looks_pay
from landscope.measures.tied import saying_ties
from landscope.probe.batches import Batch
from landscope.probe.loss.widening import ROUNDING
from landscope.probe.points import width
from landscope.probe.probe import Probe
from landscope.probe.rows.last_layer import layer_bounds
from landscope.probe.rows.means import QUANTILE, RowMean
from landscope.probe.rows.outputs import row_order
from landscope.probe.shared import gradient, mean_and_error, once_per_probe, sums

GROUPS = 12
"""Parts of a sample of rows whose gradients are compared."""
FEWEST_GROUPS = 4
"""Parts below which no error bar is believed."""
LOOKS = 2
"""At the first rows before the whole gradient: a sixteenth of them, then three of them."""


# The norm of the gradient of the mean loss, ‖∇L‖₂: zero at a minimum, so it shows how far from one the network is.
#
# Another sample of the data would change ∇L by the mean of the per-sample gradients' deviations; to first order only their
# part along ∇L changes the norm: the standard error is that of the mean of ⟨g_i, ∇L⟩/‖∇L‖, one forward-mode derivative.


def slopes_along(probe: Probe, batch: Batch, direction: Tensor) -> Tensor:
    """⟨g_i, v⟩ for every sample of a piece, in float64: the change of its loss along v (P,)."""
    z, u = output_tangents(probe, batch, probe.space.unflatten(direction), "the spread of the gradient")
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        (slope,) = torch.autograd.grad(probe.loss_of(leaf, batch), leaf)
    return (slope * u).reshape(batch.size, -1).sum(1, dtype=torch.float64)


# ‖∇L‖² from some of the rows. With T_b = Σ_{i∈b} g_i/(n π_i) for B random parts b of the rows that were drawn, and C the
# gradient of those that are certain, ĝ = C + Σ_b T_b has the mean ∇L, and
#
#     ‖ĝ‖² − B/(B − 1) Σ_b (1 − π_b) ‖D_b‖²,   D_b = T_b − mean T,
#
# the mean ‖∇L‖²: the noise of ĝ is taken off. Its variance is 4 B/(B − 1) Σ_b (1 − π_b) ⟨D_b, ĝ⟩² to first order, and to second
# 2 Σ_{b≠c} (1 − π_b)(1 − π_c) ⟨D_b, D_c⟩², which is what is left near a minimum.


@dataclass(frozen=True)
class SquaredNorm:
    """‖∇L‖² as some rows give it, with the ends that hold it with 95 % probability."""

    value: float
    low: float
    high: float
    rows: int

    def norm(self, parameters: int) -> Estimate:
        """‖∇L‖: between both ends, or at most the upper one where they are wide apart or zero is not excluded."""
        low, value, high = (math.sqrt(max(end, 0.0)) for end in (self.low, self.value, self.high))
        reason = f"after {self.rows:,} rows"
        if low == 0 or high - low > value:
            return Estimate(high, status=Status.UPPER_BOUND, reason=reason)
        details: dict[str, Plain] = {"per_parameter": value / parameters**0.5}
        return Estimate(
            value, (high - low) / 4, status=Status.RUNNING, reason=reason, bracket=(low, high), details=details
        )


@once_per_probe
def sampled_gradient(probe: Probe, look: int) -> SquaredNorm | None:
    """‖∇L‖² from the first rows of their order, up to the end of a look; `None` where that says nothing yet."""
    order = row_order(probe)
    ends = [] if order is None else [end for _, end in order.looks()][:-1]
    if order is None or look >= len(ends):
        return None
    end = ends[look]
    pi = order.probabilities(end)
    drawn = (pi < 1).nonzero()[:, 0]
    parts = min(width(probe, GROUPS, vectors=2), len(drawn) // 4)
    if parts < FEWEST_GROUPS:
        return None

    def gradient_of(places: Tensor) -> Tensor:
        assert order is not None
        return probe.on_rows(order.rows[places], 1 / pi[places]).gradient()

    places = [drawn[b::parts] for b in range(parts)]
    totals = torch.stack([gradient_of(part) for part in places]).double()
    whole, certain = totals.sum(0), (pi >= 1).nonzero()[:, 0]
    if len(certain):
        whole = whole + gradient_of(certain)
    missing = torch.stack([1 - pi[part].mean() for part in places]).to(totals.device)
    away = (totals - totals.mean(0)) * missing.sqrt()[:, None]
    gram, factor = away @ away.T, parts / (parts - 1)
    along = away @ whole
    value = float(whole.square().sum() - factor * gram.diagonal().sum())
    second = float(gram.square().sum() - gram.diagonal().square().sum())
    error = math.sqrt(4 * factor * float(along.square().sum()) + 2 * second)
    t = student_quantile(parts - 1, QUANTILE)
    return SquaredNorm(value, value - t * error, value + t * error, end)


@register("gradient_norm")
@dataclass(frozen=True, kw_only=True)
class GradientNorm(Measure):
    """How steep the loss is, ‖∇L‖₂ over all data, zero at a minimum; one gradient, and two forward passes for its error bar.

    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(2, 1), torch.zeros(2, 1)), "mse")
    >>> bool(abs(GradientNorm()(probe).value - 2 * abs(probe.vector().item())) < 1e-6)
    True
    """

    title = "gradient norm"
    family = Family.GRADIENT
    unit = "loss per parameter"
    better = None
    cost = "one gradient and two forward passes"
    turn = 1
    on_shards = True
    invariant_to: ClassVar[frozenset[str]] = frozenset({"permutation", "logit_shift"})

    def at_once(self, probe: Probe) -> Estimate | None:
        """At least the norm of a part."""
        bounds = layer_bounds(probe)
        return None if bounds is None else bounds.at_least(bounds.slope)

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """From the first rows, then the gradient, then its error over the data."""
        if early_looks_pay(probe):
            for look in range(LOOKS):
                early = sampled_gradient(probe, look)
                yield None if early is None else early.norm(probe.n_params)
        slope = gradient(probe)
        norm = float(probe.vectors.norms(slope if probe.narrow else slope.double()))
        if norm == 0:
            yield Estimate(norm)
            return
        details: dict[str, Plain] = {"per_parameter": norm / probe.n_params**0.5}
        rounding, status = (ROUNDING * norm, Status.CONVERGED) if probe.narrow else (0.0, Status.EXACT)
        yield Estimate(norm, rounding, status=status, details=details)
        unit = slope / norm
        try:
            if probe.mode == "batch_statistics":
                raise NotApplicableError("samples share batch statistics, so there is no spread over single samples")
            total, squares = probe.total(
                lambda batch: sums(slopes_along(probe, batch, unit) - norm * probe.shares(batch)),
                load=TANGENT_LOAD,
                passes=TANGENT_PASSES,
                grad=False,
            )
        except (DifferentiationError, NotApplicableError) as error:
            yield Estimate(norm, rounding, status=status, details={**details, "no_data_stderr": str(error)})
            return
        yield Estimate(norm, rounding, mean_and_error(total, squares, probe.n_samples)[1], status, details=details)


# The trace of the covariance of the per-sample gradients: how much the samples disagree about the direction of descent.
#
#     tr Cov = (1/n) Σ_i ‖g_i − ∇L‖² = (1/n) Σ_i ‖g_i‖² − ‖∇L‖²
#
# Exact: the covariance of this data (1/n, not 1/(n − 1)). The squared norms take about one gradient where all layers are
# linear and two to four otherwise (see `squared_gradient_norms`), ∇L one (shared with other measures), and ⟨g_i, ∇L⟩, which
# makes it a mean over rows, two forward passes.


@register("gradient_noise")
@dataclass(frozen=True, kw_only=True)
class GradientNoise(Measure):
    """How far the gradients of single samples scatter around their mean: tr of their covariance, exact.

    >>> import torch
    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.tensor([[1.0], [-1.0]]), torch.ones(2, 1)), "mse")
    >>> abs(GradientNoise()(probe).value - 4.0) < 1e-4            # gradients 2w ∓ 2
    True
    """

    title = "gradient noise"
    family = Family.GRADIENT
    unit = "loss² per parameter²"
    better = None
    cost = "the gradient of every sample: two to four gradients and two forward passes"
    invariant_to: ClassVar[frozenset[str]] = frozenset({"permutation", "logit_shift"})

    def at_once(self, probe: Probe) -> Estimate | None:
        """At least the covariance of a part."""
        bounds = layer_bounds(probe)
        return None if bounds is None else bounds.at_least(bounds.noise)

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """From the first rows, then all of them around the gradient."""
        if not next(probe.batches()).divisible:
            raise NotApplicableError(
                "the gradient of a single sample is not defined where the samples of a batch share its statistics, or come as "
                "one piece (a graph)"
            )
        load, passes = (2.0, 1.0) if self._only_linear(probe) else (4.0, 3.0)

        def norms(batch: Batch) -> Tensor:
            return squared_gradient_norms(probe, batch)

        if early_looks_pay(probe):
            near = sampled_gradient(probe, 0)
            yield None
            if near is not None:
                yield self._early(next(_rows(probe, norms, load, passes)), near)
        slope = gradient(probe)
        square = float(slope.double().square().sum())
        details: dict[str, Plain] = {"gradient_norm": square**0.5}

        def apart(batch: Batch) -> Tensor:
            return norms(batch) - 2 * slopes_along(probe, batch, slope) + square

        try:
            for mean in _rows(probe, apart, load, passes + TANGENT_PASSES):
                yield self._found(mean, square, details)
        except DifferentiationError as error:
            details["data_stderr_of"] = f"the mean of ‖g_i‖² alone: {error}"
            yield None
            for mean in _rows(probe, norms, load, passes):
                yield self._found(_less(mean, square, square), square, details)

    def _found(self, mean: RowMean, square: float, details: dict[str, Plain]) -> Estimate:
        found = mean.estimate()
        noise = max(found.value, 0.0)
        more: dict[str, Plain] = {"second_moment": noise + square}
        more["noise_to_signal"] = noise / square if square > 0 else None
        bracket = None if found.bracket is None else (max(found.bracket[0], 0.0), max(found.bracket[1], noise))
        return replace(found, value=noise, bracket=bracket, details={**details, **more})

    def _early(self, second: RowMean, square: SquaredNorm) -> Estimate:
        """Before the gradient is known: both ends as far out as both errors allow."""
        low, high = max(square.low, 0.0), max(square.high, 0.0)
        found = _less(second, low, high)
        return self._found(replace(found, complete=False, reliable=second.reliable), max(square.value, 0.0), {})

    def _only_linear(self, probe: Probe) -> bool:
        layers = {name.rpartition(".")[0] for name in probe.params}
        return layers <= set(linear_layers(probe))


def _rows(probe: Probe, function: Callable[[Batch], Tensor], load: float, passes: float) -> Iterator[RowMean]:
    return RowValues(
        probe, lambda batch, _: function(batch), load=load, passes=passes, grad=True, in_the_loss=False
    ).read()


def _less(mean: RowMean, least: float, most: float) -> RowMean:
    """The mean less a number between `least` and `most`."""
    low, high = mean.low - most, mean.high - least
    value = min(max(mean.value - (least + most) / 2, low), high)
    return replace(mean, value=value, low=low, high=high, stderr=mean.stderr + (most - least) / 4)


# The norm of the weights, ‖θ‖₂: of all measured parameters, or of one layer.


@register("l2_norm")
@dataclass(frozen=True, kw_only=True)
class L2Norm(Measure):
    """The size of the weights, ‖θ‖₂, or its square; costs nothing.

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

    turn = 0
    on_shards = True
    title = "ℓ₂ norm"
    family = Family.WEIGHTS
    unit = "parameter"
    better = None
    cost = "nothing: the data is not read"
    invariant_to: ClassVar[frozenset[str]] = frozenset({"permutation"})
    layer: str | None = None
    squared: bool = False

    def at_once(self, probe: Probe) -> Estimate | None:
        """The norm itself: the data is not read."""
        return self._measure(probe)

    def _measure(self, probe: Probe) -> Estimate:
        at = probe if self.layer is None else probe.restrict(self.layer)
        squares = {name: float(at.vectors.add_up(p.double().square().sum())) for name, p in at.params.items()}
        total = sum(squares.values())
        by_layer = {layer: sum(squares[name] for name in names) ** 0.5 for layer, names in at.layers().items()}
        found = Estimate(
            total if self.squared else total**0.5, details={"parameters": at.n_params, "by_layer": by_layer}
        )
        return found if self.layer is None else saying_ties(found, probe, at.space.names)
