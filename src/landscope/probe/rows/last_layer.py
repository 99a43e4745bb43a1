"""What the outputs of a few rows alone say about curvature and gradient: bounds, before anything is differentiated.

Most networks end in outputs z = W φ + b. They are affine in W and b, so that the block of the Hessian (and of the
Gauss–Newton matrix) that belongs to these is the mean over rows of JᵀΛJ, with Λ = ∂²ℓ/∂z² and J U = U φ̃ for a step U of both,
φ̃ = (φ, 1); their part of the gradient is the mean of r φ̃ᵀ, r = ∂ℓ/∂z. The loss alone is differentiated. A block bounds the
whole: for unit vectors u,

    λ₁ ≥ uᵀ block u,   λ_min ≤ uᵀ block u,   ‖A‖_F ≥ |uᵀ block u|,   ‖∇L‖ ≥ ⟨∇L, u⟩,   tr Cov ≥ tr Cov of the block,

the trace is at least that of the block wherever the diagonal is not negative, and log det VᵀAV is at most the sum of the
logarithms of the k largest eigenvalues. Half of the rows choose u, the other half judge it: the bound on the mean over all
rows is the lower end of an honest bar. φ and z were seen in the forward pass that everything shares; that outputs move with W
and b as they should, and with nothing else, is tried on two rows. Where the last layer was not seen, the same is done for a
bias that is added to the outputs of every row, or along one direction of the last norm's parameters, along which three
outputs of every row must lie on a line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from landscope.core.errors import LandscopeError
from landscope.core.estimate import Estimate, Status
from landscope.core.seeding import generator, hashed_signs, normal
from landscope.probe.points import is_small
from landscope.probe.probe import Probe
from landscope.probe.rows.means import FEWEST, RowMean, row_mean
from landscope.probe.rows.order import DrawnRows, RowOrder
from landscope.probe.rows.outputs import Outputs, outputs_of
from landscope.probe.shared import once_per_probe

FEW_CLASSES = 32
"""Outputs up to which tr Λ is taken class by class."""
LARGEST = 2**18
"""Entries of a block's vectors up to which several are looked for."""
VECTORS, ROUNDS = 10, 3
"""Leading vectors of the block, and rounds of subspace iteration for them."""
CANDIDATES = 3
"""Parameters that are tried as the bias of the outputs, from the last one."""
MOST_ROWS = 64
FEW_ROWS = 16
"""Where outputs at other values are needed, too."""
AGREEMENT = 1e-4

Parts = Mapping[str, Tensor]


@dataclass(frozen=True)
class LayerBounds:
    """Bounds on what the whole network has, from the block of its last layer."""

    top: float
    """λ₁ of the Hessian and of the Gauss–Newton matrix is at least this."""
    bottom: float
    """Their smallest eigenvalue is at most this."""
    trace: float | None
    """The trace of the Gauss–Newton matrix is at least this."""
    slope: float
    """‖∇L‖ is at least this."""
    noise: float
    """The trace of the covariance of the gradients is at least this."""
    rows: int
    of: str
    """Which part of the network it is."""
    volumes: tuple[float, ...] = ()
    """The sum of the logarithms of the k largest eigenvalues of the Hessian is at least the k-th of these."""
    gradient: Parts = field(default_factory=dict)
    """The block's part of ∇L, from half of the rows."""
    rise: Callable[[Parts], RowMean] | None = None
    """The mean rise of the loss for a step of the layer's parameters that those rows have chosen, as the others judge it."""

    def at_least(self, value: float) -> Estimate:
        """A lower bound, with where it is from."""
        return Estimate(value, status=Status.LOWER_BOUND, reason=self.reason)

    def at_most(self, value: float) -> Estimate:
        """An upper bound, with where it is from."""
        return Estimate(value, status=Status.UPPER_BOUND, reason=self.reason)

    @property
    def reason(self) -> str:
        """Where a bound is from."""
        return f"from the outputs of {self.rows:,} rows and {self.of} alone"


