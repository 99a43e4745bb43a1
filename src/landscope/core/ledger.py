"""What has been spent, and what may be: passes over the data and seconds.

A pass is one forward and one backward pass over all samples: the work of one gradient. A forward pass alone is a third of
it, a Hessian product three (in a block of k, 2 + 1/k each).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import SupportsFloat

import torch

from landscope.core.errors import BudgetSpentError, SpecError
from landscope.core.estimate import Cost

__all__ = ["FORWARD", "Ledger", "checked_limit", "checked_seconds"]

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
        with suppress(TypeError, ValueError, RuntimeError):  # an array or a tensor of several numbers
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

    def check(self) -> None:
        """Raise if a limit is reached."""
        for deadline, last_pass, what in self._limits:
            if time.monotonic() > deadline or self.passes >= last_pass:
                raise BudgetSpentError(f"the budget of {what} is spent")

    def seconds_left(self) -> float:
        """Until the earliest deadline; infinite where there is none."""
        return min((deadline for deadline, _, _ in self._limits), default=float("inf")) - time.monotonic()

    @contextmanager
    def limited(self, seconds: float | None = None, passes: float | None = None) -> Iterator[None]:
        """Allow so many seconds and passes from now on; may be nested, the tightest limit holds."""
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
