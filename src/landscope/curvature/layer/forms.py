"""Σ_st ⟨u_is, u_it⟩ ⟨F Fᵀ, H_i^{st}⟩ for every sample i, exactly or by random directions: the core of relative flatness.

u_is are what the layer's weight multiplies at position s of sample i, H_i^{st} = ∂²ℓ_i/∂a_is ∂a_it, and F Fᵀ = W Wᵀ for the
neuronwise measure, ‖W‖² I for the layerwise one. Both factors are sums of squares, so the double sum is one of directions:

    exact     Σ_{k,l} (f_k ⊗ c_il)ᵀ H_i (f_k ⊗ c_il),   f_k the columns of F, Σ_l c_il c_ilᵀ = the Gram matrix of the u_is;
              at most min(d, m) · min(positions, m) directions;
    random    E (F r ⊗ u_i s)ᵀ H_i (F r ⊗ u_i s),   r, s independent ±1, drawn for each sample by itself: unbiased, and
              the noise of the mean falls with samples × probes.

A direction costs two gradients of the network behind the layer; the front is evaluated once per pass over the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.errors import BudgetSpentError
from landscope.core.seeding import content_signs
from landscope.curvature.layer.behind import Behind, behind_layer, share_behind
from landscope.curvature.layer.geometry import ConvGeometry, LinearGeometry
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.probe.samples import SampleKeys
from landscope.probe.shared import sums
from landscope.probe.totals import FORWARD

__all__ = ["Geometry", "RandomForms", "directions", "exact_forms", "passes_of", "random_forms", "square_factor"]

Geometry = LinearGeometry | ConvGeometry

CHUNK = 16
"""Directions that are differentiated at once."""
FIRST_PROBES = 8
"""Probes of each sample in the first round, from which the number that is needed is predicted."""


def square_factor(matrix: Tensor) -> Tensor:
    """F (d, r) with F Fᵀ = W Wᵀ and r = min(d, m) columns."""
    d, m = matrix.shape
    return matrix if m <= d else torch.linalg.qr(matrix.T, mode="r").R.T


def directions(geometry: Geometry, factor: Tensor, positions: int) -> int:
    """How many directions the exact sum takes."""
    entries = geometry.layer.weight[0].numel()
    return factor.shape[1] * (min(positions, entries) if geometry.groups == 1 else entries)


def passes_of(probe: Probe, layer: str, count: int) -> float:
    """Cost of `count` directions, in gradients of the whole network."""
    return FORWARD + share_behind(probe, layer) * (1 + 2 * count)


def exact_forms(
    probe: Probe, layer: str, geometry: Geometry, factor: Tensor, positions: int
) -> tuple[Tensor, Tensor] | None:
    """Σ_i κ_i and Σ_i κ_i² over all samples; `None` where some batch does not go through the layer sample by sample."""
    columns = factor.to(probe.dtype).T
    count = directions(geometry, factor, positions)

    def piece(batch: Batch) -> tuple[Tensor, ...]:
        at = behind_layer(probe, geometry.layer, batch)
        kappa = torch.zeros(batch.size, dtype=torch.float64, device=probe.device)
        if at is None:
            return (*sums(kappa), kappa.new_ones(()))
        for tangents in _all_directions(at, geometry, columns):
            kappa += at.forms(tangents).sum(0)
        return (*sums(kappa), kappa.new_zeros(()))

    load, passes = _load(probe, layer, count), passes_of(probe, layer, count)
    total, squares, misfits = probe.total(piece, load=load, passes=passes)
    return None if misfits > 0 else (total, squares)


def _all_directions(at: Behind, geometry: Geometry, columns: Tensor) -> Iterator[Tensor]:
    """The tangents f_k ⊗ c_l of a piece of data, in chunks (at most `CHUNK`, n, *a.shape)."""
    patches = geometry.patches(at.inputs)
    if geometry.groups == 1 and patches.shape[3] < patches.shape[2]:
        patches = torch.linalg.qr(patches, mode="r").R
    n = patches.shape[0]
    pairs = torch.cartesian_prod(torch.arange(len(columns)), torch.arange(patches.shape[2])).to(patches.device)
    for k, place in (chunk.T for chunk in pairs.reshape(-1, 2).split(CHUNK)):
        neurons = columns[k][:, None].expand(-1, n, -1)
        yield geometry.outward(neurons, patches[:, :, place].movedim(2, 0), tuple(at.outputs.shape))


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

    def __add__(self, other: RandomForms) -> RandomForms:
        probes = self.probes + other.probes
        a, b = self.probes / probes, other.probes / probes
        value, between = a * self.value + b * other.value, a * self.between + b * other.between
        return RandomForms(value, math.hypot(a * self.stderr, b * other.stderr), between, probes)


def random_forms(
    probe: Probe, layer: str, geometry: Geometry, factor: Tensor, tol: float, max_probes: int, seed: int
) -> RandomForms | None:
    """Probes until the standard error is below `tol`·|value|, at most `max_probes` (at least 2) for each sample.

    `None` where some batch does not go through the layer sample by sample.
    """
    limit = max(2, max_probes)
    result = _round(probe, layer, geometry, factor, 0, min(FIRST_PROBES, limit), seed)
    if result is None:
        return None
    while result.stderr > tol * abs(result.value) and result.probes + 1 < limit:
        needed = 1.1 * result.probes * (result.stderr / max(tol * abs(result.value), 1e-300)) ** 2 - result.probes
        more = int(min(max(2, math.ceil(min(needed, limit))), limit - result.probes))
        try:
            further = _round(probe, layer, geometry, factor, result.probes, more, seed)
        except BudgetSpentError:  # what was found so far stands
            break
        assert further is not None, "the same batches as before"
        result += further
    return result


def _round(
    probe: Probe, layer: str, geometry: Geometry, factor: Tensor, first: int, count: int, seed: int
) -> RandomForms | None:
    """Probes `first` … `first + count − 1` of every sample, in one pass over the data."""
    columns = factor.to(probe.dtype).T
    numbered = SampleKeys(probe)

    def piece(batch: Batch) -> tuple[Tensor, ...]:
        at = behind_layer(probe, geometry.layer, batch)
        if at is None:
            return tuple(torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64, device=probe.device))
        keys = numbered.of(batch)
        values = [
            at.forms(torch.stack([_random_direction(at, geometry, columns, keys, seed, k) for k in range(a, b)]))
            for a, b in _ranges(first, first + count)
        ]
        found = torch.cat(values)
        numbered.count(batch)
        return (*sums(found.mean(0)), found.var(0).sum() / count, found.new_zeros(()))

    load = _load(probe, layer, count)
    total, squares, within, misfits = probe.total(piece, load=load, passes=passes_of(probe, layer, count))
    if misfits > 0:
        return None
    n = probe.n_samples
    mean, noise = float(total) / n, float(within)
    between = (float(squares) / n - mean**2) / (n - 1) - noise / n**2 if n > 1 else 0.0
    return RandomForms(mean, math.sqrt(noise) / n, between, count)


def _ranges(start: int, stop: int) -> Iterator[tuple[int, int]]:
    return ((a, min(a + CHUNK, stop)) for a in range(start, stop, CHUNK))


def _random_direction(at: Behind, geometry: Geometry, columns: Tensor, keys: Tensor, seed: int, number: int) -> Tensor:
    """F r_i ⊗ u_i s_i for every sample; with one position, ‖u_i‖ takes the place of u_i s_i and adds no noise."""
    r = content_signs(keys, seed, 2 * number, len(columns), columns.dtype)
    if isinstance(geometry, LinearGeometry) and at.outputs.dim() == 2:
        places = torch.linalg.vector_norm(geometry.patches(at.inputs), dim=2)
    else:
        s = content_signs(keys, seed, 2 * number + 1, geometry.layer.weight[0].numel(), columns.dtype)
        places = geometry.filtered(at.inputs, s)
    return geometry.outward(r @ columns, places, tuple(at.outputs.shape))


def _load(probe: Probe, layer: str, count: int) -> float:
    """Memory in gradients of the whole network: the graph behind the layer, twice, and a chunk of tangents through it."""
    return round(0.25 + share_behind(probe, layer) * (4 + 2 * min(count, CHUNK)), 2)
