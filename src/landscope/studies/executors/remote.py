"""Runs on a queueing system: submit them, follow them, resubmit those that get lost."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

import torch

from landscope.core.errors import StoreGoneError
from landscope.specs.names import import_function, search_also
from landscope.studies.executors.base import Job, JobQueue, StopSignals
from landscope.studies.store.run_folder import RunFolder
from landscope.studies.work.attempt import Result, attempt_run

LOOKED_AT = 64
"""How many of the submitted runs are looked up in the store each time, to see whether they have started."""


class Cluster(Protocol):
    """A system that does runs in its own processes."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """Submit jobs."""

    def ended(self) -> list[tuple[Job, Result | str]]:
        """Jobs that have ended since the last call, and how: as a sentence where a process died. May wait for a second."""
        ...

    def cancel(self) -> None:
        """Cancel all jobs, ending those that run."""
        ...


def follow(queue: JobQueue, cluster: Cluster, grace: float) -> None:
    """Run all jobs of a queue on a cluster."""
    going: dict[str, Job] = {}
    before: dict[str, int] = {}  # the number of attempts when a job was handed over, until it is seen to begin

    def look(jobs: Iterable[Job]) -> None:
        """The cluster does not say when it starts a run; a new attempt in the run's folder does."""
        for job in jobs:
            last = queue.store.run(job.key).latest()
            if last and last.number > before[job.key]:
                del before[job.key]
                queue.started(job, str(last.owner))

    def hear() -> None:
        look(list(islice((job for job in going.values() if job.key in before), LOOKED_AT)))
        over = cluster.ended()
        for job, _ in over:
            del going[job.key]
        for job, end in over:
            look([job] if job.key in before else [])
            if isinstance(end, Result):
                queue.ended(job, end)
            else:
                queue.died(job, end)

    with StopSignals() as stop:
        try:
            while queue.unfinished or going:
                if stop.count:
                    raise KeyboardInterrupt
                with queue.minding_the_store():
                    fresh = {job.key: job for job in iter(queue.next, None)}
                    before |= {key: queue.store.run(key).attempts for key in fresh}
                    cluster.submit(list(fresh.values()))
                    going |= fresh
                    hear()
                    queue.look_elsewhere()
        except StoreGoneError:
            cluster.cancel()  # there is nothing to write a checkpoint to
            raise
        except BaseException:
            cluster.cancel()
            queue.stop(going.values(), asked=stop.count > 0)
            until, asked = time.monotonic() + grace, stop.count
            while going and time.monotonic() < until and stop.count == asked:
                with queue.minding_the_store():
                    hear()
            raise


def attempt_remotely(work_name: str, folder: str, stale_after: float, cpus: int, modules: Sequence[str] = ()) -> Result:
    """Attempt one run in a process of a cluster, with as many threads as it has cores; `modules` are folders of spec files."""
    for place in reversed(modules):
        search_also(place)
    threads = torch.get_num_threads()
    torch.set_num_threads(cpus)
    try:
        return attempt_run(import_function(work_name), RunFolder(folder, stale_after))
    finally:
        torch.set_num_threads(threads)
