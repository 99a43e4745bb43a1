"""Run a function in several processes that form one group, as `torchrun` would.

They are forked from a server that has imported what takes seconds to import, once for all tests of a session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

__all__ = ["run_together", "start_together"]

mp.set_forkserver_preload(
    ["pytest", "transformers", "landscope.measures", "landscope.training", "torch._dynamo", "torch.distributed.fsdp"]
)


def run_together(work: Callable[[int, Path], None], folder: Path, processes: int = 2) -> None:
    """Call `work(rank, folder)` in each process; an exception in one of them is raised here."""
    start_together(_member, (work, processes, str(folder)), processes)


def start_together(work: Callable[..., None], words: tuple[object, ...], processes: int = 2) -> None:
    """Call `work(rank, *words)` in each process, which form no group yet."""
    mp.start_processes(work, words, processes, start_method="forkserver")


def _member(rank: int, work: Callable[[int, Path], None], processes: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=processes)
    work(rank, Path(folder))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # torch's own threads may still run, and tearing the interpreter down around them can abort
