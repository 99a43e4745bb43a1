"""What a measure is: a frozen dataclass of its settings that turns a probe into better and better estimates."""

from __future__ import annotations

import contextlib
import math
from abc import ABC
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

from landscope.core.errors import (
    BudgetSpentError,
    DifferentiationError,
    LandscopeError,
    NotApplicableError,
    OutOfMemoryError,
)
from landscope.core.estimate import Cost, Estimate, Status
from landscope.core.json import Plain
from landscope.core.memory import is_out_of_memory
from landscope.core.registry import Registry
from landscope.measures.facts import Better, Family, check_facts
from landscope.probe.guards import still
from landscope.probe.probe import Probe

if TYPE_CHECKING:
    from typing import Self

MEASURES: Registry[type[Measure]] = Registry("measure", groups="landscope.papers.{}.as_published")
"""Measures by exact name; those that a paper's code computed as PAPER/NAME."""

OUT_OF_MEMORY = "out_of_memory"
"""In the details of an estimate that failed for want of memory."""

M = TypeVar("M", bound="type[Measure]")


def register(key: str) -> Callable[[M], M]:
    """Class decorator: file a measure under its key; one that does not say what it is (`FACTS`) is refused."""

    def file(cls: M) -> M:
        check_facts(cls)
        cls.key = key
        MEASURES.register(key)(cls)
        return cls

    return file


