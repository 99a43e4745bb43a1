"""Several workers on one graphics card: what each may use of it, and NVIDIA's multi-process service.

The service runs the kernels of several processes side by side; without it they take turns, and what a small network leaves idle
stays idle. ResNet-18, batch 64, bfloat16, compiled, one H200, one measurement of 3 to 5 s each (`benchmarks/card_sharing.py`):

    workers                                  1      5      5      8
    part of the card that one may use      all    all    2/5    1/4
    ms for a step, all workers together   2.22   1.31   1.04   0.99

Every worker has the whole card here, though parts are faster: they can be wrong. With 2/5 of that card's multiprocessors the
first loss of a VGG-19 (batch 256, bfloat16, torch 2.11) was 4.712 instead of 4.730, its first update 4,000 times too large, and
26 of 27 trainings ended in NaN, most of them within eight steps; with 1/4 (n = 2), 3/5 (2) and all of them (20), in float32 (1)
and without the service (6) none did. ResNet-18 is right with 2/5: the same first loss, and a first update within 2·10⁻⁴. So some
kernel is silently wrong there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from landscope.core.errors import SpecError, StudyError
from landscope.core.memory import GPU_SHARE

CONTROL = "nvidia-cuda-mps-control"
PERCENTAGE, PIPES, LOGS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PATIENCE = 60.0
"""Seconds that the service has to start or to end."""


def visible_gpus() -> list[str]:
    """Names of the graphics cards that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    return [str(index) for index in range(torch.cuda.device_count())]


def shares(workers: int) -> dict[str, str]:
    """The environment variables of one of this many workers on a card: its share of the memory, less what is not torch's.

    >>> shares(1), shares(8)
    ({}, {'LANDSCOPE_GPU_SHARE': '0.113'})
    """
    return {} if workers == 1 else {GPU_SHARE: f"{0.9 / workers:.3f}"}


def warn_of_parts() -> None:
    """Warn that numbers can be wrong where the environment gives each process a part of a card's multiprocessors."""
    part = os.environ.get(PERCENTAGE, "")
    if part not in ("", "100"):
        warnings.warn(
            f"{PERCENTAGE} is {part}: with 40 an H200 computed wrong losses for a VGG-19 in bfloat16, without any warning. "
            "Unset it, unless you have compared losses with those on the whole card",
            stacklevel=3,
        )


@contextmanager
def multi_process_service() -> Iterator[dict[str, str]]:
    """The variables by which workers find a service that runs for as long as the block; one named in the environment is kept."""
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
    """Send a command to the service's control program; returns what went wrong, if anything did."""
    # it serves every card, so that workers may name theirs as usual
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
