"""`landscope.measure` and `landscope.progressive`: a first estimate of everything, then each to its tolerance.

Measures are streams of better and better estimates (`landscope.measures.base.Measure.refine`). The planner knows none of
them by name. Under a budget, or where somebody watches, every measure first gives one estimate, the cheapest measures first;
then each in turn is refined to its end, or until its share of what is left is used up. So no measure can starve another, what
one leaves goes to those behind it, and at any time at most one of them holds the vectors of a long computation. Whatever ends
the work, the best estimate so far stands.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType

import torch
from torch import nn

from landscope.core.distributed import anywhere
from landscope.core.errors import LandscopeError, LostProcessError, NotApplicableError, OperandError
from landscope.core.estimate import Cost, Estimate, Status
from landscope.core.memory import beyond_gpu_share
from landscope.core.parameters import Selection
from landscope.core.text import first_line
from landscope.measures.base import OUT_OF_MEMORY, Measure, Refinement
from landscope.measures.resolve import Wanted, resolve_measures
from landscope.measures.results import Report
from landscope.measures.watching import about, display
from landscope.probe.frozen import Mode
from landscope.probe.guards import check_still, take_record
from landscope.probe.loss.criteria import LossLike
from landscope.probe.probe import Effort, Per, Probe
from landscope.probe.reading import DataLike
from landscope.probe.totals import checked_limit

log = logging.getLogger("landscope")

INTERRUPTED = "stopped by Ctrl-C"
"""The reason of an estimate that was not finished when the work was interrupted."""
NOTHING = Estimate(math.nan, status=Status.SKIPPED, reason="not measured yet")
MOST_PARTS = 3
NOTHING_LEFT = 1e-9
"""Seconds or passes after a budget's end: a limit is a positive number."""
FIRST_LOOK = 0.25
"""What is left after the checks is at least this part of what they took: on a busy machine, too, there is something to show."""


class Budget:
    """The seconds and passes that are allowed, counted from `start`; `None` where there is no limit.

    What was done before it was made, the checks of the model and the data, cannot use up all of it.
    """

    def __init__(self, probe: Probe, start: float, seconds: float | None, passes: float | None) -> None:
        self._ledger = probe.ledger
        now = time.monotonic()
        self._deadline = (
            None if seconds is None else max(start + seconds, now + min(seconds, FIRST_LOOK * (now - start)))
        )
        self._last_pass = None if passes is None else probe.ledger.passes + passes

    @property
    def limited(self) -> bool:
        return self._deadline is not None or self._last_pass is not None

    @property
    def spent(self) -> bool:
        """Whether nothing is left, in any process."""
        return self.limited and anywhere(any(left is not None and left <= 0 for left in self._left()))

    def _left(self) -> tuple[float | None, float | None]:
        seconds = None if self._deadline is None else self._deadline - time.monotonic()
        passes = None if self._last_pass is None else self._last_pass - self._ledger.passes
        return seconds, passes

    def turn(self, waiting: int) -> AbstractContextManager[None]:
        """Inside, a step should take no more than an equal part of half of what is left, a sixth where few wait."""
        parts = max(2 * waiting, 6)
        seconds, passes = (math.inf if left is None else max(left / parts, NOTHING_LEFT) for left in self._left())
        return self._ledger.patient(seconds, passes)

    def share(self, waiting: int) -> AbstractContextManager[None]:
        """Inside, work ends where an equal part of what is left is used up, or a third: most measures need less than that."""
        parts = min(waiting, MOST_PARTS)
        seconds, passes = (None if left is None else max(left / parts, NOTHING_LEFT) for left in self._left())
        return self._ledger.limited(seconds, passes)


