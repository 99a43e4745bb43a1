"""Runs on this machine: worker processes that share its cores, one graphics card each, their memory watched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import torch

from landscope.core import search_path
from landscope.core.errors import SpecError, StoreGoneError, StudyError
from landscope.core.memory import available_bytes
from landscope.studies.executors.base import Job, JobQueue, OnEvent, StopSignals, Summary, ignore, usable_cores
from landscope.studies.executors.gpu_sharing import multi_process_service, shares, visible_gpus, warn_of_parts
from landscope.studies.store import Store
from landscope.studies.store.run_folder import RunFolder
from landscope.studies.work.attempt import Ending, Result, Work, name_of

# A worker process, as the process that started it sees it.


THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def environment(threads: int, gpu: str, sharing: int = 1) -> dict[str, str]:
    """The variables of a worker: its share of the processor, its part of a graphics card or none, and where to import from.

    Fewer threads that the environment asks for are kept.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    threads = min(threads, int(asked)) if asked.isdecimal() and int(asked) else threads
    return {
        **os.environ,
        **(shares(sharing) if gpu else {}),
        **dict.fromkeys(THREADS, str(threads)),
        "CUDA_VISIBLE_DEVICES": gpu,
        "PYTHONPATH": search_path(),
        "PYTHONUNBUFFERED": "1",  # the last words of a process that is killed are in its log
    }


