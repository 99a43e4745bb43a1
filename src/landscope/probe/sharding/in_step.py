"""Work that takes all processes of a sharded model: they do it piece by piece, and decide together."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import torch.distributed as dist
from torch import Tensor

from landscope.core.distributed import largest, processes, raise_together
from landscope.core.errors import BudgetSpentError, LandscopeError
from landscope.probe.batches import Batch, map_tensors
from landscope.probe.sharding.gathering import summing
from landscope.probe.totals import PieceFunction, PieceSize


@contextmanager
def alone(together: Callable[[], bool]) -> Iterator[None]:
    """Inside, nothing needs the other processes; where all are needed afterwards, they wait until all are through."""
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    if together():
        raise_together(error)
    elif error is not None:
        raise error


def of_every_process(batch: Batch) -> tuple[Batch, ...]:
    """Some rows of each process, on all of them."""
    shown: list[Batch | None] = [None] * processes()
    dist.all_gather_object(shown, batch.prepared(lambda raw: map_tensors(Tensor.cpu, raw)))
    return tuple(rows for rows in shown if rows is not None)


def in_step(
    batches: Iterable[Batch],
    function: PieceFunction,
    size: PieceSize,
    prepare: Callable[[object], object],
    at_most: Callable[[], float],
    check: Callable[[], None],
    spare: Callable[[], Batch],
) -> Iterator[tuple[Batch, tuple[Tensor, ...]]]:
    """`in_pieces` where a pass takes all processes: they agree on the size of every piece, and on when to end.

    A process with no rows left takes part in the others' work with a `spare` one, and adds nothing. What goes wrong in one
    process ends the work of all, and so does a budget, which `check` looks at.
    """
    queue, source, failed = deque[Batch](), iter(batches), list[Exception]()
    while True:
        spent: BudgetSpentError | None = None
        try:
            queue.extend(islice(source, 0 if queue else 1))
            check()
        except BudgetSpentError as error:
            spent = error
        except Exception as error:
            failed.append(error)
        limit = max(1.0, min(size.limit, at_most()))
        told = largest(-limit, len(queue), spent is not None, len(failed), failed=failed[0] if failed else None)
        if told[3]:
            raise failed[0] if failed else LandscopeError("another process failed; its own message says why")
        if told[2]:
            raise spent or BudgetSpentError("the budget of another process is spent")
        if not told[1]:
            return
        idle, piece = not queue, queue.popleft() if queue else spare()
        limit = int(-told[0])
        if piece.divisible and piece.size > limit:
            piece, rest = piece.split(math.ceil(piece.size / math.ceil(piece.size / limit)))
            queue.appendleft(rest)
        try:
            with summing(idle):
                ready = piece.prepared(prepare)
                part = function(ready)
        except Exception as error:
            failed.append(error)
            continue
        if not idle:
            yield ready, part
        del part  # it may be as long as the parameters
