"""What one sees while measures run: a table that fills and whose bars shrink, a bar, plain lines in a log, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from landscope.core.estimate import Estimate
from landscope.core.json import Plain
from landscope.core.progress import Progress, progress_display
from landscope.core.text import duration
from landscope.measures.reading.references import architecture, outputs
from landscope.measures.results import Report
from landscope.probe.probe import Probe
from landscope.probe.rows.outputs import first_outputs

OFTEN = 0.25
"""Seconds between two drawings of a table."""


def about(probe: Probe) -> dict[str, Plain]:
    """What a report says of the network, the data and the loss; `part` where not all parameters of the model were measured."""
    modules = probe.modules.values()
    whole = sum(p.numel() for p in probe.module("").parameters())
    part: dict[str, Plain] = {"part": True} if probe.n_params < whole else {}
    example = first_outputs(probe)
    width = example.shape[1] if isinstance(example, Tensor) and example.dim() == 2 else outputs(modules)
    notices: dict[str, Plain] = {"notices": list(probe.notices)} if probe.notices else {}
    return {
        "model": type(probe.module("")).__name__,
        "architecture": architecture(modules),
        "outputs": width,
        "parameters": f"{probe.n_params:,}{f' of {whole:,}' if part else ''} parameters",
        **part,
        "samples": probe.amount,
        "loss": probe.loss.name + (f", per {probe.per}" if probe.per else ""),
        "mode": probe.mode,
        "temperature": probe.temperature,
        "dtype": str(probe.dtype).removeprefix("torch."),
        "device": str(probe.device),
        "seed": probe.seed,
        "torch": torch.__version__,
        **notices,
    }


class Display(Protocol):
    """Something that looks at the estimates as they change."""

    def update(self, name: str, estimates: Mapping[str, Estimate], ended: Collection[str]) -> None:
        """The estimate of `name` has changed, or with no name the work is over; those of `ended` will not change any more."""


class _Finished:
    """A bar that counts what has ended, and a line for each in a log."""

    def __init__(self, names: Iterable[str], progress: Progress) -> None:
        self._waiting, self._progress = set(names), progress
        self._total = len(self._waiting)

    def update(self, name: str, estimates: Mapping[str, Estimate], ended: Collection[str]) -> None:
        """Show what has ended."""
        for one in sorted(self._waiting.intersection(ended)):
            self._waiting.discard(one)
            done, estimate = self._total - len(self._waiting), estimates[one]
            status = f" ({estimate.status})" if estimate.status.has_value else ""
            self._progress.line(f"[{done}/{self._total}] {one}: {estimate}{status}, {duration(estimate.cost.seconds)}")
        self._progress.show(self._total - len(self._waiting), self._total, name)


class _Table:
    """The table of a report, drawn again and again; `show` puts it where it belongs."""

    def __init__(self, show: Callable[[Report], None], about: Mapping[str, Plain], deadline: float | None) -> None:
        self._show, self._about, self._deadline, self._drawn = show, about, deadline, 0.0

    def update(self, name: str, estimates: Mapping[str, Estimate], ended: Collection[str]) -> None:
        """Draw it, with the time left; but not where it was drawn a moment ago, unless it is the last one."""
        now = time.monotonic()
        if name and now - self._drawn < OFTEN:
            return
        self._drawn = now
        about = dict(self._about)
        if name and self._deadline is not None:
            about["left"] = f"{max(self._deadline - now, 0):.0f} s left"
        self._show(Report(estimates, about))


@contextmanager
def display(
    watch: bool, progress: bool | None, names: Iterable[str], about: Mapping[str, Plain], deadline: float | None
) -> Iterator[Display]:
    """The display for the measures called `names`.

    With `watch` the table itself, in a terminal or updated in place in a notebook; otherwise a bar on a terminal unless
    `progress` is false, and lines elsewhere if it is true.
    """
    if watch and _in_notebook():
        from IPython.display import display as show  # type: ignore[import-not-found]

        handle = show(Report({}, about), display_id=True)
        yield _Table(handle.update, about, deadline)
    elif watch and sys.stderr.isatty():
        from rich.console import Console, Group
        from rich.live import Live

        with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:
            yield _Table(lambda report: live.update(Group(report.title, report.table()), refresh=True), about, deadline)
    else:
        with progress_display(True if watch else progress, len(list(names))) as bar:
            yield _Finished(names, bar)


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    instance = shell.get_ipython() if shell is not None else None
    return instance is not None and "IPKernelApp" in getattr(instance, "config", {})
