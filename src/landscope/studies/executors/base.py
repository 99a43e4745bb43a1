"""What every executor does: take jobs, do those that are not done, say what happens, sum up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

from landscope.core.errors import RunFailedError
from landscope.core.schema import Plain
from landscope.studies.identity import run_key
from landscope.studies.store import RunState, Store

__all__ = ["Event", "Executor", "Job", "OnEvent", "Resources", "Summary", "ignore", "to_do"]


@dataclass(frozen=True)
class Resources:
    """What one run needs: processor cores, graphics cards, bytes of memory (0: not known)."""

    cpus: int = 1
    gpus: int = 0
    memory: int = 0


@dataclass(frozen=True)
class Job:
    """A run to be done.

    >>> Job.of({"seed": 1}).key == run_key({"seed": 1})
    True
    """

    key: str
    spec: Mapping[str, Plain]
    resources: Resources = Resources()

    @classmethod
    def of(cls, spec: Mapping[str, Plain], resources: Resources = Resources()) -> Job:  # noqa: B008 (frozen)
        """The job of a spec."""
        return cls(run_key(spec), spec, resources)


@dataclass(frozen=True)
class Event:
    """Something that happened to a run. `detail` says why, in one line."""

    kind: Literal["started", "finished", "skipped", "failed", "retried", "stopped"]
    key: str
    detail: str = ""
    worker: str = ""


OnEvent: TypeAlias = Callable[[Event], None]


def ignore(_: Event) -> None:
    """Take no notice of an event."""


@dataclass
class Summary:
    """What became of the jobs: keys of those finished now and those done before; key → error of those that failed."""

    finished: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `RunFailedError` if a run failed."""
        if self.failed:
            key, error = next(iter(self.failed.items()))
            raise RunFailedError(
                f"{len(self.failed)} of {len(self.failed) + len(self.finished) + len(self.skipped)} runs failed; the "
                f"first, {key}: {error.rstrip('.')}. The traceback is in the run's failure.txt; start it again with "
                "--retry-failed (in Python: retry_failed=True) to try them again"
            )


class Executor(Protocol):
    """A way to have runs done."""

    def run(self, jobs: Sequence[Job], *, on_event: OnEvent = ignore) -> Summary:
        """Do what is not done, and return when all of it is done or has failed.

        Asked to stop (Ctrl-C or SIGTERM), it lets the runs write their checkpoints and raises `KeyboardInterrupt`;
        another call goes on from there.
        """
        ...


def to_do(
    store: Store, jobs: Sequence[Job], summary: Summary, on_event: OnEvent, *, retry_failed: bool
) -> dict[str, Job]:
    """The jobs left to do, by key, each entered into the store. Those done, or failed and not to be retried, are told of."""
    left = {(key := store.add(job.spec).key): replace(job, key=key) for job in jobs}
    for status in store.statuses(list(left)):
        if status.state is RunState.DONE:
            if status.outcome != "done":
                store.run(status.key).tidy()
            summary.skipped.append(status.key)
            on_event(Event("skipped", status.key, "done before"))
            del left[status.key]
        elif status.state is RunState.FAILED and not retry_failed:
            summary.failed[status.key] = status.error
            on_event(Event("skipped", status.key, f"failed before: {status.error}"))
            del left[status.key]
    return left
