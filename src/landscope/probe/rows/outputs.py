"""One forward pass over all rows, as far as it has come, and the order of rows that it gives.

Everything that looks at outputs alone reads them here, so that they are computed once. Rows come in a seeded order: what the
first of them say about all is then a fair sample. When all are in, they are put back into the order of the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from landscope.core.distributed import processes
from landscope.core.errors import LandscopeError
from landscope.core.memory import is_out_of_memory
from landscope.probe.batches import Batch
from landscope.probe.loss.answers import LabelScores, label_scores
from landscope.probe.probe import Probe
from landscope.probe.rows.order import RowOrder, row_sizes, seeded_order
from landscope.probe.rows.samples import row_keys
from landscope.probe.shared import FORWARD_LOAD, once_per_probe
from landscope.probe.totals import FORWARD

KEPT = 2**30
"""Bytes of outputs that are kept, and of what the last layer is given; where there would be more, losses and sizes alone are."""
MOST_CLASSES = 4096
"""Outputs of a linear layer up to which it is looked at whether it is the last one."""
PATIENCE = 0.25
"""Part of the time left that a pass for the rows' sizes may take; where it would take more, rows count as alike."""


@dataclass(frozen=True)
class _Part:
    """What a piece of the data gave."""

    outputs: Tensor | None
    features: Tensor | None
    targets: Tensor | None
    losses: Tensor | None
    sizes: Tensor | None
    scores: LabelScores | None
    counts: Tensor
    rows: int


