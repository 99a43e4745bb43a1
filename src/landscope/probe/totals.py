"""How a sum over samples is taken: in pieces that fit, counted, and within a budget."""

from __future__ import annotations

import gc
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import SupportsFloat

import torch
from torch import Tensor

from landscope.core.errors import BudgetSpentError, OutOfMemoryError, SpecError
from landscope.core.estimate import Cost
from landscope.core.memory import available_bytes, is_out_of_memory
from landscope.probe.batches import Batch
from landscope.probe.copying import place
from landscope.probe.sharding.gathering import is_gathered

# Sums over samples in pieces that fit into memory.


WORKING_SET = {"cpu": 2**28, "cuda": 5 * 2**28}
"""Bytes that a gradient of the samples of one piece keeps: a device is busy then, and more brings hardly any speed. On an H200
that is 204 images of ResNet-18: a gradient of 2,000 takes as long in pieces of 125 as in one (12.8 GiB). A product in TF32,
recorded, takes 0.25 s in pieces of 342 (5.5 GiB), 0.24 s in pieces of 456 (6.3 GiB) and, as it is, 0.21 s in one (26 GiB)."""
SLICE, PART = 1.0, 0.125
"""Seconds that one piece should take at most where a deadline is to be kept, and the part of what is left until then."""

COMPILER_IMPORT = 2.5
"""Seconds that the import of torch's compiler takes: 1.3 to 2.4 where it was tried."""

LARGE = 2**20
"""Numbers from which on a sum is not copied."""

PieceFunction = Callable[[Batch], tuple[Tensor, ...]]


class PieceSize:
    """The largest number of samples that is worked on at once; it only ever shrinks."""

    def __init__(self, limit: int) -> None:
        self.limit = max(1, limit)

    def halve(self, piece: Batch, device: torch.device) -> None:
        """After a failed allocation: half of what was tried; one sample that does not fit is an error."""
        if not piece.divisible or piece.size == 1:
            kind = "one sample" if piece.size == 1 else f"a batch of {piece.size} that cannot be cut"
            raise OutOfMemoryError(
                f"{kind} does not fit into the memory of {device}. Measure fewer parameters (params=…), smaller batches, or "
                f"on a device with more memory."
            )
        self.limit = max(1, min(self.limit, piece.size) // 2)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def in_pieces(
    batches: Iterable[Batch],
    function: PieceFunction,
    size: PieceSize,
    device: torch.device,
    prepare: Callable[[object], object],
    at_most: Callable[[], float] = lambda: math.inf,
) -> Iterator[tuple[Batch, tuple[Tensor, ...]]]:
    """Every piece of the batches, and the function's value on it; pieces hold at most `size` and `at_most()` samples, all alike.

    Where memory runs out, the piece is halved and tried again, and later pieces are as small.
    """
    for batch in batches:
        queue = deque([batch])
        while queue:
            piece = queue.popleft()
            limit = int(max(1, min(size.limit, at_most())))
            if piece.divisible and piece.size > limit:
                piece, rest = piece.split(math.ceil(piece.size / math.ceil(piece.size / limit)))
                queue.appendleft(rest)
            ready = piece.prepared(prepare)
            part = _attempt(function, ready)
            if part is None:
                size.halve(piece, device)
                queue.appendleft(piece)
            else:
                yield ready, part
                del part  # it may be as long as the parameters


def accumulate(
    batches: Iterable[Batch],
    function: PieceFunction,
    size: PieceSize,
    device: torch.device,
    prepare: Callable[[object], object],
) -> tuple[Tensor, ...] | None:
    """Σ of `function` over all batches, in pieces; `None` where there are no batches."""
    return added_up(in_pieces(batches, function, size, device, prepare))


def added_up(parts: Iterable[tuple[Batch, tuple[Tensor, ...]]]) -> tuple[Tensor, ...] | None:
    """The sum of each of several tensors over all pieces; `None` where there are none. Large ones grow where the first lies."""
    sums: tuple[Tensor, ...] | None = None
    for _, part in parts:
        if sums is None:
            sums = tuple(p if p.numel() >= LARGE else p.clone() for p in part)
        else:
            for whole, p in zip(sums, part, strict=True):
                whole += p
        del part
    return sums