class Planner:
    """Measures at a probe, being refined: `run` yields the name of each whose estimate has changed.

    >>> net = nn.Linear(2, 2)
    >>> probe = Probe(net, (torch.randn(8, 2), torch.arange(8) % 2))
    >>> planner = Planner(probe, resolve_measures(["l2_norm", "loss"]), Budget(probe, time.monotonic(), None, None))
    >>> sorted(set(planner.run())), planner.estimates()["l2_norm"].status.value
    (['l2_norm', 'loss'], 'exact')
    """

    def __init__(
        self,
        probe: Probe,
        chosen: Mapping[str, Measure],
        budget: Budget,
        places: Mapping[str, Probe] = MappingProxyType({}),
    ) -> None:
        """`places` are where to measure what is not measured at the probe itself: parts of the same model, on the same ledger."""
        self._probe, self._chosen, self._budget = probe, chosen, budget
        self._running = {name: Refinement(one, places.get(name, probe)) for name, one in chosen.items()}
        self._order = sorted(chosen, key=lambda name: (chosen[name].turn, name))
        self._shown: dict[str, tuple[Estimate, Cost, Estimate]] = {}

    def run(self, first_of_all: bool = False) -> Iterator[str]:
        """Refine everything to its end, or the budget's; `first_of_all`, and under a budget, a first estimate of each."""
        take_record(self._probe)
        if first_of_all or self._budget.limited:
            yield from self._first_estimates()
        for position, name in enumerate(self._order):
            yield from self._to_the_end(name, waiting=len(self._order) - position)
        self.check()

    def _first_estimates(self) -> Iterator[str]:
        """What outputs give, then bounds from them, then a first estimate of each, those first of which nothing is known.

        Round by round: one that takes long does not hold up the others. What is known without any work is said even where nothing
        is left of the budget.
        """
        kinds = {name: type(self._chosen[name]) for name in self._order}
        streams = [name for name, kind in kinds.items() if kind.turn == 0 or kind.refine is not Measure.refine]
        yield from self._once([name for name in streams if self._chosen[name].turn == 0])
        for name in sorted(self._order, key=lambda name: self._chosen[name].turn == 0):  # bounds read outputs of rows
            if self._running[name].look():
                yield name
        for enough in (lambda one: one.estimate or one.bound, lambda one: one.estimate):
            while waiting := [name for name in streams if not enough(self._running[name])]:
                yield from self._once(waiting)
                if self._budget.spent:
                    return

    def _once(self, names: Sequence[str]) -> Iterator[str]:
        for position, name in enumerate(names):
            if self._budget.spent:
                return
            with self._budget.share(1), self._budget.turn(len(names) - position):
                self._step(name)
            if self._running[name].estimate is not None:
                yield name

    def _to_the_end(self, name: str, waiting: int) -> Iterator[str]:
        running = self._running[name]
        with self._budget.share(waiting):
            while not running.finished:
                before = running.estimate
                if self._budget.spent:
                    running.stop(Status.BUDGET_SPENT, "the budget ended")
                else:
                    self._step(name)
                if running.estimate is not before:
                    yield name

    def _step(self, name: str) -> None:
        """Refine once; from the start with all of a card's free memory, where the part that this process has is too small."""
        running = self._running[name]
        try:
            running.step()
        except Exception as error:
            if isinstance(error, LostProcessError):  # nothing that follows could be measured
                raise
            running.fail(error)
        if running.finished and running.estimate is not None and running.estimate.details.get(OUT_OF_MEMORY):
            with beyond_gpu_share() as more:
                if more:
                    again = self._running[name] = Refinement(running.measure, running.probe, cost=running.cost)
                    try:
                        while again.step():
                            pass
                    except Exception as error:
                        again.fail(error)

    def interrupt(self) -> None:
        """Stop everything where it stands."""
        for running in self._running.values():
            if not running.finished:
                running.stop(Status.INTERRUPTED, INTERRUPTED)

    def check(self) -> None:
        """Refuse all numbers where the model has moved meanwhile."""
        try:
            check_still(self._probe)
        except LandscopeError as error:
            for running in self._running.values():
                running.estimate, running.finished = Estimate.failed(str(error)), True
        except Exception as error:  # a model or a loss of the user's that raises: the measures have said so
            log.info("whether the model stayed as it was is not known: %s", first_line(error))

    @property
    def ended(self) -> set[str]:
        return {name for name, running in self._running.items() if running.finished}

    def estimates(self) -> dict[str, Estimate]:
        """The estimates so far, in the order asked for; those that have none yet are `skipped`."""
        return {name: self._estimate(name) for name in self._running}

    def _estimate(self, name: str) -> Estimate:
        running = self._running[name]
        if running.estimate is None:
            return running.bound or NOTHING
        estimate, cost, shown = self._shown.get(name, (None, None, NOTHING))
        if running.estimate is not estimate or running.cost is not cost:
            shown = running.ended()
            self._shown[name] = running.estimate, running.cost, shown
        return shown