class Outputs:
    """The forward pass of a probe: `advance` reads further rows; outputs, targets and losses are those read so far.

    >>> probe = Probe(torch.nn.Linear(2, 3), (torch.randn(10, 2), torch.arange(10) % 3))
    >>> outputs = Outputs(probe)
    >>> while outputs.advance(): pass
    >>> tuple(outputs.outputs.shape), outputs.rows, outputs.complete
    ((10, 3), 10, True)
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self.order = uniform_order(probe)
        self.rows = 0
        self.complete = False
        self._parts: list[_Part] = []
        self._part: _Part | None = None
        self._left: Batch | None = None
        self._batches = self._in_order() if self.order is not None else probe.batches()
        self._kept = True
        self.example: object = None
        """What the model returned for the first rows."""
        self.head: str | None = None
        """The linear layer whose outputs are those of the model, one row for each sample."""
        self._joined: dict[str, Tensor | None] = {}

    def _in_order(self) -> Iterator[Batch]:
        assert self.order is not None
        for start, end in self.order.looks():
            yield self._probe.rows(self.order.rows[start:end])

    def advance(self) -> bool:
        """Read further rows, no more than others have the patience for; `False` where there are none left."""
        if self.complete:
            return False
        if self._probe.sharding is not None:
            return self._all_at_once()
        batch, ledger = self._left or next(self._batches, None), self._probe.ledger
        self._joined.clear()
        if batch is None:
            self.complete = True
            return False
        self._left, done, started = batch, 0, ledger.mark
        parts = self._probe.each(self._piece, load=FORWARD_LOAD, passes=FORWARD, grad=False, batches=[batch])
        for piece, _ in parts:  # where the budget ends in between, the rest of the batch is read next time
            self._take(piece)
            done += piece.size
            self._left = batch.split(done)[1] if done < batch.size else None
            if ledger.waited(started):
                break
        return True

    def _all_at_once(self) -> bool:
        """Where a pass takes all processes, they read all that they have in one; an end of the budget ends it for all."""
        if self._parts:
            self.complete = True
            return False
        try:
            for piece, _ in self._probe.each(self._piece, load=FORWARD_LOAD, passes=FORWARD, grad=False):
                self._take(piece)
        except BaseException:
            self._parts, self.rows = [], 0
            raise
        return True

    def _take(self, piece: Batch) -> None:
        assert self._part is not None, "a piece was looked at"
        self._parts.append(self._part)
        self.rows += piece.size

    def _piece(self, batch: Batch) -> tuple[Tensor, ...]:
        probe = self._probe
        z, features = self._seen(batch)
        second, targets = probe.second(batch), probe.targets(batch)
        losses = probe.loss.function(z, second).detach() if probe.loss.reduction == "per_sample" else None
        sizes = row_sizes(probe.loss, z, targets, batch, self._slopes(z, batch))
        self.example = z if self.example is None else self.example
        if (
            not (isinstance(z, Tensor) and z.dim() > 0 and z.shape[0] == batch.size)
            or z.numel() // batch.size * probe.n_samples * z.element_size() > KEPT
        ):
            self._kept = False
        self._part = _Part(
            z.detach().cpu() if self._kept and isinstance(z, Tensor) else None,
            None if features is None else features.detach().cpu(),
            targets.cpu() if self._kept and isinstance(targets, Tensor) else None,
            None if losses is None else losses.double().cpu(),
            None if sizes is None else sizes.double().cpu(),
            label_scores(probe.loss, z, targets),
            probe.shares(batch).cpu(),
            batch.size,
        )
        return ()

    def _seen(self, batch: Batch) -> tuple[object, Tensor | None]:
        """What the model returns for a batch, and what its last layer was given, if that is linear."""
        probe, seen = self._probe, dict[str, list[tuple[Tensor, Tensor]]]()
        if self._parts and self.head is None:
            return probe.outputs(probe.params, batch), None
        with ExitStack() as stack:
            for name, module in probe.modules.items():
                if isinstance(module, nn.Linear) and module.out_features <= MOST_CLASSES and self.head in (None, name):
                    note = partial(_note, seen.setdefault(name, []))
                    stack.callback(module.register_forward_hook(note).remove)
            z = probe.outputs(probe.params, batch)
        last = [name for name, calls in seen.items() if len(calls) == 1 and _gives(calls[0], z, probe.temperature)]
        self.head = last[-1] if last else None
        features = None if self.head is None else seen[self.head][0][0]
        if features is not None and features[0].numel() * features.element_size() * probe.n_samples > KEPT:
            self.head = features = None
        return z, features

    def _slopes(self, z: object, batch: Batch) -> Tensor | None:
        """∂ℓ_i/∂z_i, where the loss is not a cross-entropy (whose sizes need none)."""
        if not isinstance(z, Tensor) or self._probe.loss.likelihood == "categorical":
            return None
        try:
            with torch.enable_grad():
                leaf = z.detach().requires_grad_()
                (slopes,) = torch.autograd.grad(self._probe.loss_of(leaf, batch), leaf)
        except (RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, LandscopeError) or is_out_of_memory(error):
                raise
            return None
        return slopes

    def _all(self, name: str) -> Tensor | None:
        if name not in self._joined:
            found = [getattr(part, name) for part in self._parts]
            alike = bool(found) and all(part is not None and part.shape[1:] == found[0].shape[1:] for part in found)
            joined = torch.cat(found) if alike else None
            if joined is not None and self.complete and self.order is not None:
                joined = joined[self.order.rows.argsort()]
            self._joined[name] = joined
        return self._joined[name]

    @property
    def one_tensor(self) -> bool:
        """Whether the model returns one tensor."""
        return self.example is None or isinstance(self.example, Tensor)

    @property
    def described(self) -> str:
        """What the model returns, for messages."""
        return str(tuple(self.example.shape)) if isinstance(self.example, Tensor) else type(self.example).__name__

    @property
    def outputs(self) -> Tensor | None:
        """The rows of outputs (m, …); `None` where they are not one tensor with a row per sample, or too large to keep."""
        return self._all("outputs")

    @property
    def features(self) -> Tensor | None:
        """What the last linear layer, `head`, was given (m, d); `None` where the model does not end in one."""
        return self._all("features")

    @property
    def targets(self) -> Tensor | None:
        """What the outputs are compared with."""
        return self._all("targets")

    @property
    def losses(self) -> Tensor | None:
        """The loss of every row; `None` where the loss is one number per batch."""
        return self._all("losses")

    @property
    def counts(self) -> Tensor | None:
        """What every row counts for in the loss (`Probe.shares`)."""
        return self._all("counts")

    @property
    def scores(self) -> LabelScores | None:
        """Of samples with several labels each, in the order in which they were read; `None` for others."""
        parts = [part.scores for part in self._parts]
        if not parts or parts[0] is None:
            return None
        each = ((part.counts, part.labels, part.values) for part in parts if part is not None)
        return LabelScores(*map(torch.cat, zip(*each, strict=True)))

    @property
    def sizes(self) -> Tensor | None:
        """How much of the curvature a row may carry (`landscope.probe.rows.order`)."""
        return self._all("sizes")

    def read_values(self, values: Tensor) -> np.ndarray:
        """Numbers of the rows read so far (m,) as a column in the order in which they were read."""
        read = values if not self.complete or self.order is None else values[self.order.rows]
        return read.double().numpy()[:, None]


def _note(calls: list[tuple[Tensor, Tensor]], module: nn.Module, args: tuple[object, ...], out: object) -> None:
    """What a layer was given and what it returned, before later layers work on that in place."""
    del module
    if args and isinstance(args[0], Tensor) and isinstance(out, Tensor) and args[0].dim() == out.dim() == 2:
        calls.append((args[0].detach(), out.detach().clone()))
    else:
        calls.extend([(torch.empty(0), torch.empty(0))] * 2)  # counts as none: it is not looked at


def _gives(call: tuple[Tensor, Tensor], z: object, temperature: float) -> bool:
    """Whether the outputs are those of a layer, over the temperature, bit for bit."""
    out = call[1] if temperature == 1.0 else call[1] / temperature
    return isinstance(z, Tensor) and len(call[0]) == len(out) and torch.equal(out, z)


@once_per_probe
def outputs_of(probe: Probe) -> Outputs:
    """The one forward pass that everything at a probe shares."""
    return Outputs(probe)


def first_outputs(probe: Probe) -> object:
    """What the model returned for the first rows; `None` as long as nobody has asked for outputs."""
    return next((found.example for found in probe.results.values() if isinstance(found, Outputs)), None)


@once_per_probe
def uniform_order(probe: Probe) -> RowOrder | None:
    """Rows in a seeded order in which all are alike; `None` where single rows cannot be taken."""
    return seeded_order(row_keys(probe), probe.seed) if probe.takes_rows else None


@once_per_probe
def row_order(probe: Probe) -> RowOrder | None:
    """The telling rows first: one forward pass gives their sizes; `None` where single rows cannot be taken."""
    uniform = uniform_order(probe)
    if uniform is None or processes() > 1:
        return None
    outputs, ledger = outputs_of(probe), probe.ledger
    while outputs.advance():
        rate = ledger.passes_per_second
        needed = (1 - outputs.rows / probe.n_samples) * FORWARD / rate if rate else 0.0
        if needed > PATIENCE * ledger.seconds_left():
            return uniform
    sizes = outputs.sizes
    return uniform if sizes is None else seeded_order(row_keys(probe), probe.seed, sizes)
