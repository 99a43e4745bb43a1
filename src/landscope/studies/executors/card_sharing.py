"""Several workers on one graphics card: what each may use of it, and NVIDIA's multi-process service.

The service runs the kernels of several processes side by side; without it they take turns, and what a small network leaves idle
stays idle. Under it a worker has twice its even part of the card's multiprocessors: no kernel spreads over all of them, and
while some workers pause the others fill the card. ResNet-18, batch 64, bfloat16, compiled, one H200, one measurement of 5 s each
by a forerunner of `benchmarks/card_sharing.py`:

    workers                                  1      5      5      5      8
    part of the card that one may use      all    all    2/5    1/4    1/4
    ms for a step, all workers together   2.16   1.30   1.07   1.24   1.00
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from landscope.core.errors import SpecError, StudyError
from landscope.core.memory import GPU_SHARE

__all__ = ["multi_process_service", "shares"]

CONTROL = "nvidia-cuda-mps-control"
PERCENTAGE, PIPES, LOGS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PATIENCE = 60.0
"""Seconds that the service has to start or to end."""


def shares(workers: int) -> dict[str, str]:
    """The variables of one of so many workers on a card: its part of the memory and, under the service, of the multiprocessors.

    Some memory is left for what is not torch's. A percentage that the environment has already stays.

    >>> shares(1), shares(8)[GPU_SHARE], shares(8)[PERCENTAGE]
    ({}, '0.113', '25')
    """
    if workers == 1:
        return {}
    return {GPU_SHARE: f"{0.9 / workers:.3f}", PERCENTAGE: os.environ.get(PERCENTAGE, str(min(100, 200 // workers)))}


@contextmanager
def multi_process_service() -> Iterator[dict[str, str]]:
    """The variables by which workers find a service that lasts as long as the block; one that the environment names stays."""
    if PIPES in os.environ:
        yield {}
        return
    if shutil.which(CONTROL) is None:
        raise SpecError(f"mps: {CONTROL}, which comes with NVIDIA's driver, is not on the PATH; leave mps=true out")
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        found = {PIPES: folder, LOGS: folder}
        if trouble := _control(found, "-d"):
            raise StudyError(f"mps: the multi-process service could not be started: {trouble}")
        try:
            yield found
        finally:
            if trouble := _control(found, said="quit\n"):
                warnings.warn(f"the multi-process service could not be ended: {trouble}", stacklevel=3)


def _control(service: Mapping[str, str], *arguments: str, said: str = "") -> str:
    """Have the service's control program do something; what went wrong, if anything did."""
    # it serves every card, so that workers may name theirs as ever
    variables = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"} | dict(service)
    with tempfile.TemporaryFile() as words:  # a pipe would be held open by the service itself
        try:
            ended = subprocess.run(
                [CONTROL, *arguments],
                input=said.encode(),
                stdout=words,
                stderr=words,
                env=variables,
                timeout=PATIENCE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        words.seek(0)
        return "" if ended.returncode == 0 else words.read().decode(errors="replace").strip() or f"{ended.returncode}"
