"""A budget of seconds or passes, shared out among measures that still wait.

Each measure has a cost that it would like and a least below which it is not worth beginning. Those that come last give way until
the leasts of the rest fit into what is left; what remains is shared in proportion to what they would like. Costs are passes; a
budget of seconds is converted at the rate seen so far; before any work has been done, the clock alone ends it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from landscope.core.errors import BudgetSpentError
from landscope.core.probe import Probe

__all__ = ["NOTHING_LEFT", "Budget", "shares"]

NOTHING_LEFT = 1e-9
"""Seconds or passes after a budget's end: a limit is a positive number."""


def shares(available: float, wishes: Sequence[tuple[float, float]]) -> list[float]:
    """What each of (like, least) gets of `available`, first come first served; 0 for those that must give way.

    >>> shares(100.0, [(30.0, 30.0), (300.0, 50.0), (300.0, 50.0)])
    [30.0, 70.0, 0.0]
    >>> shares(float("inf"), [(5.0, 5.0)])
    [inf]
    """
    kept, needed = 0, 0.0
    for _, least in wishes:
        if needed + least > available:
            break
        kept, needed = kept + 1, needed + least
    liked = sum(like - least for like, least in wishes[:kept])
    spare = available - needed
    if liked <= 0 or spare == float("inf"):
        return [spare if spare == float("inf") else least for _, least in wishes[:kept]] + [0.0] * (len(wishes) - kept)
    part = spare / liked
    return [least + part * (like - least) for like, least in wishes[:kept]] + [0.0] * (len(wishes) - kept)


class Budget:
    """What is left of the allowed seconds and passes (see `checked_limit`), counted from `start`."""

    def __init__(self, probe: Probe, start: float, seconds: float | None, passes: float | None) -> None:
        self._ledger = probe.ledger
        self._deadline = None if seconds is None else start + seconds
        self._last_pass = None if passes is None else probe.ledger.passes + passes

    def left(self) -> tuple[float | None, float | None]:
        """(seconds, passes) that remain; `None` where there is no limit."""
        seconds = None if self._deadline is None else self._deadline - time.monotonic()
        passes = None if self._last_pass is None else self._last_pass - self._ledger.passes
        return seconds, passes

    def share(self, wishes: Sequence[tuple[float, float]]) -> float:
        """Passes for the first of those that wait; `BudgetSpentError` if that is not worth beginning."""
        seconds, passes = self.left()
        available = float("inf") if passes is None else passes
        if seconds is not None and seconds <= 0:
            available = 0.0
        elif seconds is not None and (rate := self._ledger.passes_per_second) is not None:
            available = min(available, seconds * rate)
        like, least = wishes[0]
        mine = shares(max(available, 0.0), wishes)[0]
        if least > 0 and mine <= 0:
            raise BudgetSpentError(
                f"the budget is spent: {max(available, 0):.0f} passes are left; it takes about {like:.0f}, at least {least:.0f}"
            )
        return mine

    def limited(self) -> AbstractContextManager[None]:
        """Inside, work ends with `BudgetSpentError` where the budget does."""
        seconds, passes = (None if left is None else max(left, NOTHING_LEFT) for left in self.left())
        return self._ledger.limited(seconds, passes)
