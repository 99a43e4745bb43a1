"""Traces of diagonal blocks of a curvature matrix, from products with fresh random signs for every chunk of rows.

With A = (1/K) Σ_b A_b over K chunks of rows and independent signs z_b, the mean of z_bᵀA_b z_b over the chunks has the mean tr A,
at the price of one product with A, and a noise that falls with the number of chunks. What lies outside a diagonal block meets
independent signs, so that the part of z_b ∘ A_b z_b in a block p has the mean tr (A_b)_pp: one product serves all blocks.

The noise of one such number is known from its own product, without a second one: its variance is 2 Σ_{i≠j} a_ij² over entries
inside the block and Σ a_ij² over those beside it, at most 2 E‖(A_b z_b)_p‖². Of blocks that is up to twice too much; where chunks
have several products each, their spread is the closer estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from landscope.core.parameters import STRIP
from landscope.core.seeding import generator, hashed_signs
from landscope.curvature.operator import CurvatureOperator
from landscope.probe.probe import Probe
from landscope.probe.rows.means import RowMean, row_mean
from landscope.probe.rows.order import RowOrder
from landscope.probe.rows.outputs import uniform_order

Parts = tuple[tuple[str, ...], ...]
"""Names of parameters, block by block."""

ENOUGH = 8
"""Products beyond the first of each chunk from which on their spread is taken for their noise."""


class ChunkTraces:
    """The traces of some blocks, better with every round of products over the chunks.

    `stream` names the random numbers. With a `basis` (k, P) of orthonormal rows the trace along them is taken exactly, by a
    product of them with every chunk, and signs are made orthogonal to them: unbiased for any basis that does not depend on the
    signs. There is one block then.

    >>> from landscope.curvature.matrices import Hessian
    >>> probe = Probe(torch.nn.Linear(2, 1), (torch.eye(2).repeat(32, 1), torch.zeros(64, 1)), "mse")
    >>> traces = ChunkTraces(probe, Hessian, (("weight",), ("bias",)), 0, "doctest", 16)
    >>> for _ in traces.round(): pass
    >>> [abs(found.value - 2) <= 4 * found.stderr for found in traces.means()]                       # (wᵀx + b)²
    [True, True]
    """

    def __init__(
        self,
        probe: Probe,
        kind: type[CurvatureOperator],
        blocks: Parts,
        seed: int,
        stream: str,
        chunks: int,
        basis: Tensor | None = None,
    ) -> None:
        self._probe, self._blocks, self._seed, self._stream, self._basis = probe, blocks, seed, stream, basis
        rows = _chunks(probe, seed, chunks)
        first = kind(rows[0], compile=False)
        self._operators = [first, *(first.on(part) for part in rows[1:])]
        self._counts = None
        if probe.loss.share is not None and len(rows) > 1:
            self._counts = np.array([_counts(part) for part in rows]) * len(rows) / probe.n_samples
        self._rounds: list[np.ndarray] = []
        """z_pᵀ(A z)_p and 2 ‖(A z)_p‖² of every chunk (K, 2, blocks); of the latest round those that are known."""
        self._inside = np.array([[0.0 if basis is None else _along(one, basis)] for one in self._operators])

    at_once = 1
    """Products of a round with every chunk."""
    passes = 3.0
    """What they cost, in gradients."""

    @property
    def chunks(self) -> int:
        """K; 1 where rows cannot be taken."""
        return len(self._operators)

    @property
    def ends_a_look(self) -> bool:
        """Whether the chunks of the first round so far are a look: a third of them, or two thirds."""
        return len(self._rounds[0]) in (self.chunks // 3, 2 * self.chunks // 3)

    @property
    def probes(self) -> int:
        """Products with every chunk."""
        return len(self._complete)

    @property
    def _complete(self) -> list[np.ndarray]:
        return [found for found in self._rounds if len(found) == self.chunks]

    def round(self) -> Iterator[None]:
        """One product with every chunk, one after the other."""
        turn, blocks = len(self._rounds), len(self._blocks)
        self._rounds.append(np.zeros((0, 2, blocks)))
        for number, operator in enumerate(self._operators):
            z = self._beside(self._signs(turn // 2, number, turn % 2))
            product = self._beside(operator @ z)
            forms = self._forms(z, product)
            del z, product  # as long as the parameters
            self._rounds[-1] = np.concatenate((self._rounds[-1], forms[None]))
            yield

    def _signs(self, *where: int) -> Tensor:
        probe = self._probe
        return hashed_signs(probe.n_params, self._seed, self._stream, *where, dtype=probe.stored, device=probe.device)

    def _beside(self, v: Tensor) -> Tensor:
        return v if self._basis is None else v - (self._basis @ v) @ self._basis

    def _forms(self, z: Tensor, product: Tensor) -> np.ndarray:
        sums, kind = {}, self._probe.dtype
        for name, at in self._probe.space.slices().items():
            strips = zip(z[at].split(STRIP), product[at].split(STRIP), strict=True)
            wide = ((a.to(kind), b.to(kind)) for a, b in strips)
            forms = [torch.stack([(a * b).double().sum(), 2 * b.double().square().sum()]) for a, b in wide]
            sums[name] = torch.stack(forms).sum(0)
        return (
            torch.stack([torch.stack([sums[name] for name in names]).sum(0) for names in self._blocks], 1).cpu().numpy()
        )

    def means(self) -> list[RowMean]:
        """The trace of every block, from the rounds that are complete, or from the chunks of the first one so far."""
        drawn = np.stack(self._complete or self._rounds, 1)
        count, probes = drawn.shape[:2]
        order, counts = (
            RowOrder(torch.arange(self.chunks), None),
            None if self._counts is None else self._counts[:count],
        )
        by_spread = len(self._blocks) > 1 and self.chunks * (probes - 1) >= ENOUGH
        units, inside = np.arange(float(count)) if by_spread else None, self._inside[:count]
        return [
            row_mean(forms + inside, order, units, counts, None if by_spread else noise)
            for forms, noise in np.moveaxis(drawn, (3, 2), (0, 1))
        ]

    @property
    def mean(self) -> RowMean:
        """The trace of the first block, or of the only one."""
        return self.means()[0]

    @property
    def norm(self) -> float:
        """√(Σ_b ‖A_b‖²_F / K²), at least: what stands for ‖A‖_F where eigenvalues cancel in the trace."""
        noise = np.stack(self._complete or self._rounds, 1)[:, :, 1].sum(2).mean(1)
        return math.sqrt(float(noise.sum()) / 2) / len(noise)


def _chunks(probe: Probe, seed: int, count: int) -> list[Probe]:
    """The probe on parts of its rows, whose mean it is; as a whole where rows cannot be taken.

    Their order is random: some hold one row more than others, and the first ones must not be those.
    """
    order = uniform_order(probe)
    if order is None:
        return [probe]
    chunks = torch.tensor_split(order.rows, min(count, probe.n_samples))
    shuffled = torch.randperm(len(chunks), generator=generator(seed, "parts")).tolist()
    return [probe.on_rows(chunks[at], torch.full((len(chunks[at]),), float(len(chunks)))) for at in shuffled]


def _along(operator: CurvatureOperator, basis: Tensor) -> float:
    """Σ qᵀA q over the rows q of a basis."""
    return float((basis * (operator @ basis.T).T).sum(dtype=torch.float64))


def _counts(part: Probe) -> float:
    """What the rows of a chunk count for in the loss."""
    return sum(float(part.shares(batch.prepared(part.ready)).sum()) for batch in part.batches())
