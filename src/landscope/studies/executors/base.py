"""What every executor does: take jobs, run those that are not done, report events, sum up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Literal, Protocol, TypeAlias

from landscope.core.errors import ClaimError, RunFailedError, StoreFullError
from landscope.core.json import Plain
from landscope.core.text import counted
from landscope.studies.store import RunState, Store
from landscope.studies.store.identity import run_key
from landscope.studies.work.attempt import Ending, Result


@dataclass(frozen=True)
class Resources:
    """What one run needs: processor cores, graphics cards, bytes of memory (0: not known)."""

    cpus: int = 1
    gpus: int = 0
    memory: int = 0


@dataclass(frozen=True)
class Job:
    """A run to be run.

    >>> Job.of({"seed": 1}).key == run_key({"seed": 1})
    True
    """

    key: str
    spec: Mapping[str, Plain]
    resources: Resources = Resources()

    @classmethod
    def of(cls, spec: Mapping[str, Plain], resources: Resources = Resources()) -> Job:  # noqa: B008 (frozen)
        return cls(run_key(spec), spec, resources)


@dataclass(frozen=True)
class Event:
    """What happened to a run; `detail` gives the reason in one line."""

    kind: Literal["started", "finished", "skipped", "failed", "retried", "stopping", "stopped"]
    key: str
    detail: str = ""
    worker: str = ""


OnEvent: TypeAlias = Callable[[Event], None]


def ignore(_: Event) -> None:
    """Ignore an event."""


@dataclass
class Summary:
    """How the jobs ended: keys of those finished now and those done before; key → error of those that failed."""

    finished: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `RunFailedError` if a run failed."""
        if self.failed:
            key, error = next(iter(self.failed.items()))
            total, them = len(self.failed) + len(self.finished) + len(self.skipped), "it"
            if len(self.failed) > 1:
                key, them = f"the first, {key}", "them"
            raise RunFailedError(
                f"{len(self.failed)} of {counted(total, 'run')} failed; {key}: {error.rstrip('.')}. The traceback is in "
                f"failure.txt of its folder under runs; --retry-failed (in Python: retry_failed=True) tries {them} again"
            )


def usable_cores() -> int:
    """How many cores this process may use, a container's share included."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no container, or "max"
        return cores


class Executor(Protocol):
    """A way to run runs."""

    def run(self, jobs: Sequence[Job], *, on_event: OnEvent = ignore) -> Summary:
        """Run what is not done, and return when every job is done or has failed.

        Asked to stop (Ctrl-C or SIGTERM), it lets the runs write their checkpoints and raises `KeyboardInterrupt`;
        another call resumes them.
        """
        ...


def _entered(store: Store, job: Job) -> str:
    """The key of a job's run, entered into the store; the spec of one that has a record is not read."""
    there = all(store.run_path(job.key, name).exists() for name in ("spec.json", "record.json"))
    return job.key if there else store.add(job.spec).key


def to_do(
    store: Store, jobs: Sequence[Job], summary: Summary, on_event: OnEvent, *, retry_failed: bool
) -> dict[str, Job]:
    """The jobs left to do, by key, each entered into the store. Those done, or failed and not to be retried, are reported."""
    left = {key: replace(job, key=key) for job in jobs for key in [_entered(store, job)]}
    for status in store.statuses(list(left)):
        if status.state is not RunState.DONE:
            store.add(left[status.key].spec)  # whatever its folder holds
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


# The jobs of one call to an executor: which are waiting, which another process runs, how the others ended.


LOOK_AGAIN = 1.0
"""Seconds between looks at runs that another process works on."""


