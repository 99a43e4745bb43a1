"""One process for one tool: prepares a case, says that it is ready, and works once for every line that it is sent.

Started by `run`; it speaks JSON lines. Wall time is the clock's; CPU time is that of all threads of the process (and of the
processes that the tool started). Memory is the largest resident set above what network, data and libraries take before the
work; on a GPU, the largest sum of torch's allocations.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from .answers import Answer
from .environment import PEERS
from .memory import Memory
from .networks import Network, Subject, load
from .rows import find


def main() -> None:
    """Work until the parent closes the pipe."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a tool prints must not disturb the answers
    job = json.loads(sys.stdin.readline())
    torch.set_num_threads(job["threads"])
    torch.backends.cudnn.allow_tf32 = False  # on by default for convolutions, with three digits

    def send(message: Mapping[str, object]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    try:
        _work(job, send)
    except Exception as error:
        traceback.print_exc()
        text = " ".join(str(error).split())
        send({"failed": f"{type(error).__name__}: {text[:200]}"})
    channel.flush()
    os._exit(0)  # the tool's own threads and processes end with this one


def _work(job: dict[str, Any], send: Any) -> None:
    (row,) = find((job["row"],))
    subject = load(Network(**job["network"]), Path(job["folder"]), job["device"])
    settings, truth = job["settings"], job["truth"]
    if truth == "exact":
        subject, tool = subject.double(), row.truth.exact
    else:
        tool = row.truth.long[job["tool"]] if truth == "long" else row.tools[job["tool"]]
    x, y = subject.x[:2], subject.y[:2]
    torch.autograd.grad(F.cross_entropy(subject.model(x), y), subject.parameters)  # loads the kernels
    if job["warm_up"] and row.warm_up:
        (small, *_) = row.cases("tiny")
        tool(load(small.network, subject.folder, job["device"]), **small.settings)()  # imports count for no tool
    gc.collect()
    memory = Memory(subject.device)
    start = time.perf_counter()
    work = tool(subject, **settings)
    _wait(subject)
    send({"ready": time.perf_counter() - start, "parameters": subject.size, "version": _version(job["tool"])})
    for number, _ in enumerate(sys.stdin):
        wall, cpu = time.perf_counter(), time.process_time()
        answer: Answer = work()
        _wait(subject)
        took = {
            "wall": time.perf_counter() - wall,
            "cpu": time.process_time() - cpu + answer.cpu,
            "memory": memory.peak() + answer.memory,
        }
        path = Path(job["answers"]) / f"{number}.pt"
        torch.save(answer.tensor(), path)
        claimed = answer.claimed if answer.claimed is not None and math.isfinite(answer.claimed) else None
        send({**took, "answer": str(path), "claimed": claimed, "note": answer.note})
        del answer
        if subject.device.type == "cuda":
            torch.cuda.empty_cache()  # the next tool's turn


def _wait(subject: Subject) -> None:
    if subject.device.type == "cuda":
        torch.cuda.synchronize()


def _version(tool: str) -> str:
    """Of a peer's package; of Landscope, that of the checkout is known to the parent."""
    if tool not in PEERS:
        return ""
    try:
        return importlib.metadata.version(PEERS[tool][1].partition("==")[0])
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    main()