class WorkerProcess:
    """A process of its own session (Ctrl-C on the terminal does not reach it) that runs one job at a time."""

    def __init__(self, work: Work, grace: float, variables: Mapping[str, str]) -> None:
        self.gpu = variables["CUDA_VISIBLE_DEVICES"]
        self.job: Job | None = None
        self.company = 1
        """How many workers, this one included, worked at once at some time during its present job."""
        self.ready = False
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "landscope.studies.work.worker", name_of(work), str(grace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env=dict(variables),
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._jobs, self._replies = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """What to wait on: readable once the worker has answered or died."""
        return self._replies.fileno()

    def give(self, job: Job, run: RunFolder) -> None:
        """Give the worker a job. A dead worker is noticed because it does not answer."""
        self.job, self.company = job, 1
        with suppress(BrokenPipeError):
            self._jobs.write(json.dumps({"folder": str(run.folder), "stale_after": run.stale_after}).encode() + b"\n")

    def listen(self) -> Result | None:
        """The answer to the current job, if it is complete by now. Call this when there is something to read."""
        *lines, self._rest = (self._rest + os.read(self.fileno(), 65536)).split(b"\n")
        answers = [json.loads(line) for line in lines]
        self.ready = self.ready or bool(answers)  # its first line says no more than that
        results = [Result(Ending(a["ending"]), a["detail"], a["memory"]) for a in answers if "ending" in a]
        return results[0] if results else None

    def dead(self) -> bool:
        return self._process.poll() is not None

    def last_words(self) -> str:
        """How a dead process ended, as a sentence, with its last output outside of any run."""
        code = self._process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._words.seek(max(0, os.fstat(self._words.fileno()).st_size - 2000))
        return f"its process {how} {self._words.read().decode(errors='replace').strip()}".strip()

    def signal(self) -> int:
        """The signal that ended it, 0 where none did; those that the kernel takes when memory runs out end by SIGKILL."""
        return max(0, -(self._process.poll() or 0))

    def ask_to_stop(self) -> None:
        """Ask the work to stop at a checkpoint, and the process to end then."""
        self._process.terminate()

    def dismiss(self) -> None:
        """Let an idle worker go."""
        self._jobs.close()
        self.kill() if self.job else self._process.wait()
        self._replies.close()
        self._words.close()

    def kill(self) -> None:
        """End the process and all that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


# How much memory the workers took, and whether another one would fit.


class MemoryWatch:
    """The largest peak that any worker has had.

    >>> watch = MemoryWatch(expected=10**18)
    >>> watch.allows(), MemoryWatch().allows()
    (False, True)
    """

    def __init__(self, expected: int = 0) -> None:
        self.peak = expected

    def observe(self, pid: int) -> None:
        self.peak = max(self.peak, _bytes(pid, "VmHWM"))

    def allows(self, pid: int | None = None) -> bool:
        """Whether a run as large as the largest so far fits into free memory, in a new worker or in an existing one."""
        present = 0 if pid is None else _bytes(pid, "VmRSS")
        return available_bytes(torch.device("cpu")) >= self.peak - present


def oom_kills() -> int:
    """How many processes the kernel has killed so far because memory ran out; 0 where it does not say."""
    count = 0
    for counters in (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events")):
        try:
            lines = counters.read_text().splitlines()
        except OSError:
            continue
        count += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return count


def _bytes(pid: int, field: str) -> int:
    """A field of the kernel's account of a process; 0 where there is none."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


# The executor.


COUNTS = {
    "workers": "processes that work at once",
    "per_gpu": "runs that share a graphics card",
    "attempts": "times that a run is tried",
}
STARTS = 3
"""Workers in a row, per place, that may be killed while they start; after that the machine is to blame."""
TICK = 0.2
"""Seconds after which signals, memory and silent workers are looked at, when nothing else happens."""


@dataclass(frozen=True)
class LocalExecutor:
    """Runs are processes on this machine.

    A worker that dies (the kernel's out-of-memory killer, a crash in a library), also while it starts, costs its present run
    one of `attempts` and nothing else. Where memory was the cause, fewer workers continue; none is started where the largest run
    seen so far would not fit into what is free.
    """

    store: Store
    work: Work
    workers: int | None = None
    """By default as many as the cores allow, and `per_gpu` per graphics card where runs need one."""
    gpus: Sequence[str] | None = None
    """Names as in CUDA_VISIBLE_DEVICES; by default all of them."""
    per_gpu: int = 1
    """How many runs share a graphics card; small networks leave most of one idle."""
    mps: bool = False
    """Whether runs that share a card do so through NVIDIA's multi-process service, started and ended here (`gpu_sharing`)."""
    attempts: int = 3
    retry_failed: bool = False
    grace: float = 30.0
    """Seconds that runs have to write a checkpoint when the study is asked to stop."""

    def __post_init__(self) -> None:
        for name, what in COUNTS.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise SpecError(f"{name}: expected a number of {what}, at least 1, got {value!r}")
        if isinstance(self.grace, bool) or not isinstance(self.grace, int | float) or not self.grace >= 0:
            raise SpecError(f"grace: expected a number of seconds, at least 0, got {self.grace!r}")
        if not isinstance(self.mps, bool):
            raise SpecError(f"mps: expected true or false, got {self.mps!r}")

    def run(self, jobs: Sequence[Job], *, on_event: OnEvent = ignore) -> Summary:
        name_of(self.work)  # refused before anything starts
        queue = JobQueue(self.store, jobs, on_event, attempts=self.attempts, retry_failed=self.retry_failed)
        on_cards = any(job.resources.gpus for job in queue.waiting)
        if on_cards:
            warn_of_parts()
        sharing = multi_process_service() if self.mps and on_cards else nullcontext(dict[str, str]())
        with sharing as service, StopSignals() as stop:
            crew = _Crew(self, queue, service)
            try:
                while queue.unfinished or crew.working:
                    if stop.count:
                        raise KeyboardInterrupt
                    with queue.minding_the_store():
                        crew.assign()
                        crew.listen()
                        queue.look_elsewhere()
            except StoreGoneError:
                raise  # there is nothing to write a checkpoint to
            except BaseException:
                with queue.minding_the_store():
                    crew.stop(stop)
                raise
            finally:
                crew.dismiss()
        return queue.summary


@dataclass
class _Seat:
    gpu: str
    worker: WorkerProcess | None = None


class _Crew:
    """The workers of one call, and what they are doing."""

    def __init__(self, settings: LocalExecutor, queue: JobQueue, service: Mapping[str, str]) -> None:
        self._settings, self._queue, self._service = settings, queue, service
        waiting = [job.resources for job in queue.waiting]
        needing = sum(needs.gpus > 0 for needs in waiting)
        cards = list(visible_gpus() if settings.gpus is None else settings.gpus) if needing else []
        gpus = cards * settings.per_gpu
        most = max((needs.gpus for needs in waiting), default=0)
        if most > min(1, len(cards)):
            raise SpecError(
                f"a run asks for {most} GPUs; a worker on this machine has {min(1, len(cards))}. Ask for fewer, or use the "
                "executor ray or slurm"
            )
        cores = usable_cores()
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
        return [seat.worker for seat in self._seats if seat.worker and seat.worker.job]

    def assign(self) -> None:
        """Give waiting jobs to free workers, as far as memory allows."""
        for seat in sorted(self._seats, key=lambda seat: seat.worker is None):
            if seat.worker and seat.worker.job:
                continue
            if len(self.working) >= self._limit:
                self._vacate(seat)
                continue
            job = self._queue.next(lambda job, seat=seat: bool(seat.gpu) or not job.resources.gpus)  # type: ignore[misc]
            if job is None:
                continue
            if self.working and not self._memory.allows(seat.worker.pid if seat.worker else None):
                self._queue.put_back(job)
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
            self._queue.started(job, f"worker {seat.worker.pid}")

    def listen(self) -> None:
        """Wait for a moment, and collect answers and deaths of workers."""
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
                    self._queue.ended(job, result)
            elif gone:
                self._bury(seat, worker, job)

    def stop(self, signals: StopSignals) -> None:
        """Ask all to stop at a checkpoint, wait for as long as the grace lasts or until asked again, end the rest."""
        for worker in self.working:
            worker.ask_to_stop()
        self._queue.stop([worker.job for worker in self.working if worker.job], asked=signals.count > 0)
        asked, until = signals.count, time.monotonic() + self._settings.grace
        while self.working and time.monotonic() < until and signals.count == asked:
            self.listen()
        for worker in self.working:
            worker.kill()
        while self.working:
            self.listen()

    def dismiss(self) -> None:
        for seat in self._seats:
            self._vacate(seat)

    def _bury(self, seat: _Seat, worker: WorkerProcess, job: Job) -> None:
        words, out_of_memory = worker.last_words(), False
        if worker.signal() == signal.SIGKILL and (kills := oom_kills()) > self._oom_kills:
            self._oom_kills, out_of_memory = kills, True
        self._vacate(seat)
        if not worker.ready and not self._queue.stopping:
            self._never_ready += 1
            most = max(STARTS, self._settings.attempts) * len(self._seats)
            if not worker.signal() or self._never_ready > most:  # no run is to blame
                times = f", {self._never_ready} times in a row" * (self._never_ready > 1)
                raise StudyError(f"a worker could not start: {words}{times}")
            words += " while it started"
        if not (out_of_memory and self._with_fewer(worker, job, words)):
            self._queue.died(job, words + (": memory ran out" if out_of_memory else ""))

    def _with_fewer(self, worker: WorkerProcess, job: Job, words: str) -> bool:
        """Retry a job that ran out of memory with half as many workers; False if it had the machine to itself."""
        if worker.company == 1 or self._queue.stopping:
            return False
        self._limit = min(self._limit, worker.company // 2)
        self._queue.retry(job, f"{words}; memory ran out, fewer workers continue")
        return True

    def _vacate(self, seat: _Seat) -> None:
        if seat.worker:
            seat.worker.dismiss()
            seat.worker = None