class JobQueue:
    """The bookkeeping that all executors share."""

    def __init__(
        self, store: Store, jobs: Sequence[Job], on_event: OnEvent, *, attempts: int, retry_failed: bool
    ) -> None:
        self.store = store
        self.summary = Summary()
        self.stopping = False
        self._tell = on_event
        self._attempts = attempts
        self._waiting = deque(to_do(store, jobs, self.summary, on_event, retry_failed=retry_failed).values())
        store.check_there()
        self._elsewhere: list[Job] = []
        self._looked = self._minded = time.monotonic()
        self._deaths: Counter[str] = Counter()

    @property
    def waiting(self) -> Sequence[Job]:
        """Jobs that could start now."""
        return self._waiting

    @property
    def unfinished(self) -> bool:
        """Whether a job is waiting to be started, here or by taking over from another process."""
        return bool(self._waiting or self._elsewhere)

    def next(self, fits: Callable[[Job], bool] = lambda _: True) -> Job | None:
        """Take the first waiting job that fits."""
        for job in self._waiting:
            if fits(job):
                self._waiting.remove(job)
                return job
        return None

    def put_back(self, job: Job) -> None:
        """Let a job wait again, as the first."""
        self._waiting.appendleft(job)

    def started(self, job: Job, worker: str) -> None:
        self._tell(Event("started", job.key, worker=worker))

    def stop(self, going: Iterable[Job], asked: bool) -> None:
        """From here on an ending does not count as a failure; if this was `asked` for, running jobs are reported as stopping."""
        self.stopping = True
        for job in going if asked else ():
            self._tell(Event("stopping", job.key))

    def ended(self, job: Job, result: Result) -> None:
        """A job's process reports how it ended. A full or vanished store ends the study: `StoreFullError`, `StoreGoneError`."""
        if result.ending not in (Ending.FINISHED, Ending.SKIPPED):
            self.store.check_there()
        if result.ending is Ending.FINISHED:
            self.summary.finished.append(job.key)
            self._tell(Event("finished", job.key))
        elif result.ending is Ending.SKIPPED:
            self.summary.skipped.append(job.key)
            self._tell(Event("skipped", job.key, "done by another process"))
        elif result.ending is Ending.FAILED:
            self.summary.failed[job.key] = result.detail
            self._tell(Event("failed", job.key, result.detail))
        elif result.ending is Ending.BUSY:
            self._elsewhere.append(job)
        elif result.ending is Ending.FULL:
            self._tell(Event("stopped", job.key, result.detail))
            if not self.stopping:
                raise StoreFullError(result.detail)
        elif self.stopping:
            self._tell(Event("stopped", job.key, result.detail))
        else:
            self.died(job, "another process asked it to stop")

    def died(self, job: Job, why: str) -> None:
        """A job's process died without an answer. It is tried again, up to the number of attempts."""
        run = self.store.run(job.key)
        if run.done():
            self.ended(job, Result(Ending.FINISHED))
        elif self.stopping:
            self.ended(job, Result(Ending.STOPPED, why))
        elif (deaths := self._deaths[job.key] + 1) < self._attempts:
            self._deaths[job.key] = deaths
            self.retry(job, why)
        else:
            error = RunFailedError(
                f"{why}{f', {deaths} times' * (deaths > 1)}; its last output is in {run.path('log.txt')}"
            )
            try:
                with run.claim():
                    run.fail(error)
            except ClaimError as busy:
                self.ended(job, Result(Ending.BUSY, str(busy)))
            else:
                self.ended(job, Result(Ending.FAILED, str(error)))

    def retry(self, job: Job, why: str) -> None:
        """Try a job again, after the others."""
        self._waiting.append(job)
        self._tell(Event("retried", job.key, why))

    @contextmanager
    def minding_the_store(self) -> Iterator[None]:
        """Turn whatever follows from the store's folder vanishing during a study into `StoreGoneError`."""
        try:
            if time.monotonic() - self._minded >= LOOK_AGAIN:
                self._minded = time.monotonic()
                self.store.check_there()
            yield
        except Exception:
            self.store.check_there()
            raise

    def look_elsewhere(self) -> None:
        """Take over jobs that another process has released, finished or not."""
        if self._elsewhere and time.monotonic() - self._looked >= LOOK_AGAIN:
            self._looked = time.monotonic()
            jobs, self._elsewhere = self._elsewhere, []
            for job in jobs:
                run = self.store.run(job.key)
                (self._elsewhere if run.held() and not run.done() else self._waiting).append(job)


# Ctrl-C and SIGTERM, noted instead of acted on, so that a study stops cleanly.


class StopSignals:
    """While it lasts, `count` says how often this process was asked to stop. Only the main thread can be asked.

    >>> with StopSignals() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.count
    1
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
