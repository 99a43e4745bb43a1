"""Information-geometric sharpness (Jang et al. 2022), at every rank, through the Gram matrix.

    IGS = (1/n) Σ_i g_iᵀ F⁺ g_i,   and at rank m with the m largest eigenpairs (λ_k, v_k) of the Fisher matrix F only:
    IGS_m = (1/n) Σ_i Σ_{k≤m} ⟨v_k, g_i⟩² / λ_k = (1/n) Σ_i Σ_{k≤m} (u_kᵀ G g_i)² / λ_k²

with F = GᵀG, eigenpairs (λ_k, u_k) of the small matrix K = GGᵀ, and g_i the gradient of sample i. It is defined on batches of
`batch_size` samples and averaged over them: rank and batch size are part of the measure.

At full rank it carries no geometry: where the Jacobians are independent (P ≫ nC), IGS = Σ_i (1/p_{i,y_i} − 1), a function of
the losses of the batch alone. That saturated value is reported beside it, and a rank that reaches it is called saturated.
Only the full rank is invariant to reparametrisation; the choice of the largest eigenvalues is not. Permuted neurons change
nothing at any rank, nor does a shift of all logits (Sᵀ1 = 0 and rᵀ1 = 0).

Cost per batch: C + 4 forward or backward passes (a third of a gradient each) and an eigendecomposition of order nC, for all
ranks at once: another rank at the same probe costs nothing. Another temperature costs the eigendecomposition alone, where the
probes are made by `Probe.at_temperature` before one of them is measured: ∂(z/T) = ∂z/T.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from landscope.core.distributed import processes, sum_over_processes
from landscope.core.errors import BudgetSpentError, OperandError
from landscope.core.estimate import Estimate, Status
from landscope.core.json import Plain
from landscope.curvature.gram import GramMatrix, gram, gram_alike
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.measures.sharpness.matrices import outputs_per_sample, predicts_once
from landscope.probe.probe import Probe
from landscope.probe.rows.means import batch_mean
from landscope.probe.rows.outputs import outputs_of
from landscope.probe.rows.samples import batch_count, gather_values, m_batches
from landscope.probe.totals import FORWARD

SATURATED = 0.99
"""Share of the full-rank value from which a rank adds no information of its own."""
CURVE_POINTS = 200
"""At most this many ranks of the curve are reported, evenly spaced on a logarithmic scale."""


def igs_curve(matrix: GramMatrix) -> Tensor:
    """IGS_1, IGS_2, … up to the numerical rank of the Fisher matrix of a batch.

    >>> probe = Probe(torch.nn.Linear(2, 3).double(), (torch.eye(2).double(), torch.tensor([0, 2])))
    >>> matrix = gram(probe, next(probe.batches()))
    >>> bool(torch.isclose(igs_curve(matrix)[-1], saturated_igs(matrix)))
    True
    """
    values, vectors = matrix.fisher()
    along = (vectors.T @ matrix.gradients()).square().sum(1)
    return (along / values.square()).cumsum(0) / len(matrix.residuals)


def saturated_igs(matrix: GramMatrix) -> Tensor:
    """Σ_i r_iᵀ Λ_i⁺ r_i, for labels Σ_i (1/p_{i,y_i} − 1): the value of IGS at full rank if the Jacobians are independent."""
    return matrix.scores.square().sum()


@dataclass(frozen=True, eq=False)
class _BatchCurve:
    """IGS of one batch at rank 0, 1, … up to the numerical rank, and its value if the Jacobians were independent."""

    curve: Tensor
    saturated: float

    @property
    def rank(self) -> int:
        """The numerical rank of the Fisher matrix."""
        return len(self.curve) - 1

    def at(self, rank: int) -> float:
        """IGS at a rank, or at the largest available."""
        return float(self.curve[min(rank, self.rank)])


def _batch_curves(
    probe: Probe, batch_size: int, batches: int | None, seed: int, passes: float
) -> Iterator[Sequence[_BatchCurve]]:
    """The curves of this process's batches so far, each `passes` passes; once all are known, they are kept with the probe.

    Those at other temperatures (`Probe.at_temperature`) come from the same Gram matrices.
    """
    key = _key(batch_size, batches, seed)
    if key in probe.results:
        yield cast(Sequence[_BatchCurve], probe.results[key])
        return
    found: dict[Probe, list[_BatchCurve]] = {probe: []}
    found |= {twin: [] for twin in probe.alike if key not in twin.results}
    spent: BudgetSpentError | None = None
    for batch in m_batches(probe, batch_size, batches, seed):
        try:
            probe.ledger.check()
        except BudgetSpentError as error:
            spent = error
            if processes() == 1:
                break
            continue  # other processes may still wait for the samples of later batches
        with probe.ledger.timed(probe.device):
            matrix = gram(probe, batch)
            for point, curves in found.items():
                curves.append(_curve(matrix if point is probe else gram_alike(matrix, probe, point, batch)))
        probe.ledger.add(passes)
        yield found[probe]
    if spent is not None:
        raise spent
    for point, curves in found.items():
        point.results[key] = curves


def _key(batch_size: int, batches: int | None, seed: int) -> Hashable:
    return _batch_curves, batch_size, batches, seed


def _curve(matrix: GramMatrix) -> _BatchCurve:
    curve = igs_curve(matrix).double()
    return _BatchCurve(torch.cat([curve.new_zeros(1), curve]), float(saturated_igs(matrix)))


@register("igs")
@dataclass(frozen=True, kw_only=True)
class InformationGeometricSharpness(Measure):
    """How large the gradients of single samples are along the directions in which predictions change most.

    IGS at a rank, the plain mean over batches; details hold the mean logarithm, the whole curve and the saturated value.

    Args:
        rank: how many of the largest eigenvalues of the Fisher matrix.
        batch_size: samples per batch, m.
        batches: how many batches, drawn by `seed`; `None` for all of the data.

    >>> probe = Probe(torch.nn.Linear(4, 3).double(), (torch.eye(4).double(), torch.tensor([0, 2, 1, 1])))
    >>> estimate = InformationGeometricSharpness(rank=2)(probe)
    >>> estimate.status, estimate.value < estimate.details["saturated"]
    (<Status.EXACT: 'exact'>, True)
    """

    title = "IGS"
    family = Family.GRADIENT
    unit = ""
    better = None
    cost = "classes + 4 forward or backward passes over 20 batches"
    reference = "Jang et al. 2022"
    invariant_to: ClassVar[frozenset[str]] = frozenset({"permutation", "logit_shift"})

    rank: int = 20
    batch_size: int = 64
    batches: int | None = 20

    def __post_init__(self) -> None:
        for name, value in (("rank", self.rank), ("batch_size", self.batch_size), ("batches", self.batches)):
            if not (isinstance(value, int) and value >= 1) and not (name == "batches" and value is None):
                raise OperandError(f"igs: {name} must be a whole number of at least 1, got {value!r}")

    def at_once(self, probe: Probe) -> Estimate | None:
        """A mean of squares is not negative."""
        known = probe.loss.likelihood is not None
        return Estimate(0.0, status=Status.LOWER_BOUND, reason="no batch has been read") if known else None

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """The batches done so far, then all of them."""
        size = min(self.batch_size, probe.n_samples)
        outputs = outputs_per_sample(probe)
        ranks = shown_ranks(size * outputs, self.rank)
        passes = size * (outputs + 4) * FORWARD / probe.n_samples
        total = batch_count(probe, self.batch_size, self.batches, self.seed)
        found: Sequence[_BatchCurve] = ()
        if total is not None and (most := self._at_most(probe, total)) is not None:
            yield most
        for found in _batch_curves(probe, self.batch_size, self.batches, self.seed, passes):
            if total is None or processes() > 1 or len(found) < 2:
                yield None
            elif len(found) < total:
                yield self._early([each.at(self.rank) for each in found], total)
        yield self._of(probe, ranks, found)

    def _at_most(self, probe: Probe, batches: int) -> Estimate | None:
        """What full rank gives at most, where outputs are known: Σ_i (1/p_i − 1) over all rows, for each of the batches."""
        outputs = outputs_of(probe)
        if not outputs.complete:
            return None
        plain = probe.loss.known and probe.loss.name == "cross_entropy" and probe.loss.weigh is None
        labels = outputs.targets is not None and not outputs.targets.is_floating_point()
        if not (plain and labels and predicts_once(probe)) or outputs.losses is None:
            return None
        most = float(outputs.losses.expm1().sum()) / batches
        reason = "full rank, from the losses alone"
        return Estimate(most, status=Status.UPPER_BOUND, reason=reason) if math.isfinite(most) else None

    def _early(self, values: list[float], total: int) -> Estimate:
        """The mean over the batches done so far; the spread over batches says how far that of all may lie."""
        found = batch_mean(values, total).estimate()
        reason = f"{len(values)} of {total} batches"
        if found.status.is_bound:
            return replace(found, value=max(found.value, 0.0), reason=reason)
        low, high = found.bracket or (found.value, found.value)
        return replace(found, bracket=(max(low, 0.0), high), reason=reason, details={"batches": len(values)})

    def _of(self, probe: Probe, ranks: list[int], found: Sequence[_BatchCurve]) -> Estimate:
        sums = torch.zeros(2, len(ranks), dtype=torch.float64, device=probe.device)
        for each in found:
            shown = each.curve[torch.tensor(ranks, device=each.curve.device).clamp(max=each.rank)]
            sums += torch.stack([shown, shown.log()])
        rows = [(each.at(self.rank), each.at(each.rank), each.saturated, float(each.rank)) for each in found]
        columns = [gather_values([row[i] for row in rows]) for i in range(4)]
        curve, log_curve = (sum_over_processes(sums) / len(columns[0])).tolist()
        values, full, formula, numerical = columns
        return self._estimate(ranks, curve, log_curve, values, full, formula, numerical)

    def _estimate(
        self,
        ranks: list[int],
        curve: list[float],
        log_curve: list[float],
        values: list[float],
        full: list[float],
        formula: list[float],
        numerical: list[float],
    ) -> Estimate:
        """Put the batches together; one entry of each list per batch, the curves being means already."""
        value, error = _mean(values)
        saturated, alone, smallest = _mean(full)[0], _mean(formula)[0], int(min(numerical))
        mean_log, log_error = _mean([math.log(v) for v in values]) if min(values) > 0 else (None, None)
        details: dict[str, Plain] = {
            "mean_log": mean_log,
            "mean_log_data_stderr": log_error,
            "saturated": saturated,
            "saturated_formula": _finite(alone),
            "numerical_rank": smallest,
            "batches": len(values),
            "ranks": list(ranks),
            "curve": [_finite(v) for v in curve],
            "mean_log_curve": [_finite(v) for v in log_curve],
        }
        status, reason = Status.EXACT, ""
        if self.rank >= smallest or value >= SATURATED * saturated:
            status = Status.SATURATED
            disguise = saturated >= SATURATED * alone
            reason = (
                f"the rank is so high that it {'is the loss in disguise' if disguise else 'takes in the whole Fisher matrix'}: "
                f"rank {self.rank} of {smallest} gives {value:.4g}, full rank {saturated:.4g}, and the losses alone would give "
                f"{alone:.4g}. Ask for a smaller rank or larger batches."
            )
        return Estimate(value, data_stderr=error, status=status, reason=reason, details=details)


def shown_ranks(largest: int, asked: int) -> list[int]:
    """The ranks that are reported: all of a small matrix, otherwise evenly spaced logarithms, and the asked one.

    >>> shown_ranks(6, 2), len(shown_ranks(6400, 20)) <= 201
    ([1, 2, 3, 4, 5, 6], True)
    """
    if largest <= CURVE_POINTS:
        return list(range(1, largest + 1))
    points = np.unique(np.geomspace(1, largest, CURVE_POINTS).round().astype(int))
    return sorted({*points.tolist(), min(asked, largest)})


def _finite(value: float) -> float | None:
    """`None` for a number that JSON cannot hold: 1/p of a confidently wrong prediction overflows float64."""
    return value if math.isfinite(value) else None


def _mean(values: list[float]) -> tuple[float, float | None]:
    """The mean over batches and its standard error."""
    if len(values) < 2:
        return values[0], None
    mean = float(np.mean(values))
    return mean, float(np.std(values, ddof=1) / len(values) ** 0.5) if math.isfinite(mean) else None
