"""Runs on this machine: worker processes that share its cores, one graphics card each, their memory watched."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import torch

from landscope.core.errors import SpecError, StoreGoneError, StudyError
from landscope.core.importing import import_function
from landscope.studies.executors.base import Job, OnEvent, Summary, ignore
from landscope.studies.executors.card_sharing import multi_process_service, warn_of_parts
from landscope.studies.executors.course import Course
from landscope.studies.executors.memory_watch import MemoryWatch, oom_kills
from landscope.studies.executors.signals import StopSignals
from landscope.studies.executors.worker_process import WorkerProcess, environment
from landscope.studies.store import Store

__all__ = ["LocalExecutor"]

COUNTS = {
    "workers": "processes that work at once",
    "per_gpu": "runs that share a graphics card",
    "attempts": "times that a run is tried",
}
STARTS = 3
"""Workers in a row, for each place there is, that may be killed while they start; after that the machine is to blame."""
TICK = 0.2
"""Seconds after which signals, memory and silent workers are looked at, when nothing else happens."""


@dataclass(frozen=True)
class LocalExecutor:
    """Do runs on this machine.

    A worker that dies (the kernel's out-of-memory killer, a crash in a library), also while it starts, costs its present run
    one of `attempts` and nothing else. Where memory was the cause, fewer workers go on; none is begun where the largest run
    seen so far would not fit into what is free.
    """

    store: Store
    work: str
    workers: int | None = None
    """None: as many as the cores allow, `per_gpu` per graphics card where runs need one."""
    gpus: Sequence[str] | None = None
    """Names as in CUDA_VISIBLE_DEVICES. None: all that there are."""
    per_gpu: int = 1
    """How many runs share a graphics card; small networks leave most of one idle."""
    mps: bool = False
    """Whether runs that share a card do so through NVIDIA's multi-process service, begun and ended here (`card_sharing`)."""
    attempts: int = 3
    retry_failed: bool = False
    grace: float = 30.0
    """Seconds that runs have to write a checkpoint when the study is asked to stop."""

    def __post_init__(self) -> None:
        for name, what in COUNTS.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise SpecError(f"{name} is the number of {what}, at least 1; {value!r} came")
        if isinstance(self.grace, bool) or not isinstance(self.grace, int | float) or not self.grace >= 0:
            raise SpecError(f"grace is a number of seconds, at least 0; {self.grace!r} came")
        if not isinstance(self.mps, bool):
            raise SpecError(f"mps is true or false; {self.mps!r} came")

    def run(self, jobs: Sequence[Job], *, on_event: OnEvent = ignore) -> Summary:
        """Do what is not done."""
        import_function(self.work)  # a wrong name is found out before any process is started
        course = Course(self.store, jobs, on_event, attempts=self.attempts, retry_failed=self.retry_failed)
        on_cards = any(job.resources.gpus for job in course.waiting)
        if on_cards:
            warn_of_parts()
        sharing = multi_process_service() if self.mps and on_cards else nullcontext(dict[str, str]())
        with sharing as service, StopSignals() as stop:
            crew = _Crew(self, course, service)
            try:
                while course.unfinished or crew.working:
                    if stop.count:
                        raise KeyboardInterrupt
                    with course.minding_the_store():
                        crew.assign()
                        crew.listen()
                        course.look_elsewhere()
            except StoreGoneError:
                raise  # there is nothing to write a checkpoint to
            except BaseException:
                with course.minding_the_store():
                    crew.stop(stop)
                raise
            finally:
                crew.dismiss()
        return course.summary


@dataclass
class _Seat:
    gpu: str
    worker: WorkerProcess | None = None


class _Crew:
    """The workers of one call, and what they are doing."""

    def __init__(self, settings: LocalExecutor, course: Course, service: Mapping[str, str]) -> None:
        self._settings, self._course, self._service = settings, course, service
        waiting = [job.resources for job in course.waiting]
        needing = sum(needs.gpus > 0 for needs in waiting)
        cards = list(_gpus() if settings.gpus is None else settings.gpus) if needing else []
        gpus = cards * settings.per_gpu
        most = max((needs.gpus for needs in waiting), default=0)
        if most > min(1, len(cards)):
            raise SpecError(
                f"a run asks for {most} GPUs; a worker on this machine has {min(1, len(cards))}. Ask for fewer, or use the "
                "executor ray or slurm"
            )
        cores = _cores()
        wanted = settings.workers or max(len(gpus), cores // max((needs.cpus for needs in waiting), default=1))
        count = max(1, min(wanted, len(waiting), len(gpus) if needing == len(waiting) > 0 else wanted))
        self._threads = max(1, cores // count)
        self._seats = [_Seat(gpus[place] if place < len(gpus) else "") for place in range(count)]
        self._limit = count
        self._memory = MemoryWatch(max((needs.memory for needs in waiting), default=0))
        self._oom_kills = oom_kills()
        self._never_ready = 0
        """Workers in a row that were killed before they could take a job."""

    @property
    def working(self) -> list[WorkerProcess]:
        """Workers with a job."""
        return [seat.worker for seat in self._seats if seat.worker and seat.worker.job]

    def assign(self) -> None:
        """Give waiting jobs to free workers, as far as memory allows."""
        for seat in sorted(self._seats, key=lambda seat: seat.worker is None):
            if seat.worker and seat.worker.job:
                continue
            if len(self.working) >= self._limit:
                self._vacate(seat)
                continue
            job = self._course.next(lambda job, seat=seat: bool(seat.gpu) or not job.resources.gpus)  # type: ignore[misc]
            if job is None:
                continue
            if self.working and not self._memory.allows(seat.worker.pid if seat.worker else None):
                self._course.put_back(job)
                return
            gpu = seat.gpu if job.resources.gpus else ""
            if seat.worker and (seat.worker.gpu != gpu or seat.worker.dead()):
                self._vacate(seat)
            if seat.worker is None:
                settings = self._settings
                variables = {**environment(self._threads, gpu, settings.per_gpu), **self._service}
                seat.worker = WorkerProcess(settings.work, settings.grace, variables)
            seat.worker.give(job, self._settings.store.run(job.key))
            for worker in self.working:
                worker.company = max(worker.company, len(self.working))
            self._course.started(job, f"worker {seat.worker.pid}")

    def listen(self) -> None:
        """Wait for a moment, and hear what workers say or that they have died."""
        speaking = wait([worker.fileno() for worker in self.working], TICK)
        for seat in self._seats:
            worker = seat.worker
            if worker is None or (job := worker.job) is None:
                continue
            self._memory.observe(worker.pid)
            gone = worker.dead()  # asked before reading: what it said before it died is then all there
            result = worker.listen() if worker.fileno() in speaking or gone else None
            self._never_ready = 0 if worker.ready else self._never_ready
            if result is not None:
                worker.job = None
                if not (result.memory and self._with_fewer(worker, job, result.detail)):
                    self._course.ended(job, result)
            elif gone:
                self._bury(seat, worker, job)

    def stop(self, signals: StopSignals) -> None:
        """Ask all to stop at a checkpoint, wait for as long as the grace lasts or until asked again, end the rest."""
        self._course.stopping = True
        for worker in self.working:
            worker.ask_to_stop()
        asked, until = signals.count, time.monotonic() + self._settings.grace
        while self.working and time.monotonic() < until and signals.count == asked:
            self.listen()
        for worker in self.working:
            worker.kill()
        while self.working:
            self.listen()

    def dismiss(self) -> None:
        """Let all workers go."""
        for seat in self._seats:
            self._vacate(seat)

    def _bury(self, seat: _Seat, worker: WorkerProcess, job: Job) -> None:
        words, out_of_memory = worker.last_words(), False
        if worker.signal() == signal.SIGKILL and (kills := oom_kills()) > self._oom_kills:
            self._oom_kills, out_of_memory = kills, True
        self._vacate(seat)
        if not worker.ready and not self._course.stopping:
            self._never_ready += 1
            most = max(STARTS, self._settings.attempts) * len(self._seats)
            if not worker.signal() or self._never_ready > most:  # no run is to blame
                times = f", {self._never_ready} times in a row" * (self._never_ready > 1)
                raise StudyError(f"a worker could not start: {words}{times}")
            words += " while it started"
        if not (out_of_memory and self._with_fewer(worker, job, words)):
            self._course.died(job, words + (": memory ran out" if out_of_memory else ""))

    def _with_fewer(self, worker: WorkerProcess, job: Job, words: str) -> bool:
        """Try a job again that ran out of memory, half as many at a time; False if it was alone with all there is."""
        if worker.company == 1 or self._course.stopping:
            return False
        self._limit = min(self._limit, worker.company // 2)
        self._course.retry(job, f"{words}; memory ran out, fewer workers go on")
        return True

    def _vacate(self, seat: _Seat) -> None:
        if seat.worker:
            seat.worker.dismiss()
            seat.worker = None


def _cores() -> int:
    """How many cores this process may use, a container's share included."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no container, or "max"
        return cores


def _gpus() -> list[str]:
    """Names of the graphics cards that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    return [str(index) for index in range(torch.cuda.device_count())]
