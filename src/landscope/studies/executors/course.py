"""The course of one call to an executor: which jobs wait, which are busy elsewhere, how the others ended."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from landscope.core.errors import ClaimError, RunFailedError, StoreFullError
from landscope.studies.executors.base import Event, Job, OnEvent, Summary, to_do
from landscope.studies.performing import Ending, Result
from landscope.studies.store import Store

__all__ = ["Course"]

LOOK_AGAIN = 1.0
"""Seconds between looks at runs that another process works on."""


class Course:
    """Book-keeping that is the same wherever the runs are done."""

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
        """Jobs that could be begun now."""
        return self._waiting

    @property
    def unfinished(self) -> bool:
        """Whether a job waits to be begun, here or by taking over from another process."""
        return bool(self._waiting or self._elsewhere)

    def next(self, fits: Callable[[Job], bool] = lambda _: True) -> Job | None:
        """The first waiting job that fits, which waits no longer."""
        for job in self._waiting:
            if fits(job):
                self._waiting.remove(job)
                return job
        return None

    def put_back(self, job: Job) -> None:
        """Let a job wait again, as the first."""
        self._waiting.appendleft(job)

    def started(self, job: Job, worker: str) -> None:
        """A job was begun."""
        self._tell(Event("started", job.key, worker=worker))

    def ended(self, job: Job, result: Result) -> None:
        """A job's process says how it ended. A store that is full or gone ends the study: `StoreFullError`, `StoreGoneError`."""
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
            self.died(job, "its process was asked to stop by somebody else")

    def died(self, job: Job, why: str) -> None:
        """A job's process is gone without a word. It is tried again, up to the number of attempts."""
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
                f"{why}{f', {deaths} times' * (deaths > 1)}; its last words are in {run.path('log.txt')}"
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
        """`StoreGoneError`, instead of what else comes of it, where the store's folder vanishes while the study runs."""
        try:
            if time.monotonic() - self._minded >= LOOK_AGAIN:
                self._minded = time.monotonic()
                self.store.check_there()
            yield
        except Exception:
            self.store.check_there()
            raise

    def look_elsewhere(self) -> None:
        """Take up jobs that another process has let go of, finished or not."""
        if self._elsewhere and time.monotonic() - self._looked >= LOOK_AGAIN:
            self._looked = time.monotonic()
            jobs, self._elsewhere = self._elsewhere, []
            for job in jobs:
                run = self.store.run(job.key)
                (self._elsewhere if run.held() and not run.done() else self._waiting).append(job)