def measure(  # noqa: PLR0913 (options of a public function, by keyword)
    model: nn.Module | Probe,
    data: DataLike | None = None,
    measures: Wanted = None,
    *,
    loss: LossLike = None,
    params: Selection = None,
    mode: Mode = "eval",
    per: Per | None = None,
    temperature: float = 1.0,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    precision: Effort = "auto",
    max_bytes: float | None = None,
    seed: int = 0,
    seconds: float | None = None,
    passes: float | None = None,
    progress: bool | None = None,
    watch: bool = False,
) -> Report:
    """Measure a model on data: a report with a value, an error bar, a status and a cost for every measure.

    Args:
        model: a module, or a `Probe` (then `data` and what defines the point are taken from it).
        data: see `Probe`, as are `loss` to `max_bytes`.
        measures: by default a core set, two or three of each family (`landscope.measures.resolve.CORE`); "all" for every one;
            names, of your own ones as `package.module:Class`; a mapping from names to settings; or measure objects.
        seed: for everything random.
        seconds, passes: a budget. Every measure gets a first estimate, then a fair share of what is left; what ends early keeps
            its best estimate with the error bar that it has. A pass is the work of one gradient over all data. Positive
            numbers; `None` is no limit.
        progress: show what is running; by default on a terminal only.
        watch: show the table while it fills and the error bars while they shrink, in a terminal or a notebook.

    A measure that does not apply says why, and one that fails does not stop the others. Ctrl-C ends the work and keeps what is
    there: the estimates so far, with status `interrupted`.

    >>> net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> report = measure(net, (torch.randn(16, 2), torch.arange(16) % 2), ["l2_norm", "hessian_top_eigenvalue"])
    >>> report["hessian_top_eigenvalue"].status.value
    'converged'
    """
    start, seconds, passes = time.monotonic(), checked_limit("seconds", seconds), checked_limit("passes", passes)
    probe = probe_at(
        model,
        data,
        loss=loss,
        params=params,
        mode=mode,
        per=per,
        temperature=temperature,
        batch_size=batch_size,
        device=device,
        dtype=dtype,
        precision=precision,
        max_bytes=max_bytes,
        seed=seed,
    )
    chosen = resolve_measures(measures, probe.seed)
    if not chosen:
        raise LandscopeError("no measures are named; leave them out for the core set. See: landscope measures")
    planner = Planner(probe, chosen, Budget(probe, start, seconds, passes))
    with display(watch, progress, chosen, about(probe), None if seconds is None else start + seconds) as shown:
        try:
            for name in planner.run(first_of_all=anywhere(watch)):
                shown.update(name, planner.estimates(), planner.ended)
        except KeyboardInterrupt:
            planner.interrupt()
        shown.update("", planner.estimates(), planner.ended)
    return Report(planner.estimates(), about(probe))


def measured(
    probe: Probe,
    measures: Wanted = None,
    *,
    seconds: float | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Report:
    """`measure` at a probe without a word, for work inside other work: an interruption ends that, too.

    Once `should_stop` says yes, the report has only what was finished by then.
    """
    budget = Budget(probe, time.monotonic(), checked_limit("seconds", seconds), None)
    planner = Planner(probe, resolve_measures(measures, probe.seed), budget)
    for _ in planner.run():
        if should_stop():
            planner.check()
            return Report({name: planner.estimates()[name] for name in planner.ended}, about(probe))
    return Report(planner.estimates(), about(probe))


def progressive(
    model: nn.Module | Probe,
    data: DataLike | None = None,
    measures: Wanted = None,
    *,
    seconds: float | None = None,
    passes: float | None = None,
    seed: int = 0,
    **point: object,
) -> Iterator[Report]:
    """The reports of `measure` as they get better: one after every estimate that has changed, the last one whole.

    `point` is what `Probe` takes: `loss`, `params`, `mode`, `per`, `temperature`, `batch_size`, `device`, `dtype`, `precision`,
    `max_bytes`. Leaving the loop ends the work.

    >>> net = nn.Linear(2, 2)
    >>> *_, last = progressive(net, (torch.randn(16, 2), torch.arange(16) % 2), ["l2_norm", "loss"])
    >>> [estimate.status.value for estimate in last.values()]
    ['exact', 'exact']
    """
    start, seconds, passes = time.monotonic(), checked_limit("seconds", seconds), checked_limit("passes", passes)
    probe = probe_at(model, data, seed=seed, **point)
    planner = Planner(probe, resolve_measures(measures, probe.seed), Budget(probe, start, seconds, passes))
    for _ in planner.run(first_of_all=True):
        yield Report(planner.estimates(), about(probe))
    yield Report(planner.estimates(), about(probe))


def probe_at(model: nn.Module | Probe, data: DataLike | None, **point: object) -> Probe:
    """The probe of a model and its data, or the one that is given."""
    if isinstance(model, Probe):
        if data is not None:
            raise OperandError("a Probe holds its data already; pass it alone (measures=[…]), or a model and data")
        return model
    if data is None:
        raise OperandError("no data: pass a DataLoader, a Dataset, or (x, y) tensors as the second argument")
    return Probe(model, data, **point)  # type: ignore[arg-type]


# How many samples suffice: from the error over the data, which shrinks with the square root of their number.


def enough_data(measure: Measure | str, probe: Probe, rel: float = 0.05) -> int:
    """Samples after which the error over the data is `rel` of the value: n (data_stderr / (rel · |value|))².

    One measurement on the samples at hand; a rule for more of the same kind of data.

    >>> import torch
    >>> net = torch.nn.Linear(3, 2)
    >>> probe = Probe(net, (torch.randn(200, 3), torch.arange(200) % 2))
    >>> 1 < enough_data("relative_flatness", probe, rel=0.05) < 10_000
    True
    """
    if not rel > 0:
        raise ValueError(f"rel must be positive, got {rel}")
    (one,) = resolve_measures(measure, probe.seed).values()
    estimate = one(probe)
    if not estimate.status.has_value:
        raise NotApplicableError(f"{one.key}: {estimate.reason}")
    if estimate.data_stderr is None or estimate.value == 0:
        raise NotApplicableError(
            f"{one.key} has no error over the data here, so it cannot say how many samples suffice"
        )
    return max(2, math.ceil(probe.n_samples * (estimate.data_stderr / (rel * abs(estimate.value))) ** 2))
