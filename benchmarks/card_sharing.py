"""How long a training step takes when several trainings share a graphics card.

    python benchmarks/card_sharing.py [--device cuda] [--workers 1 5 8] [--parts even double all] [--network resnet18]
                                      [--batch 64] [--seconds 5] [--rounds 1]

So many processes train the same network on random images, each with a part of the card's multiprocessors: an even one, twice
that (what `-e per_gpu=N -e mps=true` gives), or all of them. All begin to count at the same moment and stop some seconds later.
A row has the time of a step of all of them together (the sum of their rates, inverted), the median over rounds and their range.
NVIDIA's multi-process service is begun and ended here, unless the environment names one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from contextlib import nullcontext
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import torch
from torch import Tensor

from landscope.core.seeding import generator
from landscope.studies.executors.card_sharing import PERCENTAGE, multi_process_service
from landscope.training.callbacks import Callback
from landscope.training.loop import train

WARM, ROWS = 20, 4096
"""Steps before counting, in which they are compiled and recorded; images."""


class Counter(Callback):
    """Counts steps between two moments that all processes share."""

    def __init__(self, begin: Barrier, seconds: float) -> None:
        self._begin, self._seconds = begin, seconds
        self._start, self._first, self.rate = 0.0, 0, 0.0

    def on_step(self, step: int, loss: Tensor, lr: float) -> None:
        """Wait for the others after the first steps; look at the clock every ten."""
        del lr
        if step == WARM:
            loss.item()  # waits for the device
            self._begin.wait()
            self._start, self._first = time.monotonic(), step
        elif step > WARM and step % 10 == 0 and not self.rate:
            loss.item()
            elapsed = time.monotonic() - self._start
            if elapsed >= self._seconds:
                self.rate = (step - self._first) / elapsed


def work(begin: Barrier, rates: Queue[float], network: str, batch: int, seconds: float, device: str) -> None:
    """One of the trainings; it goes on until all have counted."""
    rng = generator(0, "benchmark", network)
    data = {"train": (torch.randn(ROWS, 3, 32, 32, generator=rng), torch.randint(0, 10, (ROWS,), generator=rng))}
    spec = {
        "model": network,
        "epochs": 10**6,
        "evaluate_every": 10**6,
        "batch_size": batch,
        "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
        "augmentation": {"crop": 4, "flip": True},
        **({"precision": "bfloat16", "channels_last": True, "compile": True} if device == "cuda" else {}),
    }
    counter, slack = Counter(begin, seconds), 0.5
    ended: list[float] = []

    def enough() -> bool:
        if counter.rate and not ended:
            ended.append(time.monotonic())
        return bool(ended) and time.monotonic() - ended[0] > slack

    train(spec, data=data, device=device, progress=False, callbacks=[counter], should_stop=enough)
    rates.put(counter.rate)


def milliseconds(workers: int, part: int, chosen: argparse.Namespace) -> float:
    """Of a step of all the trainings together."""
    spawn = multiprocessing.get_context("spawn")
    begin, rates = spawn.Barrier(workers), spawn.Queue()
    os.environ[PERCENTAGE] = str(part)
    settings = (begin, rates, chosen.network, chosen.batch, chosen.seconds, chosen.device)
    processes = [spawn.Process(target=work, args=settings) for _ in range(workers)]
    for process in processes:
        process.start()
    total = sum(rates.get() for _ in processes)
    for process in processes:
        process.join()
    return 1000 / total


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 5, 8])
    parser.add_argument("--parts", nargs="+", choices=("even", "double", "all"), default=["even", "double", "all"])
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=1)
    chosen = parser.parse_args()
    with multi_process_service() if chosen.device == "cuda" else nullcontext({}) as service:
        os.environ.update(service)
        print(f"{chosen.network}, batch {chosen.batch}, {chosen.device}\n\nworkers  part  ms a step of all")
        for workers in chosen.workers:
            parts = {"even": 100 // workers, "double": min(100, 200 // workers), "all": 100}
            for part in dict.fromkeys(parts[name] for name in chosen.parts):
                found = [milliseconds(workers, part, chosen) for _ in range(chosen.rounds)]
                spread = f" ({min(found):.3f} to {max(found):.3f}, n = {len(found)})" if len(found) > 1 else ""
                print(f"{workers:7d}  {part:3d}%  {statistics.median(found):.3f}{spread}", flush=True)


if __name__ == "__main__":
    main()