def _attempt(function: PieceFunction, piece: Batch) -> tuple[Tensor, ...] | None:
    """The function's value, or `None` where memory ran out; the failed frames are released before it returns."""
    try:
        return function(piece)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None


def saved_bytes(function: Callable[[], Tensor], held: Iterable[Tensor] = ()) -> int:
    """Bytes that a forward pass keeps for its backward pass, apart from tensors that are `held` anyway."""
    seen: dict[int | None, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if (at := place(tensor)) is not None and not is_gathered(tensor):  # sparse tensors have no storage of their own
            seen[at] = tensor.untyped_storage().nbytes()
        return tensor.detach()  # a node that kept its own result, history and all, would never be freed

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = function()
    del result
    for tensor in held:
        seen.pop(place(tensor), None)
    return sum(seen.values())


def bytes_of_gradient(
    loss: Callable[[dict[str, Tensor]], Tensor], params: Mapping[str, Tensor], held: Iterable[Tensor]
) -> int:
    """Bytes of activations that one gradient of a loss keeps, beside parameters and what is `held` anyway."""
    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    with torch.enable_grad():
        return saved_bytes(lambda: loss(leaves), [*leaves.values(), *held])


def samples_that_fit(bytes_each: float, load: float, device: torch.device) -> int:
    """How many samples to work on at once, where one takes `load` times `bytes_each`: at least 1.

    As many as reach the throughput of the device, and a quarter of what is free there (half of a GPU's memory) at most.
    """
    free, each = available_bytes(device), max(64, bytes_each)
    room = free // 4 if device.type == "cpu" else free // 2
    return max(1, int(min(room / (each * load), WORKING_SET.get(device.type, 2**30) / (each * min(load, 1.0)))))


# What has been spent, and what may be: passes over the data and seconds.
#
# A pass is one forward and one backward pass over all samples: the work of one gradient. A forward pass alone is a third of
# it, a Hessian product three (in a block of k, 2 + 1/k each).


FORWARD = 1 / 3
"""Passes that a forward pass counts for."""


def checked_limit(name: str, value: SupportsFloat | None) -> float | None:
    """A budget as a positive number, or `None` for no limit, which infinity means, too.

    >>> checked_limit("seconds", 60), checked_limit("passes", float("inf"))
    (60.0, None)
    >>> checked_limit("seconds", -1)
    Traceback (most recent call last):
    landscope.core.errors.SpecError: seconds must be a positive number, got -1; leave it out for no limit
    """
    if value is None:
        return None
    number = math.nan
    if isinstance(value, SupportsFloat) and not isinstance(value, bool):
        with suppress(TypeError, ValueError, RuntimeError, OverflowError):  # an array of several numbers, or beyond any
            number = float(value)
    if not number > 0:
        raise SpecError(f"{name} must be a positive number, got {value!r}; leave it out for no limit")
    return None if number == math.inf else number


def checked_seconds(name: str, value: float | None) -> float | None:
    """A length of time as a number that is not negative, or `None` for no limit, which infinity means, too.

    >>> checked_seconds("time_limit", 0), checked_seconds("time_limit", float("inf"))
    (0.0, None)
    >>> checked_seconds("time_limit", float("nan"))
    Traceback (most recent call last):
    landscope.core.errors.SpecError: time_limit must be a number of seconds, 0 or more, got nan; leave it out for no limit
    """
    if value is None:
        return None
    if not value >= 0:
        raise SpecError(f"{name} must be a number of seconds, 0 or more, got {value!r}; leave it out for no limit")
    return None if value == math.inf else float(value)


class Ledger:
    """Counts passes; raises `BudgetSpentError` between two pieces of work once a limit is reached.

    >>> ledger = Ledger()
    >>> with ledger.limited(passes=1.5):
    ...     ledger.add(1.0); ledger.check(); ledger.add(1.0); ledger.check()
    Traceback (most recent call last):
    landscope.core.errors.BudgetSpentError: the budget of 1.5 passes is spent
    """

    def __init__(self) -> None:
        self.passes = 0.0
        self._cut_short = 0.0
        self._seconds = 0.0
        self._limits: list[tuple[float, float, str]] = []
        self._patience = math.inf, math.inf

    def add(self, passes: float) -> None:
        """Note work done."""
        self.passes += passes

    @contextmanager
    def timed(self, device: torch.device) -> Iterator[None]:
        """Note the time that work inside takes, until the device has done it.

        Work that raises leaves the rate alone: neither its time nor the passes that it got done count there.
        """
        start, before = time.monotonic(), self.passes
        try:
            yield
        except BaseException:
            self._cut_short += self.passes - before
            raise
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self._seconds += time.monotonic() - start

    @property
    def passes_per_second(self) -> float | None:
        """The rate of the work that was done to its end; `None` as long as there is none."""
        done = self.passes - self._cut_short
        return done / self._seconds if done > 0 and self._seconds > 0 else None

    @property
    def bounded(self) -> bool:
        """Whether there is a limit: then early answers are wanted."""
        return bool(self._limits)

    def check(self) -> None:
        """Raise if a limit is reached."""
        for deadline, last_pass, what in self._limits:
            if time.monotonic() > deadline or self.passes >= last_pass:
                raise BudgetSpentError(f"the budget of {what} is spent")

    def leave_time_for_imports(self) -> None:
        """Before forward derivatives of norms or of each other: torch then imports its compiler, and no deadline helps."""
        if "torch._dynamo" not in sys.modules and self.seconds_left() < COMPILER_IMPORT:
            raise BudgetSpentError("the budget is too short for an import that forward derivatives may need")

    def samples_in_time(self, passes_each: float) -> float:
        """How many samples, of this many passes each, a piece may hold, so that a deadline is kept; infinite without one."""
        left, (patience, fewer) = self.seconds_left(), self._patience
        most = math.inf if passes_each <= 0 else fewer / passes_each
        if left == math.inf:
            return most
        rate = self.passes_per_second
        slice_ = min(SLICE, PART * max(left, 0.0), patience / 2)
        return 1.0 if rate is None or passes_each <= 0 else min(most, rate * slice_ / passes_each)

    @contextmanager
    def patient(self, seconds: float, passes: float) -> Iterator[None]:
        """Inside, work that can be taken up again should stop for others about so often (see `waited`); it is not ended."""
        before, self._patience = self._patience, (seconds, passes)
        try:
            yield
        finally:
            self._patience = before

    @property
    def mark(self) -> tuple[float, float]:
        """The time, and the passes that are spent."""
        return time.monotonic(), self.passes

    def waited(self, since: tuple[float, float], often: float = math.inf) -> bool:
        """Whether others have waited long enough since a mark: `often` seconds, or as long as the patience is."""
        seconds, passes = self._patience
        return time.monotonic() - since[0] >= min(often, seconds) or self.passes - since[1] >= passes

    def seconds_left(self) -> float:
        """Until the earliest deadline; infinite where there is none."""
        return min((deadline for deadline, _, _ in self._limits), default=math.inf) - time.monotonic()

    @contextmanager
    def limited(self, seconds: float | None = None, passes: float | None = None) -> Iterator[None]:
        """Allow this many seconds and passes from now on; may be nested, the tightest limit holds."""
        seconds, passes = checked_limit("seconds", seconds), checked_limit("passes", passes)
        if seconds is None and passes is None:
            yield
            return
        what = " and ".join(f"{v:g} {u}" for v, u in ((seconds, "seconds"), (passes, "passes")) if v is not None)
        deadline = float("inf") if seconds is None else time.monotonic() + seconds
        last_pass = float("inf") if passes is None else self.passes + passes
        self._limits.append((deadline, last_pass, what))
        try:
            yield
        finally:
            self._limits.remove((deadline, last_pass, what))

    @contextmanager
    def metered(self) -> Iterator[Meter]:
        """A meter that reads what is spent inside."""
        meter = Meter(self)
        try:
            yield meter
        finally:
            meter.stop()


class Meter:
    """What a stretch of work has cost."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._passes, self._start = ledger.passes, time.monotonic()
        self._cost: Cost | None = None

    def stop(self) -> None:
        """End the stretch."""
        self._cost = self.cost

    @property
    def cost(self) -> Cost:
        """Passes and seconds so far, or until `stop`."""
        if self._cost is not None:
            return self._cost
        return Cost(passes=self._ledger.passes - self._passes, seconds=time.monotonic() - self._start)
