"""What a measure is: a frozen dataclass of its settings that turns a probe into an estimate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

from landscope.core.errors import BudgetSpentError, DifferentiationError, NotApplicableError, OutOfMemoryError
from landscope.core.estimate import Estimate
from landscope.core.json import Plain
from landscope.core.memory import is_out_of_memory
from landscope.core.registry import Registry
from landscope.measures.facts import Better, Family, check_facts
from landscope.probe.guards import still
from landscope.probe.probe import Probe

if TYPE_CHECKING:
    from typing import Self

__all__ = ["MEASURES", "OUT_OF_MEMORY", "Measure", "failure", "register"]

MEASURES: Registry[type[Measure]] = Registry("measure")

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


def failure(error: Exception, reason: str) -> Estimate:
    """The estimate that an error leaves.

    >>> failure(MemoryError(), "one sample does not fit").details
    {'out_of_memory': True}
    """
    return Estimate.failed(reason, details={OUT_OF_MEMORY: True} if is_out_of_memory(error) else {})


@dataclass(frozen=True, kw_only=True)
class Measure(ABC):
    """Base of all measures.

    A subclass is a frozen dataclass whose fields are its settings, registered under one exact key. It implements
    `_measure`; calling it adds cost and settings, and turns an estimate that is not available into a status with a reason.
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
    cost: ClassVar[str]
    """What it takes, in words, with the default settings."""
    reference: ClassVar[str] = ""
    """The paper that defines it, where there is one."""
    invariant_to: ClassVar[frozenset[str]] = frozenset()
    """Function-preserving transformations that leave the value unchanged (names of `landscope.invariance`)."""
    same_value_as: ClassVar[str] = ""
    """The key of a measure whose value this one has, too: where both were measured, a report compares the other one."""
    turn: ClassVar[tuple[int, int] | None] = None
    """Place in the order under a budget, lowest first; `None`: (0, 0) where a few passes are enough to begin, else (2, 0)."""

    seed: int = 0

    @abstractmethod
    def _measure(self, probe: Probe) -> Estimate:
        """The estimate at a probe; raises `NotApplicableError` where it is not defined."""

    @abstractmethod
    def passes(self, probe: Probe) -> float:
        """About how many passes over the data it will take (see `landscope.probe.totals`)."""

    def least(self, probe: Probe) -> float:
        """Passes below which it is not worth beginning: all of them, unless the effort can be bounded."""
        return self.passes(probe)

    def within(self, passes: float, probe: Probe) -> Measure:
        """The same measure with its effort bounded to about so many passes, where it can be bounded."""
        return self

    def __call__(self, probe: Probe) -> Estimate:
        """Measure."""
        with probe.ledger.metered() as meter, probe.measuring():
            try:
                with still(probe):
                    estimate = self._measure(probe)
            except NotApplicableError as error:
                estimate = Estimate.not_applicable(str(error))
            except (DifferentiationError, OutOfMemoryError, BudgetSpentError) as error:
                estimate = failure(error, str(error))
        return replace(estimate, cost=meter.cost + estimate.cost, settings=self.settings)

    def with_settings(self, **settings: object) -> Self:
        """The same measure with some settings changed."""
        return replace(self, **settings)  # type: ignore[arg-type]

    @property
    def settings(self) -> dict[str, Plain]:
        """The settings that define the value, in the types of JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
