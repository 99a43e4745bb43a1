"""A process that runs one run after another: `python -m landscope.studies.work.worker WORK GRACE`.

It reads one folder per line from standard input and answers each with a line of JSON on standard output; both belong to the
process that started it. It is kept for many runs, because importing torch takes longer than a short run.

On SIGTERM, or when the process that started it is gone (its input ends), the work is asked to stop at a checkpoint; after GRACE
more seconds the process ends, whatever happens.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from queue import SimpleQueue
from typing import BinaryIO

from landscope.core.memory import keep_to_gpu_share
from landscope.specs.names import import_function
from landscope.studies.store.run_folder import RunFolder
from landscope.studies.work.attempt import attempt_run, request_stop, stop_requested


def main(work_name: str, grace: float) -> None:
    """Run what the input asks for, until it ends."""
    jobs, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # the work's own output must not be taken for an answer
    faulthandler.enable()

    runs: SimpleQueue[RunFolder | None] = SimpleQueue()

    def stop(*_: object) -> None:
        request_stop()
        runs.put(None)
        last = threading.Timer(grace, os._exit, (1,))
        last.daemon = True
        last.start()

    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=_listen, args=(jobs, runs, stop), daemon=True).start()
    keep_to_gpu_share()
    work = import_function(work_name)
    _say(replies, {"ready": os.getpid()})
    while not stop_requested() and (run := runs.get()) is not None:
        _say(replies, asdict(attempt_run(work, run)))
    os._exit(0)  # torch's own threads may still run, and tearing the interpreter down around them can abort


def _listen(jobs: BinaryIO, runs: SimpleQueue[RunFolder | None], stop: Callable[[], None]) -> None:
    for line in jobs:
        job = json.loads(line)
        runs.put(RunFolder(job["folder"], job["stale_after"]))
    stop()


def _say(replies: BinaryIO, answer: dict[str, object]) -> None:
    try:
        replies.write(json.dumps(answer).encode() + b"\n")
    except BrokenPipeError:  # the reader is gone; the store knows what was done
        request_stop()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
