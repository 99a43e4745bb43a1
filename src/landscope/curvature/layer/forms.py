"""Σ_st ⟨u_is, u_it⟩ ⟨F Fᵀ, H_i^{st}⟩, exactly or by random directions: relative flatness, as a measure and as a penalty.

u_is are what the layer's weight multiplies at position s of sample i, H_i^{st} = ∂²ℓ_i/∂a_is ∂a_it, and F Fᵀ = W Wᵀ for the
neuronwise measure, ‖W‖² I for the layerwise one. Both factors are sums of squares, so the double sum is one of directions:

    exact     Σ_{k,l} (f_k ⊗ c_il)ᵀ H_i (f_k ⊗ c_il),   f_k the columns of F, Σ_l c_il c_ilᵀ = the Gram matrix of the u_is;
              at most min(d, m) · min(positions, m) directions;
    random    E (F r ⊗ u_i s)ᵀ H_i (F r ⊗ u_i s),   r, s independent ±1, drawn for each sample by itself: unbiased, and
              the noise of the mean falls with samples × probes.

A direction costs two gradients of the network behind the layer; the front is evaluated once per pass over the data.

The measure (`exact_forms`, `random_forms`) takes the sum for every sample of a probe, in float64. The penalty (`exact_flatness`,
`sampled_flatness`) takes it over one batch of the user's own training, differentiable in every parameter (Petzka et al. 2021,
Adilova et al. 2023): L is whatever loss is given, its weights and its mean are its own, and samples may act on each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.seeding import content_signs
from landscope.curvature.layer.behind import CHUNK, Behind, Call, behind_layer
from landscope.curvature.layer.geometry import Geometry, LinearGeometry, entries
from landscope.curvature.layer.sites import layer_sites
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.probe.rows.samples import SampleKeys
from landscope.probe.shared import sums
from landscope.probe.totals import FORWARD

COLUMNS = 16
"""q, of the signs A and B."""
FIRST_PROBES = 8
"""Probes of each sample in the first round, from which the number that is needed is predicted."""


def square_factor(matrix: Tensor) -> Tensor:
    """F (d, r) with F Fᵀ = W Wᵀ and r = min(d, m) columns."""
    d, m = matrix.shape
    return matrix if m <= d else torch.linalg.qr(matrix.T, mode="r").R.T


def factor_of(weight: Tensor, layerwise: bool) -> Tensor:
    """F (d, r): the weight as a matrix, or its norm times the identity.

    >>> factor_of(torch.ones(2, 3, 1, 3), layerwise=False).shape, float(factor_of(torch.ones(2, 2), layerwise=True)[0, 0])
    (torch.Size([2, 9]), 2.0)
    """
    matrix = weight.flatten(1).to(torch.promote_types(weight.dtype, torch.float32))
    if not layerwise:
        return matrix
    return torch.linalg.matrix_norm(matrix) * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def has_separate_samples(geometry: Geometry, positions: int, mixed: bool) -> bool:
    """Whether Gram matrices of the positions of single samples are enough, and smaller than those of the weight's entries."""
    return not mixed and geometry.groups == 1 and positions <= entries(geometry.layer)


def directions(geometry: Geometry, factor: Tensor, positions: int, mixed: bool = False) -> int:
    """How many directions the exact sum takes; `mixed` says that samples act on each other behind the layer."""
    separate = has_separate_samples(geometry, positions, mixed)
    return min(factor.shape) * (positions if separate else entries(geometry.layer))


# The measure: every sample of a probe by itself.


@dataclass(frozen=True)
class FormWork:
    """κ_i of the rows of a piece by some directions, with what that takes; a piece that does not fit the form gives NaN."""

    rows: Callable[[Batch], Tensor]
    load: float
    passes: float


def _work(probe: Probe, layer: str, count: int, rows: Callable[[Batch], Tensor]) -> FormWork:
    """Counted as if all layers were alike: two gradients of the part behind the layer for a direction.

    Memory holds the graph behind the layer, twice, and a chunk of tangents through it.
    """
    names = list(layer_sites(probe))
    share = (len(names) - names.index(layer)) / len(names)
    load = round(0.25 + share * (4 + 2 * min(count, CHUNK)), 2)
    return FormWork(rows, load, FORWARD + share * (1 + 2 * count))