@once_per_probe
def layer_bounds(probe: Probe) -> LayerBounds | None:
    """Bounds from the rows whose outputs are known; `None` where passes are cheap, or no such layer gives the outputs.

    >>> net = torch.nn.Linear(2, 3)
    >>> layer_bounds(Probe(net, (torch.randn(50, 2), torch.arange(50) % 3))) is None         # products take no time
    True
    """
    if is_small(probe) or not probe.takes_rows or probe.loss.reduction != "per_sample" or probe.mode != "eval":
        return None
    outputs = outputs_of(probe)
    while outputs.rows < FEWEST and outputs.advance():
        pass
    if outputs.outputs is None or outputs.order is None or outputs.rows < FEWEST:
        return None
    try:
        with probe.measuring(), torch.enable_grad():
            return _of_layer(probe, outputs) or _of_bias(probe, outputs) or _of_direction(probe, outputs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        if isinstance(error, LandscopeError):
            raise
        return None


class _Rows:
    """The first rows with their outputs: half of them lead to a direction, the others judge it."""

    def __init__(self, probe: Probe, outputs: Outputs, most: int) -> None:
        assert outputs.order is not None
        assert outputs.outputs is not None
        self.probe, self.count = probe, min(outputs.rows, most)
        numbers = outputs.order.rows[: self.count]
        self.places = numbers if outputs.complete else torch.arange(self.count)
        self.batch = probe.rows(numbers).prepared(probe.ready)
        self.z = outputs.outputs[self.places].to(probe.device, probe.dtype).requires_grad_()
        self.losses = probe.loss.function(self.z, probe.second(self.batch))
        (self.slopes,) = torch.autograd.grad(self.losses.sum(), self.z, create_graph=True)
        self.leading, self.judging = torch.arange(0, self.count, 2), torch.arange(1, self.count, 2)
        pi = outputs.order.probabilities(self.count)
        self._taken = DrawnRows(outputs.order.rows, None, (pi[self.judging] / 2).clamp(max=1.0))
        self._weights = None if probe.loss.share is None else probe.shares(self.batch).cpu().numpy()

    def curved(self, tangent: Tensor) -> Tensor:
        """Λ t of every row, for tangents t of the outputs."""
        along = (self.slopes * tangent).sum()
        (found,) = torch.autograd.grad(along, self.z, retain_graph=True, materialize_grads=True)
        return found

    def judged(self, values: Tensor | np.ndarray) -> RowMean:
        """The mean over all rows of numbers of these (m,), from those that judge."""
        of_rows = values.detach().double().cpu().numpy() if isinstance(values, Tensor) else values
        counts = None if self._weights is None else self._weights[self.judging]
        return row_mean(of_rows[self.judging][:, None], self._taken, counts=counts)

    def sums(self, of_outputs: Tensor) -> Tensor:
        """One number per row."""
        return of_outputs.reshape(self.count, -1).sum(1)

    def rises(self, tangent: Tensor) -> RowMean:
        """The mean rise of the loss where the outputs move by a tangent."""
        with torch.no_grad():
            moved = self.probe.loss.function(self.z + tangent, self.probe.second(self.batch))
        return self.judged(moved - self.losses)

    def pairs(self, apart: Tensor) -> float:
        """The trace of a covariance is at least this, from ½ ‖g − g'‖² of pairs of rows."""
        halves = apart.detach().double().cpu().numpy() / 2  # each unbiased, and they only sample
        return max(row_mean(halves[:, None], RowOrder(torch.arange(100 * len(halves)), None)).low, 0.0)


# The last linear layer, or a bias alone: J U = U φ̃ with φ̃ = (φ, 1), or 1.


def _of_layer(probe: Probe, outputs: Outputs) -> LayerBounds | None:
    """Outputs (n, C) that a linear layer gives, whose inputs the forward pass has seen."""
    name, features = outputs.head, outputs.features
    if name is None or features is None:
        return None
    weight, bias = f"{name}.weight", f"{name}.bias"
    measured = [each for each in (weight, bias) if each in probe.params]
    if not measured:
        return None
    rows = _Rows(probe, outputs, MOST_ROWS)
    phi = features[rows.places].to(rows.z)
    if not _moves_alone(probe, measured, phi[:2], rows):
        return None
    inputs = [phi] if weight in measured else []
    inputs += [phi.new_ones(rows.count, 1)] if bias in measured else []
    joined = torch.cat(inputs, 1) / probe.temperature
    classes = rows.z.shape[1]

    def parts(step: Tensor) -> Parts:
        found = {weight: step[:, : phi.shape[1]]} if weight in measured else {}
        return {**found, bias: step[:, -1]} if bias in measured else found

    def step(given: Parts) -> Tensor:
        columns = [given[weight]] if weight in measured else []
        return torch.cat([*columns, *([given[bias][:, None]] if bias in measured else [])], 1)

    r = rows.slopes.detach()
    squares = rows.sums(r.square()) * rows.sums(joined.square())
    a, b = torch.arange(0, rows.count - 1, 2), torch.arange(1, rows.count, 2)
    mixed = (r[a] * r[b]).sum(1) * (joined[a] * joined[b]).sum(1)
    noise = rows.pairs(squares[a] + squares[b] - 2 * mixed)
    return _bounds(rows, joined[:, None], 1, classes, noise, "the last layer", parts, step)


def _moves_alone(probe: Probe, names: list[str], features: Tensor, rows: _Rows) -> bool:
    """Whether the outputs of two rows move with these parameters as they should: whatever else used them would show."""
    few = rows.batch.first(2)
    deltas = {name: hashed_signs(p.numel(), 0, "last layer", name, dtype=p.dtype, device=p.device).view_as(p)
              for name, p in probe.params.items() if name in names}  # fmt: skip
    with torch.no_grad():
        moved = probe.outputs({**probe.params, **{name: probe.params[name] + by for name, by in deltas.items()}}, few)
        by = sum(features[: few.size] @ delta.T if delta.dim() == 2 else delta for delta in deltas.values())
    assert isinstance(by, Tensor), "there is a parameter"
    return _on_a_line(rows.z[: few.size].detach(), by / probe.temperature, moved)


def _on_a_line(z: Tensor, by: Tensor, moved: object) -> bool:
    assert isinstance(moved, Tensor), "as z is"
    z, by, moved = z.detach(), by.detach(), moved.detach()
    room = AGREEMENT * (1 + float(z.abs().max()) + float(by.abs().max()))
    return moved.shape == z.shape and float((moved - z - by).abs().max()) <= room


def _of_bias(probe: Probe, outputs: Outputs) -> LayerBounds | None:
    """Outputs of any shape with a bias of their own."""
    rows = _Rows(probe, outputs, MOST_ROWS)
    vectors = [name for name, p in reversed(list(probe.params.items())) if p.dim() == 1 and len(p) in rows.z.shape[1:]]
    for name in vectors[:CANDIDATES]:
        bias, dim = probe.params[name], None
        delta = hashed_signs(len(bias), 0, "bias", dtype=bias.dtype, device=bias.device)
        for some in (rows.batch.first(2), rows.batch):  # most that are not it show that at once
            with torch.no_grad():
                moved = probe.outputs({**probe.params, name: bias + delta}, some)
            dim = _shifted_along(rows.z[: some.size], moved, delta / probe.temperature)
            if dim is None:
                break
        if dim is not None:
            of_bias = rows.slopes.detach().movedim(dim, -1).flatten(1, -2).sum(1) / probe.temperature
            a, b = torch.arange(0, rows.count - 1, 2), torch.arange(1, rows.count, 2)
            noise = rows.pairs((of_bias[a] - of_bias[b]).square().sum(1))
            ones = rows.z.new_ones(rows.count, rows.z[0].numel() // len(bias), 1) / probe.temperature
            return _bounds(rows, ones, dim, len(bias), noise, "the last bias", *_as_bias(name))
    return None


def _shifted_along(z: Tensor, moved: object, delta: Tensor) -> int | None:
    """The dimension in which `moved` is z + δ, if there is one."""
    for dim in range(1, z.dim()):
        shape = [-1 if at == dim else 1 for at in range(z.dim())]
        if z.shape[dim] == len(delta) and _on_a_line(z, delta.reshape(shape), moved):
            return dim
    return None


def _as_bias(name: str) -> tuple[Callable[[Tensor], Parts], Callable[[Parts], Tensor]]:
    """A step U (C, 1) as one of a bias, and back."""
    return lambda step: {name: step[:, 0]}, lambda given: given[name][:, None]


def _bounds(
    rows: _Rows,
    inputs: Tensor,
    dim: int,
    classes: int,
    noise: float,
    of: str,
    parts: Callable[[Tensor], Parts],
    step: Callable[[Parts], Tensor],
) -> LayerBounds:
    """Bounds from φ̃ (m, S, D) at the S positions of every row, with the classes of z along `dim`."""
    shape = rows.z.movedim(dim, -1).shape

    def tangent(u: Tensor) -> Tensor:
        """J U, like z, for U (C, D)."""
        return (inputs @ u.T).reshape(shape).movedim(-1, dim)

    def pulled(of_outputs: Tensor, of_rows: Tensor) -> Tensor:
        """Σ_i over some rows of J_iᵀ t_i / their number (C, D)."""
        flat = of_outputs.movedim(dim, -1).reshape(rows.count, -1, classes)
        return torch.einsum("nsc,nsd->cd", flat[of_rows], inputs[of_rows]) / len(of_rows)

    slope = pulled(rows.slopes.detach(), rows.leading)
    count = VECTORS if slope.numel() <= LARGEST else 1
    leaders = _leaders(slope, count, lambda u: pulled(rows.curved(tangent(u)), rows.leading))
    tangents = [tangent(u) for u in leaders]
    images = [rows.curved(t) for t in tangents]
    forms = torch.stack([torch.stack([rows.sums(t * image) for image in images], 1) for t in tangents], 1)
    even = torch.ones_like(slope[:, :1]) * inputs.mean((0, 1))
    even = even / even.norm().clamp(min=torch.finfo(even.dtype).tiny)
    flat = tangent(even)  # what a softmax does not see
    direction = slope / slope.norm() if float(slope.norm()) > 0 else even
    trace = None
    if classes <= FEW_CLASSES:
        axes = torch.eye(classes, dtype=slope.dtype, device=slope.device)
        each = [rows.curved(_spread(axis, rows.z, dim)).select(dim, c) for c, axis in enumerate(axes)]
        curvatures = torch.stack(each).sum(0).reshape(rows.count, -1)
        trace = rows.judged((curvatures * inputs.square().sum(2)).sum(1)).low
    return LayerBounds(
        top=rows.judged(forms[:, 0, 0]).low,
        bottom=rows.judged(rows.sums(flat * rows.curved(flat))).high,
        trace=trace,
        slope=max(rows.judged(rows.sums(rows.slopes * tangent(direction))).low, 0.0),
        noise=noise,
        rows=rows.count,
        of=of,
        volumes=_volumes(rows, forms.detach().double()),
        gradient=parts(slope),
        rise=lambda given: rows.rises(tangent(step(given))),
    )


def _spread(axis: Tensor, z: Tensor, dim: int) -> Tensor:
    """One axis of the classes at every position."""
    return axis.reshape([-1 if at == dim else 1 for at in range(z.dim())]).expand_as(z)


def _leaders(slope: Tensor, count: int, product: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Vectors (C, D) along which the block of the leading rows is large, the largest first: subspace iteration."""
    size = slope.numel()
    first = normal((min(count, size), size), generator(0, "last layer"), slope.dtype, slope.device)
    found = torch.cat([slope.reshape(1, -1), first[1:]]) if float(slope.norm()) > 0 else first
    for _ in range(ROUNDS):
        found = torch.stack([product(u.view_as(slope)).flatten() for u in found])
        found = torch.linalg.qr(found.T)[0].T.contiguous()
    images = torch.stack([product(u.view_as(slope)).flatten() for u in found])
    _, mix = torch.linalg.eigh((found @ images.T + images @ found.T).double().cpu() / 2)
    return [u.view_as(slope) for u in mix.flip(1).T.to(found) @ found]


def _volumes(rows: _Rows, forms: Tensor) -> tuple[float, ...]:
    """At least Σ_{j≤k} log λ_j for k = 1, 2, …: log det of the judged forms (m, k, k) less its error, as far as it is defined.

    To first order log det W moves with the rows' W_i as tr W⁻¹W_i does.
    """
    found: list[float] = []
    forms = forms.cpu()
    most = forms.shape[1]
    whole = torch.tensor(
        [[rows.judged(forms[:, i, j]).value for j in range(most)] for i in range(most)], dtype=forms.dtype
    )
    for k in range(1, most + 1):
        part, mean = forms[:, :k, :k], whole[:k, :k]
        values = torch.linalg.eigvalsh((mean + mean.T) / 2)
        if float(values[0]) <= 1e-6 * float(values[-1]):
            break
        shares = rows.judged(torch.einsum("ij,nji->n", torch.linalg.inv(mean), part))
        found.append(float(values.log().sum()) + min(shares.low - k, 0.0))
    return tuple(found)


# One direction of a parameter in which the outputs of these rows are affine, such as the scale of a last norm.


def _of_direction(probe: Probe, outputs: Outputs) -> LayerBounds | None:
    rows = _Rows(probe, outputs, FEW_ROWS)
    vectors = [name for name, p in reversed(list(probe.params.items())) if p.dim() == 1]
    for name in vectors[:CANDIDATES]:
        leaf = probe.params[name].clone().requires_grad_()
        z = probe.outputs({**probe.params, name: leaf}, rows.batch)
        if not (isinstance(z, Tensor) and z.requires_grad and z.shape == rows.z.shape):
            continue
        share = (rows.slopes.detach()[rows.leading] * z[rows.leading]).sum() / len(rows.leading)
        (slope,) = torch.autograd.grad(share, leaf, materialize_grads=True)
        if not float(slope.norm()) > 0:
            continue
        reach = max(1.0, float(leaf.detach().norm()))
        u = reach * slope / slope.norm()
        with torch.no_grad():
            ends = [probe.outputs({**probe.params, name: probe.params[name] + by * u}, rows.batch) for by in (1, -1)]
        by = (ends[0] - ends[1]) / 2  # type: ignore[operator]
        if _on_a_line(rows.z.detach(), by, ends[0]):
            return _of_tangent(rows, by / reach)
    return None


def _of_tangent(rows: _Rows, tangent: Tensor) -> LayerBounds:
    form = rows.judged(rows.sums(tangent * rows.curved(tangent)))
    slopes = rows.sums(rows.slopes * tangent)
    slope = rows.judged(slopes)
    a, b = torch.arange(0, rows.count - 1, 2), torch.arange(1, rows.count, 2)
    noise = rows.pairs((slopes[a] - slopes[b]).square())
    of = "one direction of the last norm"
    return LayerBounds(form.low, form.high, form.low, max(slope.low, 0.0), noise, rows.count, of)
