"""The traces of all diagonal blocks of a matrix at once: of every layer, or of every block of a transformer.

With random signs z, z_bᵀ(A z)_b has the mean tr A_bb for every part b of the parameters, since whatever lies outside of the block
meets independent signs: one product serves all parts. The rows are cut into chunks of a seeded order, and each chunk is
multiplied by two z of its own, so that the noise falls with the number of chunks and the spread of the two gives the error bar;
a round over all rows costs two products (six gradients), however many parts there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from landscope.core.estimate import Estimate, Status, student_factor
from landscope.core.json import Plain
from landscope.core.seeding import generator, hashed_signs
from landscope.measures.base import Measure
from landscope.measures.sharpness.matrices import MATRICES, canonical
from landscope.probe.probe import Probe
from landscope.probe.rows.means import FEWEST_BATCHES, row_mean
from landscope.probe.rows.order import RowOrder
from landscope.probe.rows.outputs import uniform_order
from landscope.probe.shared import shared_stream

CHUNKS = 16
MOST_ROUNDS = 8
Parts = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class PartTrace(Measure):
    """tr A_bb of one part of the parameters, from products that all parts share."""

    matrix: str
    parts: Parts
    part: int
    tol: float = 0.05

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """From the chunks of rows multiplied so far, then from further rounds."""
        for found in part_traces(probe, self.matrix, self.parts, self.tol, self.seed):
            yield None if found is None else found[self.part]

    @property
    def settings(self) -> dict[str, Plain]:
        """Without the names of all parameters."""
        return {"matrix": self.matrix, "tol": self.tol, "seed": self.seed}


@shared_stream
def part_traces(probe: Probe, name: str, parts: Parts, tol: float, seed: int) -> Iterator[tuple[Estimate, ...] | None]:
    """The trace of every part, better and better, until each has a standard error below `tol` times its value.

    >>> net = torch.nn.Linear(2, 1, bias=True)
    >>> probe = Probe(net, (torch.eye(2).repeat(32, 1), torch.zeros(64, 1)), "mse")
    >>> *_, (weight, bias) = part_traces(probe, "hessian", (("weight",), ("bias",)), 0.05, 0)
    >>> all(abs(trace.value - 2) <= 4 * trace.stderr <= 0.4 for trace in (weight, bias))             # (wᵀx + b)²
    True
    """
    chunks = _chunks(probe, seed)
    columns = np.zeros((len(chunks), 0, len(parts)))
    for turn in range(MOST_ROUNDS):
        drawn = np.zeros((0, 2, len(parts)))
        for number, at in enumerate(chunks):
            operator = MATRICES[canonical(probe, name)](at, compile=False)
            signs = [_signs(probe, seed, turn, number, which) for which in range(2)]
            pair = [_quadratics(probe, operator @ z, z, parts) for z in signs]
            drawn = np.concatenate((drawn, np.stack(pair)[None]))
            early = turn == 0 and FEWEST_BATCHES <= len(drawn) < len(chunks)
            yield _found(drawn, len(chunks)) if early else None
        columns = np.concatenate((columns, drawn), 1)
        found = _found(columns, len(chunks))
        done = [one.stderr is not None and one.stderr <= tol * abs(one.value) for one in found]
        if all(done) or turn == MOST_ROUNDS - 1:
            yield tuple(map(partial(_ended, tol), found, done))
            return
        yield found


def _chunks(probe: Probe, seed: int) -> list[Probe]:
    """The probe on parts of its rows, whose mean it is; as a whole where rows cannot be taken.

    Their order is random: some hold one row more than others, and the first ones must not be those.
    """
    order = uniform_order(probe)
    if order is None:
        return [probe]
    chunks = torch.tensor_split(order.rows, min(CHUNKS, probe.n_samples))
    count = len(chunks)
    shuffled = torch.randperm(count, generator=generator(seed, "parts")).tolist()
    return [probe.on_rows(chunks[at], torch.full((len(chunks[at]),), float(count))) for at in shuffled]


def _ended(tol: float, found: Estimate, well: bool) -> Estimate:
    if well:
        return replace(found, status=Status.CONVERGED)
    reason = f"the error bar has not come down to tol={tol:g}"
    return replace(found, status=Status.BUDGET_SPENT, reason=reason)


def _signs(probe: Probe, seed: int, *stream: int) -> Tensor:
    return hashed_signs(probe.n_params, seed, "parts", *stream, dtype=probe.dtype, device=probe.device)


def _quadratics(probe: Probe, product: Tensor, signs: Tensor, parts: Parts) -> np.ndarray:
    """z_bᵀ(A z)_b for every part (B,)."""
    each = {name: float(value.double().sum()) for name, value in probe.space.unflatten(product * signs).items()}
    return np.array([sum(each[name] for name in names) for names in parts])


def _found(columns: np.ndarray, chunks: int) -> tuple[Estimate, ...]:
    """The trace of every part from numbers of the first of all chunks (m, replicates, parts)."""
    details: dict[str, Plain] = {"probes": columns.shape[1]}
    return tuple(replace(_mean(column, chunks), details=details) for column in np.moveaxis(columns, 2, 0))


def _mean(column: np.ndarray, chunks: int) -> Estimate:
    """The mean over all chunks from those drawn (m, replicates), with Student's factor where there is one chunk alone."""
    if chunks == 1:
        count = column.size
        error = student_factor(count - 1) * float(column.std(ddof=1)) / math.sqrt(count)
        return Estimate(float(column.mean()), error, status=Status.RUNNING)
    mean = row_mean(column, RowOrder(torch.arange(chunks), None), np.arange(float(len(column))))
    bracket = None if mean.complete else (mean.low, mean.high)
    return Estimate(mean.value, mean.stderr, status=Status.RUNNING, bracket=bracket)