def exact_forms(probe: Probe, layer: str, geometry: Geometry, factor: Tensor, positions: int) -> FormWork:
    """κ_i of every sample (n,), by all directions."""
    columns = factor.to(probe.dtype).T

    def rows(batch: Batch) -> Tensor:
        found = behind_layer(probe, geometry.layer, batch)
        kappa = torch.zeros(batch.size, dtype=torch.float64, device=probe.device)
        if found is None:
            return kappa.fill_(math.nan)
        call, at = found
        for tangents in _all_directions(call, geometry, columns):
            kappa += at.forms(tangents).sum(0)
        return kappa

    return _work(probe, layer, directions(geometry, factor, positions), rows)


def _all_directions(call: Call, geometry: Geometry, columns: Tensor) -> Iterator[Tensor]:
    """The tangents f_k ⊗ c_l of a piece of data, in chunks (at most `CHUNK`, n, *a.shape)."""
    patches = geometry.patches(call.inputs)
    if geometry.groups == 1 and patches.shape[3] < patches.shape[2]:
        patches = torch.linalg.qr(patches, mode="r").R
    n = patches.shape[0]
    pairs = torch.cartesian_prod(torch.arange(len(columns)), torch.arange(patches.shape[2])).to(patches.device)
    for k, place in (chunk.T for chunk in pairs.reshape(-1, 2).split(CHUNK)):
        neurons = columns[k][:, None].expand(-1, n, -1)
        yield geometry.outward(neurons, patches[:, :, place].movedim(2, 0), tuple(call.outputs.shape))


@dataclass(frozen=True)
class RandomForms:
    """A mean over samples by random directions, with the error that these leave and that of the data."""

    value: float
    stderr: float
    between: float
    """Squared standard error of the data: the spread between samples, less what the directions add to it."""
    probes: int

    @property
    def data_stderr(self) -> float | None:
        """`None` where the noise of the directions hides the spread between samples."""
        return math.sqrt(self.between) if self.between > 0 else None

    @classmethod
    def of_sums(cls, total: float, squares: float, within: float, n: int, probes: int) -> RandomForms:
        """From Σ κ_i, Σ κ_i² and Σ of the variances of κ_i over n samples, each by this many probes."""
        mean = total / n
        between = (squares / n - mean**2) / (n - 1) - within / n**2 if n > 1 else 0.0
        return cls(mean, math.sqrt(within) / n, between, probes)

    def __add__(self, other: RandomForms) -> RandomForms:
        probes = self.probes + other.probes
        a, b = self.probes / probes, other.probes / probes
        value, between = a * self.value + b * other.value, a * self.between + b * other.between
        return RandomForms(value, math.hypot(a * self.stderr, b * other.stderr), between, probes)


def random_forms(
    probe: Probe, layer: str, geometry: Geometry, factor: Tensor, first: int, count: int, seed: int
) -> FormWork:
    """Estimates of κ_i by the probes `first` … `first + count − 1` of every sample, (n, count)."""
    columns = factor.to(probe.dtype).T
    numbered = SampleKeys(probe)

    def rows(batch: Batch) -> Tensor:
        found = behind_layer(probe, geometry.layer, batch)
        if found is None:
            return torch.full((batch.size, count), math.nan, dtype=torch.float64)
        call, at = found
        keys = numbered.of(batch)
        chunks = [
            at.forms(torch.stack([_random_direction(call, geometry, columns, keys, seed, k) for k in range(a, b)]))
            for a, b in _ranges(first, first + count)
        ]
        numbered.count(batch)
        return torch.cat(chunks).T

    return _work(probe, layer, count, rows)


def further_forms(
    probe: Probe, layer: str, geometry: Geometry, factor: Tensor, tol: float, limit: int, seed: int, first: RandomForms
) -> Iterator[RandomForms]:
    """Further probes until the standard error is below `tol`·|value|, at most `limit` for each sample; after every round."""
    result = first
    while result.stderr > tol * abs(result.value) and result.probes + 1 < limit:
        needed = 1.1 * result.probes * (result.stderr / max(tol * abs(result.value), 1e-300)) ** 2 - result.probes
        more = int(min(max(2, math.ceil(min(needed, limit))), limit - result.probes))
        work = random_forms(probe, layer, geometry, factor, result.probes, more, seed)

        def piece(batch: Batch, work: FormWork = work) -> tuple[Tensor, ...]:
            values = work.rows(batch)
            return (*sums(values.mean(1)), values.var(1).sum() / values.shape[1])

        total, squares, within = probe.total(piece, load=work.load, passes=work.passes)
        result += RandomForms.of_sums(float(total), float(squares), float(within), probe.n_samples, more)
        yield result


