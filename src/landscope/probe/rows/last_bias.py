"""What the outputs of a few rows alone say about curvature and gradient: bounds, before anything is differentiated.

Most networks end in outputs z = … + b with a bias b of their own. The network is affine in b, so that the block of the Hessian
(and of the Gauss–Newton matrix) that belongs to b is the mean over rows of ∂²ℓ/∂z², and the part of the gradient the mean of
∂ℓ/∂z: the loss alone is differentiated. A block bounds the whole,

    λ₁ ≥ λ₁(block),   λ_min ≤ λ_min(block),   ‖A‖_F ≥ |uᵀ block u|,   ‖∇L‖ ≥ ⟨∇_b L, u⟩,   tr Cov ≥ tr Cov_b,

for any unit vector u, and the trace is at least that of the block wherever the diagonal is not negative. Half of the rows choose
u, the other half judge it: the bound on the mean over all rows is the lower end of an honest bar. That a bias is added to the
outputs is tried on every one of these rows: what clips them is found. It costs two forward passes over at most 64 rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.errors import LandscopeError
from landscope.core.estimate import Estimate, Status
from landscope.core.seeding import hashed_signs
from landscope.probe.batches import Batch
from landscope.probe.points import is_small
from landscope.probe.probe import Probe
from landscope.probe.rows.means import FEWEST, row_mean
from landscope.probe.rows.order import DrawnRows, RowOrder
from landscope.probe.rows.outputs import outputs_of
from landscope.probe.shared import once_per_probe

__all__ = ["BiasBounds", "bias_bounds"]

DENSE = 32
"""Outputs up to which the block is formed; beyond, its largest curvature is looked for by power steps."""
POWER_STEPS = 2
CANDIDATES = 3
"""Parameters that are tried as the bias of the outputs, from the last one."""
MOST_ROWS = 64
AGREEMENT = 1e-4


@dataclass(frozen=True)
class BiasBounds:
    """Bounds on what the whole network has, from the block of its last bias."""

    top: float
    """λ₁ of the Hessian and of the Gauss–Newton matrix is at least this."""
    bottom: float
    """Their smallest eigenvalue is at most this."""
    trace: float | None
    """The trace of the block is at least this."""
    slope: float
    """‖∇L‖ is at least this."""
    noise: float
    """The trace of the covariance of the gradients is at least this."""
    rows: int

    def at_least(self, value: float) -> Estimate:
        """A lower bound, with where it is from."""
        return Estimate(value, status=Status.LOWER_BOUND, reason=self._reason)

    def at_most(self, value: float) -> Estimate:
        """An upper bound, with where it is from."""
        return Estimate(value, status=Status.UPPER_BOUND, reason=self._reason)

    @property
    def _reason(self) -> str:
        return f"from the outputs of {self.rows:,} rows and the last bias alone"


@once_per_probe
def bias_bounds(probe: Probe) -> BiasBounds | None:
    """Bounds from the rows whose outputs are known; `None` where passes are cheap, or no bias is added to the outputs.

    >>> net = torch.nn.Linear(2, 3)
    >>> bias_bounds(Probe(net, (torch.randn(50, 2), torch.arange(50) % 3))) is None         # products take no time
    True
    """
    if is_small(probe) or not probe.takes_rows or probe.loss.reduction != "per_sample" or probe.mode != "eval":
        return None
    outputs = outputs_of(probe)
    while outputs.rows < FEWEST and outputs.advance():
        pass
    if outputs.outputs is None or outputs.order is None or outputs.rows < FEWEST:
        return None
    count = min(outputs.rows, MOST_ROWS)
    numbers = outputs.order.rows[:count]
    z = outputs.outputs[numbers] if outputs.complete else outputs.outputs[:count]
    batch, z = probe.rows(numbers).prepared(probe.ready), z.to(probe.device, probe.dtype)
    try:
        with probe.measuring(), torch.enable_grad():
            dim = _bias_dimension(probe, z, batch)
            return None if dim is None else _bounds(probe, z, batch, dim, outputs.order)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        if isinstance(error, LandscopeError):
            raise
        return None


def _bias_dimension(probe: Probe, z: Tensor, batch: Batch) -> int | None:
    """The dimension along which a bias is added to the outputs of every row: z(b + δ) = z(b) + δ/T."""
    vectors = [name for name, p in reversed(list(probe.params.items())) if p.dim() == 1 and len(p) in z.shape[1:]]
    for name in vectors[:CANDIDATES]:
        bias = probe.params[name]
        delta = hashed_signs(len(bias), 0, "bias", dtype=bias.dtype, device=bias.device)
        for some in (batch.first(2), batch):  # most that are not it show that at once
            with torch.no_grad():
                moved = probe.outputs({**probe.params, name: bias + delta}, some)
            dim = _shifted_along(z[: some.size], moved, delta / probe.temperature)
            if dim is None:
                break
        if dim is not None:
            return dim
    return None


def _shifted_along(z: Tensor, moved: object, delta: Tensor) -> int | None:
    """The dimension in which `moved` is z + δ, if there is one."""
    assert isinstance(moved, Tensor), "as z is"
    for dim in range(1, z.dim()):
        shape = [-1 if at == dim else 1 for at in range(z.dim())]
        if z.shape[dim] == len(delta) and float((moved - z - delta.reshape(shape)).abs().max()) <= AGREEMENT * (
            1 + float(z.abs().max())
        ):
            return dim
    return None


def _bounds(probe: Probe, z: Tensor, batch: Batch, dim: int, order: RowOrder) -> BiasBounds:
    z, count = z.requires_grad_(), batch.size
    losses = probe.loss.function(z, probe.second(batch))
    (slopes,) = torch.autograd.grad(losses.sum(), z, create_graph=True)

    def of_bias(tensor: Tensor) -> Tensor:
        return tensor.movedim(dim, -1).reshape(count, -1, tensor.shape[dim]).sum(1) / probe.temperature

    def curved(u: Tensor) -> Tensor:
        """The rows' blocks times u (m, C)."""
        along = (of_bias(slopes) @ u).sum()
        (pulled,) = torch.autograd.grad(along, z, retain_graph=True, materialize_grads=True)
        return of_bias(pulled)

    leading, judging = torch.arange(0, count, 2), torch.arange(1, count, 2)
    taken = DrawnRows(order.rows, None, (order.probabilities(count)[judging] / 2).clamp(max=1.0))
    counts = None if probe.loss.share is None else probe.shares(batch).cpu().numpy()

    def judged(values: Tensor) -> tuple[float, float]:
        of_rows = values.detach().double().cpu().numpy()[:, None]
        found = row_mean(of_rows[judging], taken, counts=None if counts is None else counts[judging])
        return found.low, found.high

    first = of_bias(slopes).detach()
    u = torch.nn.functional.normalize(first[leading].mean(0), dim=0)
    slope = max(judged(first @ u)[0], 0.0)
    classes, trace = z.shape[dim], None
    if classes <= DENSE:
        blocks = torch.stack([curved(axis) for axis in torch.eye(classes, dtype=z.dtype, device=z.device)], 1)
        _, vectors = torch.linalg.eigh(blocks[leading].mean(0).double().cpu())
        low, high = (vectors[:, end].to(z) for end in (0, -1))
        top = judged(torch.einsum("i,nij,j->n", high, blocks, high))[0]
        bottom = judged(torch.einsum("i,nij,j->n", low, blocks, low))[1]
        trace = judged(blocks.diagonal(dim1=1, dim2=2).sum(1))[0]
    else:
        for _ in range(POWER_STEPS):
            u = torch.nn.functional.normalize(curved(u)[leading].mean(0), dim=0)
        top = judged(curved(u) @ u)[0]
        even = torch.full_like(u, classes**-0.5)  # what a softmax does not see
        bottom = judged(curved(even) @ even)[1]
    apart = first[0 : count - 1 : 2] - first[1:count:2]
    pairs = apart.double().square().sum(1).cpu().numpy() / 2  # each unbiased for the covariance, which they only sample
    noise = row_mean(pairs[:, None], RowOrder(torch.arange(100 * len(pairs)), None)).low
    return BiasBounds(top, bottom, trace, slope, max(noise, 0.0), count)
