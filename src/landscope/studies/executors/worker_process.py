"""A worker process, seen from the one that started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress

from landscope.core.safe_start import SAFE, search_path
from landscope.studies.executors.base import Job
from landscope.studies.executors.card_sharing import shares
from landscope.studies.performing import Ending, Result
from landscope.studies.run_folder import RunFolder

__all__ = ["WorkerProcess", "environment"]

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
    """A process of its own session (Ctrl-C on the terminal does not reach it) that does one job at a time."""

    def __init__(self, work: str, grace: float, variables: Mapping[str, str]) -> None:
        self.gpu = variables["CUDA_VISIBLE_DEVICES"]
        self.job: Job | None = None
        self.company = 1
        """How many workers, this one included, worked at once at some time during its present job."""
        self.ready = False
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, *SAFE, "-m", "landscope.studies.worker", work, str(grace)],
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
        """The number of the process."""
        return self._process.pid

    def fileno(self) -> int:
        """What to wait for: readable when the worker has answered, or is dead."""
        return self._replies.fileno()

    def give(self, job: Job, run: RunFolder) -> None:
        """Have a job done. If the worker is dead, its silence says so."""
        self.job, self.company = job, 1
        with suppress(BrokenPipeError):
            self._jobs.write(json.dumps({"folder": str(run.folder), "stale_after": run.stale_after}).encode() + b"\n")

    def listen(self) -> Result | None:
        """The answer to the present job, if the worker has given it by now. To be called when there is something to read."""
        *lines, self._rest = (self._rest + os.read(self.fileno(), 65536)).split(b"\n")
        answers = [json.loads(line) for line in lines]
        self.ready = self.ready or bool(answers)  # its first line says no more than that
        results = [Result(Ending(a["ending"]), a["detail"], a["memory"]) for a in answers if "ending" in a]
        return results[0] if results else None

    def dead(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def last_words(self) -> str:
        """How a dead process ended, in words, with what it said last outside of any run."""
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
