"""How long a training step takes when several trainings share a graphics card.

    python benchmarks/card_sharing.py [--device cuda] [--workers 1 5 8] [--parts all even double] [--network resnet18]
                                      [--batch 64] [--seconds 5] [--rounds 1] [--ways compiled eager searched]

Several processes train the same network on the same random images, each with all of the card's multiprocessors (what
`-e per_gpu=N -e mps=true` gives), an even part of them, or twice that. All begin to count at the same moment and stop some
seconds later. A row has the time of a step of all of them together (the sum of their rates, inverted), the median over rounds
and their range, and by how much the losses of the first steps are off from those of one process with the whole card, at most:
parts have been found to compute wrong numbers (`landscope.studies.executors.gpu_sharing`), so wrong that a training comes to
NaN at once: then both are `inf`. NVIDIA's multi-process service is begun and ended here, unless the environment names one.

`compiled` is a step with `compile: true`, `eager` one without; `searched` is compiled, with cuDNN timing its algorithms and
taking the fastest. Trainings do not do that: processes that share a card would choose differently, and none could be repeated.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import time
from contextlib import nullcontext
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError

import torch
from torch import Tensor

from landscope.core.errors import NonFiniteTrainingError
from landscope.core.seeding import generator
from landscope.studies.executors.gpu_sharing import PERCENTAGE, multi_process_service
from landscope.training.callbacks import Callback
from landscope.training.loop.train import train

WARM, ROWS, COMPARED = 20, 4096, 3
"""Steps before counting, in which they are compiled and recorded; images; first steps whose losses are compared."""

Found = tuple[float, list[float]]
"""Steps a second, and the first losses."""


class Counter(Callback):
    """Counts steps between two moments that all processes share."""

    def __init__(self, begin: Barrier, seconds: float) -> None:
        self._begin, self._seconds = begin, seconds
        self._start, self._first, self.rate = 0.0, 0, 0.0
        self.losses: list[float] = []

    def on_step(self, step: int, loss: Tensor, lr: float) -> None:
        """Wait for the others after the first steps; look at the clock every ten."""
        del lr
        if step <= COMPARED:
            self.losses.append(loss.item())
        if step == WARM:
            loss.item()  # waits for the device
            self._begin.wait()
            self._start, self._first = time.monotonic(), step
        elif step > WARM and step % 10 == 0 and not self.rate:
            loss.item()
            elapsed = time.monotonic() - self._start
            if elapsed >= self._seconds:
                self.rate = (step - self._first) / elapsed


def work(begin: Barrier, found: Queue[Found], network: str, batch: int, seconds: float, device: str, way: str) -> None:
    """One of the trainings; it continues until all have counted."""
    torch.backends.cudnn.benchmark = way == "searched"
    rng = generator(0, "benchmark", network)
    data = {"train": (torch.randn(ROWS, 3, 32, 32, generator=rng), torch.randint(0, 10, (ROWS,), generator=rng))}
    spec = {
        "model": network,
        "epochs": 10**6,
        "evaluate_every": 10**6,
        "batch_size": batch,
        "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
        "augmentation": {"crop": 4, "flip": True},
        **({"precision": "bfloat16", "channels_last": True, "compile": way != "eager"} if device == "cuda" else {}),
    }
    counter, slack = Counter(begin, seconds), 0.5
    ended: list[float] = []

    def enough() -> bool:
        if counter.rate and not ended:
            ended.append(time.monotonic())
        return bool(ended) and time.monotonic() - ended[0] > slack

    try:
        train(spec, data=data, device=device, progress=False, callbacks=[counter], should_stop=enough)
    except (NonFiniteTrainingError, BrokenBarrierError):
        begin.abort()  # nobody waits for this one
    found.put((counter.rate, counter.losses))


def together(workers: int, part: int, way: str, chosen: argparse.Namespace) -> tuple[float, list[list[float]]]:
    """Milliseconds of a step of all the trainings together, and the first losses of each."""
    spawn = multiprocessing.get_context("spawn")
    begin, found = spawn.Barrier(workers), spawn.Queue()
    os.environ[PERCENTAGE] = str(part)
    settings = (begin, found, chosen.network, chosen.batch, chosen.seconds, chosen.device, way)
    processes = [spawn.Process(target=work, args=settings) for _ in range(workers)]
    for process in processes:
        process.start()
    rates, losses = zip(*(found.get() for _ in processes), strict=True)
    for process in processes:
        process.join()
    return 1000 / sum(rates) if all(rates) else math.inf, list(losses)


def off(losses: list[list[float]], truth: list[float]) -> float:
    """The largest relative difference from the true losses; infinite where there are fewer, or one is NaN."""
    pairs = [(loss, true) for each in losses for loss, true in zip(each, truth, strict=False)]
    whole = all(len(each) == len(truth) for each in losses) and all(math.isfinite(loss) for loss, _ in pairs)
    return max(abs(loss / true - 1) for loss, true in pairs) if whole else math.inf


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 5, 8])
    parser.add_argument("--parts", nargs="+", choices=("all", "even", "double"), default=["all"])
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ways", nargs="+", choices=("compiled", "eager", "searched"), default=["compiled"])
    chosen = parser.parse_args()
    with multi_process_service() if chosen.device == "cuda" else nullcontext({}) as service:
        os.environ.update(service)
        print(
            f"{chosen.network}, batch {chosen.batch}, {chosen.device}\n\nworkers  part  step      losses off by  ms a step of all"
        )
        _, [truth] = together(1, 100, chosen.ways[0], chosen)
        for way in chosen.ways:
            for workers in chosen.workers:
                parts = {"all": 100, "even": 100 // workers, "double": min(100, 200 // workers)}
                for part in dict.fromkeys(parts[name] for name in chosen.parts):
                    runs = [together(workers, part, way, chosen) for _ in range(chosen.rounds)]
                    times, losses = zip(*runs, strict=True)
                    wrong = off([each for of_round in losses for each in of_round], truth)
                    spread = f" ({min(times):.3f} to {max(times):.3f}, n = {len(times)})" if len(times) > 1 else ""
                    row = f"{workers:7d}  {part:3d}%  {way:8s}  {wrong:13.1e}  {statistics.median(times):.3f}{spread}"
                    print(row, flush=True)


if __name__ == "__main__":
    main()
