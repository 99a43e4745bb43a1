"""Runs as Slurm job arrays, through submitit: `pip install 'landscope[slurm]'`.

Each run is one task of an array. Before its time is over Slurm warns it; submitit then puts it back into the queue, and it
resumes from its last checkpoint. The store, and the environment that landscope is installed in, must be on a filesystem that
the nodes share. Scripts and output of the jobs are in the store's folder `slurm/`.
"""

from __future__ import annotations

import getpass
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import ModuleType
from typing import Any, Literal

from landscope.core.errors import StudyError
from landscope.models.catalogue import require
from landscope.specs.names import also_searched
from landscope.studies.executors.base import Job, JobQueue, OnEvent, Resources, Summary, ignore
from landscope.studies.executors.remote import attempt_remotely, follow
from landscope.studies.store import Store
from landscope.studies.work.attempt import Result, Work, name_of

ARRAY = 1000
"""Tasks of an array: one less than Slurm's own default limit."""
ASK_QUEUE = 15.0
"""Seconds between questions to Slurm about jobs that have said nothing."""


@dataclass(frozen=True)
class SlurmExecutor:
    """Runs are tasks of Slurm job arrays.

    >>> from landscope.studies.work.run import run_in_folder
    >>> SlurmExecutor(Store("runs"), run_in_folder, minutes=240, options={"slurm_partition": "gpu"}).parallel
    256
    """

    store: Store
    work: Work
    minutes: int = 60
    """The time limit of a task, after which it is requeued."""
    requeues: int = 20
    """How often a run may be requeued."""
    parallel: int = 256
    """How many tasks run at once."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Further parameters of submitit: slurm_partition, slurm_account, slurm_setup, slurm_signal_delay_s, …"""
    cluster: Literal["slurm", "local", "debug"] = "slurm"
    """`local` and `debug` are submitit's stand-ins for Slurm: processes here, or this one."""
    attempts: int = 3
    retry_failed: bool = False
    grace: float = 60.0

    def run(self, jobs: Sequence[Job], *, on_event: OnEvent = ignore) -> Summary:
        submitit = _submitit()
        name_of(self.work)  # refused before anything starts
        queue = JobQueue(self.store, jobs, on_event, attempts=self.attempts, retry_failed=self.retry_failed)
        follow(queue, _Arrays(submitit, self), self.grace)
        return queue.summary


@dataclass(frozen=True)
class _Task:
    """What submitit pickles and calls, and calls again once the job has been requeued."""

    work_name: str
    folder: str
    stale_after: float
    cpus: int
    modules: tuple[str, ...] = ()

    def __call__(self) -> Result:
        return attempt_remotely(self.work_name, self.folder, self.stale_after, self.cpus, self.modules)

    def checkpoint(self) -> object:
        """What to do after a time-out or preemption: the same again, from the last checkpoint."""
        return _submitit().helpers.DelayedSubmission(self)


class _Arrays:
    """Our jobs on Slurm."""

    def __init__(self, submitit: ModuleType, settings: SlurmExecutor) -> None:
        self._submitit, self._settings = submitit, settings
        self._jobs: dict[str, tuple[Job, Any]] = {}
        self._asked = time.monotonic()
        self._missing: set[str] = set()

    def submit(self, jobs: Sequence[Job]) -> None:
        store = self._settings.store
        ordered = sorted(jobs, key=lambda job: repr(job.resources))
        for needs, alike in groupby(ordered, key=lambda job: job.resources):
            same = list(alike)
            for start in range(0, len(same), ARRAY):
                array = same[start : start + ARRAY]
                work, modules = name_of(self._settings.work), also_searched()
                tasks = [
                    _Task(work, str(store.run(job.key).folder), store.stale_after, needs.cpus, modules) for job in array
                ]
                executor = self._executor(needs)
                with executor.batch():
                    handles = [executor.submit(task) for task in tasks]
                self._jobs |= {job.key: (job, handle) for job, handle in zip(array, handles, strict=True)}

    def ended(self) -> list[tuple[Job, Result | str]]:
        time.sleep(0.0 if self._settings.cluster == "debug" else 0.5)
        lost = self._lost()
        over = [(job, self._end(handle)) for job, handle in self._jobs.values() if self._over(handle, lost)]
        for job, _ in over:
            del self._jobs[job.key]
        return over

    def cancel(self) -> None:
        for _, handle in self._jobs.values():
            handle.cancel(check=False)

    def _over(self, handle: Any, lost: set[str]) -> bool:
        if (
            self._settings.cluster == "slurm"
        ):  # submitit itself would ask Slurm's accounts, which not every cluster keeps
            return handle.paths.result_pickle.exists() or handle.job_id in lost
        return handle.done()

    def _end(self, handle: Any) -> Result | str:
        if self._settings.cluster == "debug" or handle.paths.result_pickle.exists():
            error = handle.exception()
            return handle.result() if error is None else _last_line(str(error))
        words = handle.stderr() or handle.stdout() or ""
        return f"job {handle.job_id} ended without a result: {_last_line(words)}"

    def _lost(self) -> set[str]:
        """Jobs that twice in a row were not in Slurm's queue."""
        if self._settings.cluster != "slurm" or time.monotonic() - self._asked < ASK_QUEUE:
            return set()
        self._asked = time.monotonic()
        command = ["squeue", "--noheader", "--array", "--format=%i", f"--user={getpass.getuser()}"]
        answer = subprocess.run(command, capture_output=True, text=True)
        if answer.returncode:
            return set()  # Slurm does not answer now
        missing = {handle.job_id for _, handle in self._jobs.values()} - set(answer.stdout.split())
        lost, self._missing = missing & self._missing, missing
        return lost

    def _executor(self, needs: Resources) -> Any:
        settings = self._settings
        ways: dict[str, object] = {}
        if settings.cluster != "debug":
            ways[f"{settings.cluster}_max_num_timeout"] = settings.requeues
            ways[f"{settings.cluster}_python"] = shlex.join([sys.executable, "-P"])
        try:
            executor = self._submitit.AutoExecutor(settings.store.root / "slurm", settings.cluster, **ways)
            executor.update_parameters(
                name="landscope",
                timeout_min=settings.minutes,
                cpus_per_task=needs.cpus,
                gpus_per_node=needs.gpus or None,
                mem_gb=math.ceil(needs.memory / 2**30) or None,
                slurm_array_parallelism=settings.parallel,
                **settings.options,
            )
        except (RuntimeError, NameError, ValueError, AssertionError) as error:
            raise StudyError(f"submitit does not take these settings: {error}") from error
        return executor


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def _submitit() -> ModuleType:
    return require("submitit", extra="slurm", purpose="the executor slurm")
