"""Trains in child processes that are killed at random moments: `python loop_killed.py folder kills seed`.

This process never computes, so that its children can be forked from it: what they need is imported once.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch import Tensor

from landscope.training.callbacks import Callback
from landscope.training.loop.train import train

SPEC = {
    "model": {"name": "mlp", "widths": [16], "batch_norm": True, "dropout": 0.2},
    "data": "circles",
    "epochs": 12,
    "batch_size": 16,
    "optimizer": {"name": "adam", "lr": 0.01},
    "sam": 0.05,
    "averaging": {"kind": "ema", "start": 0.2},
    "early_stopping": {},
    "snapshots": [5, 40],
    "snapshots_below": [0.6, 0.5, 0.01],
}


class Heartbeat(Callback):
    """A byte down a pipe after each step."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def on_step(self, step: int, loss: Tensor, lr: float) -> None:
        os.write(self._pipe, b".")


def attempt(folder: Path, beats: int, spins: int) -> bool:
    """Train in a child, killed after this many steps and some turns of a loop; whether the kill was before its end."""
    reading, beating = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        train(SPEC, folder=folder, checkpoint_every=0, callbacks=[Heartbeat(beating)])
        os._exit(0)
    os.close(beating)
    with open(reading, "rb", buffering=0) as pipe:
        seen = 0
        while seen < beats and (received := pipe.read(1)):
            seen += len(received)
        for _ in range(spins):
            pass
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = torch.Generator().manual_seed(seed)
    killed = 0
    for _ in range(kills):
        beats, spins = (int(torch.randint(1, high, (1,), generator=rng)) for high in (84 // kills, 100_000))
        killed += attempt(folder, beats, spins)
    train(SPEC, folder=folder)
    sys.stdout.write(f"{killed}\n")
