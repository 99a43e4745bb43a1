"""How many points to evaluate at once: found out on the way, by trying.

Points at once (`vmap`) share the overhead of launching operations, and cost memory and sometimes slower kernels (a
convolution with many weights at once is a grouped one). Which wins depends on the network, the data and the machine, so
the first points are evaluated in growing numbers at once, each number twice, for as long as more is faster. Nothing is
evaluated for the trial alone. Which number wins may differ from run to run, and with it the last digits of the values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["WIDTHS", "Pace"]

WIDTHS = (1, 8, 64)
"""Numbers of points at once that are tried."""
TRIALS = 2
"""Runs of each: the first one warms up."""


class Pace:
    """Chooses a number of points at once; told how long each choice took, it settles on the fastest.

    >>> pace = Pace(torch.device("cpu"))
    >>> pace.width(100), pace.settled
    (1, False)
    >>> pace.refuse(8)                       # nothing but one by one is left
    >>> pace.width(100), pace.settled
    (1, True)
    """

    def __init__(self, device: torch.device, widths: Sequence[int] = WIDTHS) -> None:
        self._device = device
        self._open = list(widths)
        self._seconds: dict[int, list[float]] = {width: [] for width in (1, *widths)}
        self._samples: int | None = None

    @property
    def settled(self) -> bool:
        """Whether every number that is worth it has been tried."""
        return all(len(self._seconds[width]) >= TRIALS for width in self._open) or len(self._open) == 1

    @property
    def best(self) -> int:
        """The number of points at once that has been fastest so far."""
        tried = [width for width in self._open if self._seconds[width]]
        return min(tried, key=lambda width: min(self._seconds[width]), default=self._open[0])

    def width(self, most: int) -> int:
        """How many points to take next, at most `most`: the next to be tried, or the fastest."""
        for width in self._open:
            if width <= most and not self.settled and len(self._seconds[width]) < TRIALS:
                return width
        return max(1, min(self.best, most))

    def timed(self, evaluate: Callable[[], Tensor], points: int, samples: int) -> Tensor:
        """Evaluate, and note how long it took while the trial lasts; pieces of data of another size do not count."""
        self._samples = self._samples or samples
        if self.settled or samples != self._samples or points not in self._seconds:
            return evaluate()
        self._wait()
        start = time.perf_counter()
        values = evaluate()
        self._wait()
        self._seconds[points].append((time.perf_counter() - start) / points)
        if len(self._seconds[points]) == TRIALS and self.best != points:
            self.refuse(points)
        return values

    def refuse(self, points: int) -> None:
        """So many at once are slower or cannot be had (no batching rule, no memory); nor will more be tried."""
        self._open = [width for width in self._open if width < points] or [1]

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
