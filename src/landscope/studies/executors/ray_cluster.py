"""Runs on a Ray cluster whose machines share the store's filesystem: `pip install 'landscope[ray]'`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from landscope.models.catalogue import require
from landscope.specs.names import also_searched
from landscope.studies.executors.base import Job, JobQueue, OnEvent, Summary, ignore
from landscope.studies.executors.remote import attempt_remotely, follow
from landscope.studies.store import Store
from landscope.studies.work.attempt import Ending, Result, Work, name_of


@dataclass(frozen=True)
class RayExecutor:
    """Runs are Ray tasks, each with the resources that it needs.

    When a node or a process dies, its runs are tried again on another, up to `attempts` times, and resume from their last
    checkpoint; the claim of a dead machine is given up after the store's `stale_after` seconds.
    """

    store: Store
    work: Work
    address: str | None = None
    """Of the cluster; by default that of RAY_ADDRESS, or the one on this machine, or a new one on this machine alone."""
    attempts: int = 3
    retry_failed: bool = False
    grace: float = 30.0

    def run(self, jobs: Sequence[Job], *, on_event: OnEvent = ignore) -> Summary:
        ray = require("ray", extra="ray", purpose="the executor ray")
        name_of(self.work)  # refused before anything starts
        queue = JobQueue(self.store, jobs, on_event, attempts=self.attempts, retry_failed=self.retry_failed)
        if queue.unfinished:
            ours = not ray.is_initialized()
            if ours:
                ray.init(address=self.address, log_to_driver=False, logging_level="warning")
            try:
                follow(queue, _Tasks(ray, self), self.grace)
            finally:
                if ours:
                    ray.shutdown()
        return queue.summary


class _Tasks:
    """Our tasks on Ray."""

    def __init__(self, ray: ModuleType, settings: RayExecutor) -> None:
        self._ray, self._settings = ray, settings
        self._jobs: dict[Any, Job] = {}

    def submit(self, jobs: Sequence[Job]) -> None:
        # Ray's own retries are off: the queue counts and reports them
        task = self._ray.remote(max_retries=0)(attempt_remotely)
        store = self._settings.store
        for job in jobs:
            needs = job.resources
            chosen = task.options(
                num_cpus=needs.cpus, num_gpus=needs.gpus, memory=needs.memory or None, name=f"landscope {job.key}"
            )
            folder = str(store.run(job.key).folder)
            task_of = chosen.remote(
                name_of(self._settings.work), folder, store.stale_after, needs.cpus, also_searched()
            )
            self._jobs[task_of] = job

    def ended(self) -> list[tuple[Job, Result | str]]:
        if not self._jobs:
            time.sleep(0.5)
            return []
        ready, _ = self._ray.wait(list(self._jobs), num_returns=len(self._jobs), timeout=0.5)
        return [(self._jobs.pop(task), self._end(task)) for task in ready]

    def cancel(self) -> None:
        for task in self._jobs:
            self._ray.cancel(task)

    def _end(self, task: object) -> Result | str:
        errors = self._ray.exceptions
        try:
            return self._ray.get(task)
        except errors.TaskCancelledError:
            return Result(Ending.STOPPED, "taken back")
        except errors.RayError as error:
            return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