def _ranges(start: int, stop: int) -> Iterator[tuple[int, int]]:
    return ((a, min(a + CHUNK, stop)) for a in range(start, stop, CHUNK))


def _random_direction(call: Call, geometry: Geometry, columns: Tensor, keys: Tensor, seed: int, number: int) -> Tensor:
    """F r_i ⊗ u_i s_i for every sample; with one position, ‖u_i‖ takes the place of u_i s_i and adds no noise."""
    r = content_signs(keys, seed, 2 * number, len(columns), columns.dtype)
    if isinstance(geometry, LinearGeometry) and call.outputs.dim() == 2:
        places = torch.linalg.vector_norm(geometry.patches(call.inputs), dim=2)
    else:
        s = content_signs(keys, seed, 2 * number + 1, entries(geometry.layer), columns.dtype)
        places = geometry.filtered(call.inputs, s)
    return geometry.outward(r @ columns, places, tuple(call.outputs.shape))


# The penalty: one batch, differentiable.
#
#     exact     min(d, m) · m directions, always right; where samples do not mix behind the layer the Gram matrices G_i of the
#               positions of each sample are enough: min(d, m) · positions directions, κ = Σ_i ‖φ_i‖² ⟨W Wᵀ, ∂²L/∂a_i²⟩ with one;
#     sampled   E ⟨δ, ∂²L/∂a² δ⟩, unbiased for each draw of signs: δ_i = ‖φ_i‖ F r_i with signs of its own for each sample, where
#               samples do not mix and have one position; else δ = the layer with the weight F A Bᵀ/√q, A and B of q columns.
#               (A whole matrix of signs takes m² of them; 16 columns leave the spread of the estimate about the same.)


def exact_flatness(at: Behind, call: Call, factor: Tensor, mixed: bool) -> Tensor:
    """κ, from every direction; `mixed` says that samples act on each other behind the layer."""
    d, r = factor.shape
    neurons = factor.T if r < d else torch.eye(d, dtype=factor.dtype, device=factor.device)
    weighted = neurons if r < d else factor @ factor.T
    patches = call.geometry.patches(call.inputs.to(at.dtype))
    if has_separate_samples(call.geometry, call.positions, mixed):
        units = torch.eye(call.positions, dtype=patches.dtype, device=patches.device)
        here = units[:, None, None].expand(-1, call.samples, 1, -1)
        there = (patches.mT @ patches).movedim(2, 0)
    else:
        here = there = patches.movedim(2, 0)
    tangents, against = (
        call.geometry.outward(side[:, None, None], places, tuple(at.outputs.shape)).flatten(0, 1)
        for side, places in ((neurons, here), (weighted, there))
    )
    return _form(at, tangents, against, twice=r < d)


def sign_shapes(call: Call, factor: Tensor, mixed: bool) -> list[tuple[int, ...]]:
    """Shapes of the signs of one draw: r_i for all samples (n, r), or A (r, q) and B (m, q)."""
    if call.positions == 1 and has_separate_samples(call.geometry, call.positions, mixed):
        return [(call.samples, factor.shape[1])]
    return [(factor.shape[1], COLUMNS), (entries(call.layer), COLUMNS)]


def sampled_flatness(at: Behind, call: Call, factor: Tensor, signs: Sequence[Tensor]) -> Tensor:
    """The mean over k draws of an unbiased estimate of κ; signs as `sign_shapes` has them, each (k, *shape)."""
    inputs = call.inputs.to(at.dtype)
    if len(signs) == 1:
        tangents = (signs[0] @ factor.T).reshape(-1, *at.outputs.shape)
        squares = inputs.square().flatten(1).sum(1)
        return _form(at, tangents, tangents * squares.view(-1, *[1] * (tangents.dim() - 2))) / len(signs[0])
    left, right = signs
    weights = factor @ (left @ right.mT) / left.shape[2] ** 0.5
    tangents = torch.stack([call.geometry.apply(weight, inputs) for weight in weights])
    return _form(at, tangents, tangents) / len(left)


def _form(at: Behind, tangents: Tensor, against: Tensor, twice: bool = True) -> Tensor:
    """Σ ⟨against, H tangents⟩; `twice` says that both sides carry the weight.

    Where H is held constant the product carries no gradient: that of the left side then stands for the right side's too.
    """
    form = (against * at.products(tangents)).sum()
    return form if at.differentiable or not twice else 2 * form - form.detach()