@dataclass(frozen=True, kw_only=True)
class Measure(ABC):
    """Base of all measures.

    A subclass is a frozen dataclass whose fields are its settings, registered under one exact key. It implements `refine`, or
    `_measure` where there is nothing to show before the end; calling it runs that to the end, adds cost and settings, and turns
    an estimate that is not available into a status with a reason.
    What the measure is stands on its class: tables, the report, the pages and the command line read it there. A measure of
    your own may leave it out as long as it is not registered.
    """

    key: ClassVar[str] = ""
    title: ClassVar[str]
    """What a table of a report calls it."""
    family: ClassVar[Family]
    unit: ClassVar[str]
    """Of the value, with the default settings: "loss", "%"; empty where there is none."""
    better: ClassVar[Better]
    """Which values are better; `None` where neither is, or where that is the question."""
    flatter: ClassVar[Better] = "lower"
    """Which values mean a flatter minimum, in the families of sharpness; `None` where neither does."""
    cost: ClassVar[str]
    """What it takes, in words, with the default settings."""
    reference: ClassVar[str] = ""
    """The paper that defines it, where there is one."""
    invariant_to: ClassVar[frozenset[str]] = frozenset()
    """Function-preserving transformations that leave the value unchanged (names of `landscope.invariance`), with the defaults."""
    same_value_as: ClassVar[str] = ""
    """The key of a measure whose value this one has, too: where both were measured, a report compares the other one."""
    turn: ClassVar[int] = 2
    """When it is measured, lowest first: 0 for what outputs alone give, 1 for a few passes, 2 for several, 3 for many."""

    on_shards: ClassVar[bool] = False
    """Whether it needs parameters as vectors alone: where every process holds a part of each (`fully_shard`), and where they stay
    in half precision."""

    seed: int = 0

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """Estimates that get better and better; the last one is what these settings ask for.

        Every estimate stands by itself: its error bar is true even if it stays the last. `None` says that there is none yet,
        and that other work may go first. Raises `NotApplicableError` where the measure is not defined. The last value does not
        depend on what else is measured, nor on how long one waits between two estimates.
        """
        yield self._measure(probe)

    def at_once(self, probe: Probe) -> Estimate | None:
        """What is known already, or a bound that the outputs of a few rows give, before anything is differentiated; or `None`."""
        return None

    def _measure(self, probe: Probe) -> Estimate:
        """The estimate, where there is nothing to show before the end; a measure defines this or `refine`."""
        raise NotImplementedError(f"{type(self).__name__} defines neither `refine` nor `_measure`")

    def __call__(self, probe: Probe) -> Estimate:
        """Measure to the end."""
        running = Refinement(self, probe)
        with still(probe):
            while running.step():
                pass
        return running.ended()

    def last(self, probe: Probe) -> Estimate:
        """The estimate that the stream ends with, for measures that are made of another one; errors are raised."""
        *_, found = self.refine(probe)
        assert found is not None, "a stream ends with an estimate"
        return found

    def with_settings(self, **settings: object) -> Self:
        """The same measure with some settings changed."""
        return replace(self, **settings)  # type: ignore[arg-type]

    @property
    def invariances(self) -> frozenset[str]:
        """What leaves the value unchanged with these settings."""
        return self.invariant_to

    @property
    def settings(self) -> dict[str, Plain]:
        """The settings that define the value, in the types of JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def invariances(name: str, settings: Mapping[str, Plain]) -> frozenset[str]:
    """What leaves an estimate of a registered measure unchanged, by the settings that it states; the defaults for the others.

    >>> "layer_rescaling" in invariances("average_sharpness", {"adaptive": True}), invariances("average_sharpness", {})
    (True, frozenset({'logit_shift'}))
    """
    kind = MEASURES[name]
    try:
        return kind(**settings).invariances  # type: ignore[arg-type]
    except (TypeError, ValueError):  # of another version
        return kind.invariant_to


def _is_looser(found: Estimate, before: Estimate | None) -> bool:
    """Whether a bound says less than the bound from before."""
    if before is None or found.status is not before.status:
        return False
    if found.status is Status.LOWER_BOUND:
        return found.value < before.value
    return found.status is Status.UPPER_BOUND and found.value > before.value


def _out_of_reach(measure: Measure, narrow: bool) -> Iterator[Estimate]:
    """The stream of a measure that needs whole weights in full precision, at a model that has none."""
    name = measure.key or type(measure).__name__
    yield Estimate.not_applicable(
        f"{name} needs weights in float32, and they stay in bfloat16: measure with dtype=torch.float32"
        if narrow
        else f"{name} needs whole weights, and every process holds a part of each: measure a model that is not sharded; its "
        f"data can still be shared out over processes"
    )


@dataclass
class Refinement:
    """A measure at a probe, as far as it has come: `step` by `step`, keeping the best estimate so far.

    >>> import torch
    >>> probe = Probe(torch.nn.Linear(2, 1), (torch.ones(2, 2), torch.zeros(2, 1)), "mse")
    >>> running = Refinement(MEASURES["l2_norm"](), probe)
    >>> running.step(), running.step(), running.estimate.status.value
    (True, False, 'exact')
    """

    measure: Measure
    probe: Probe
    estimate: Estimate | None = None
    cost: Cost = field(default_factory=Cost)
    finished: bool = False
    bound: Estimate | None = None
    """What is known before the first estimate."""
    _stream: Iterator[Estimate | None] | None = None

    def look(self) -> bool:
        """Take what costs nothing (`Measure.at_once`); whether there was something."""
        came_to_nothing = self.estimate is not None and self.estimate.status is Status.SKIPPED
        if self._all_there and self.bound is None and (self._stream is None or came_to_nothing):
            with contextlib.suppress(LandscopeError), self.probe.measuring():
                self.bound = self.measure.at_once(self.probe)
            if came_to_nothing and self.bound is not None:
                self.estimate = self.bound
        return self.bound is not None

    @property
    def _all_there(self) -> bool:
        """Whether weights are here as a whole and in full precision."""
        return self.probe.sharding is None and not self.probe.narrow

    def step(self) -> bool:
        """Refine once; `False` where that was the end."""
        if self._stream is None:
            reached = self._all_there or self.measure.on_shards
            self._stream = (
                self.measure.refine(self.probe) if reached else _out_of_reach(self.measure, self.probe.narrow)
            )
        found: Estimate | None = None
        with self.probe.ledger.metered() as meter, self.probe.measuring():
            try:
                found = next(self._stream)
            except StopIteration:
                self.finished = True
            except NotApplicableError as error:
                self.estimate, self.finished = Estimate.not_applicable(str(error)), True
            except BudgetSpentError:
                self.stop(Status.BUDGET_SPENT, "the budget ended")
            except (DifferentiationError, OutOfMemoryError) as error:
                self.fail(error)
        self.cost = self.cost + meter.cost
        if found is not None and not _is_looser(found, self.estimate or self.bound):
            self.estimate = found
        return not self.finished

    def fail(self, error: Exception) -> None:
        """End with an error: the best estimate so far stands, and says what happened."""
        reason = str(error) if isinstance(error, LandscopeError) else f"{type(error).__name__}: {error}"
        if self.estimate is None:
            details: dict[str, Plain] = {OUT_OF_MEMORY: True} if is_out_of_memory(error) else {}
            self.estimate, self.finished = Estimate.failed(reason, details=details), True
        else:
            self.stop(Status.INTERRUPTED, reason)

    def stop(self, status: Status, reason: str) -> None:
        """End here: the best estimate so far stands with its own error bar."""
        self.finished = True
        if isinstance(self._stream, Generator):
            self._stream.close()
        self.estimate = self._newest() or self.bound
        if self.estimate is None:
            self.estimate = Estimate(math.nan, status=Status.SKIPPED, reason=f"{reason} before a first estimate")
        elif self.estimate.status is Status.RUNNING:
            self.estimate = replace(self.estimate, status=status, reason=self.estimate.reason or reason)
        elif self.estimate.status.is_bound:
            so_far = f"{self.estimate.reason}; " if self.estimate.reason else ""
            self.estimate = replace(self.estimate, reason=so_far + reason)

    def _newest(self) -> Estimate | None:
        """The estimate so far, or what rows that others have read meanwhile say."""
        if self.estimate is not None and self.estimate.status is Status.RUNNING and self.measure.turn == 0:
            with contextlib.suppress(LandscopeError), self.probe.measuring():
                return self.measure.at_once(self.probe) or self.estimate
        return self.estimate

    def ended(self) -> Estimate:
        """The last estimate, with what it cost and the settings that define it."""
        assert self.estimate is not None, "a stream of estimates ends with one"
        if self.finished and self.estimate.status is Status.RUNNING:
            reason = self.estimate.reason or "ended above the accuracy that was asked for"
            self.estimate = replace(self.estimate, status=Status.BUDGET_SPENT, reason=reason)
        return replace(self.estimate, cost=self.cost + self.estimate.cost, settings=self.measure.settings)
