"""Work for the store and the executors to do: light, deterministic, resumable, and badly behaved where a spec says so."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from landscope.studies.executors.gpu_sharing import PERCENTAGE, PIPES
from landscope.studies.store.run_folder import RunFolder
from landscope.studies.work.attempt import raise_if_stopping, stop_requested


def chain(seed: int, steps: int) -> list[str]:
    """What an uninterrupted run finds."""
    links = [str(seed)]
    for _ in range(steps):
        links.append(hashlib.sha256(links[-1].encode()).hexdigest())
    return links


def work(spec: dict, folder: str) -> None:
    """A hash chain, one link per step, with a checkpoint after each; what else happens is in the spec."""
    run = RunFolder(folder)
    state = run.path("state/links.json")
    links = json.loads(state.read_text()) if state.exists() else [str(spec["seed"])]
    sys.stdout.write(f"begins with {len(links)} links\n")
    while len(links) <= spec["steps"]:
        misbehave(spec, len(links), run)
        links.append(hashlib.sha256(links[-1].encode()).hexdigest())
        run.write_json("state/links.json", links)
        raise_if_stopping()
        time.sleep(spec.get("pause", 0))
    run.write_bytes("weights/final.safetensors", "".join(links).encode())
    run.finish({"seed": spec["seed"], "last": links[-1], "count": len(links)})


def surroundings(spec: dict, folder: str) -> None:
    """What a worker was given."""
    names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "LANDSCOPE_GPU_SHARE", PERCENTAGE, PIPES)
    RunFolder(folder).finish({"seed": spec["seed"], **{name: os.environ.get(name) for name in names}})


def misbehave(spec: dict, step: int, run: RunFolder) -> None:
    if step != spec.get("at", 1):
        return
    first = run.attempts <= spec.get("times", 10**9)
    if spec.get("raise") and first:
        raise ValueError(spec["raise"])
    if spec.get("signal") and first:
        os.kill(os.getpid(), spec["signal"])
    if spec.get("full"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if spec.get("memory"):  # there is room for one at a time
        Path(spec["memory"], run.key).touch()
        wait_for(lambda: len(os.listdir(spec["memory"])) > 1 or run.attempts > 1)
        if run.attempts == 1:
            raise MemoryError("no room for both")
    if spec.get("until"):  # a file that the test makes
        wait_for(lambda: stop_requested() or os.path.exists(spec["until"]))


def wait_for(happened) -> None:
    for _ in range(6000):
        if happened():
            return
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGABRT)
