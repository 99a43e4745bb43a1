"""Many perturbations at once against one by one: the ratio of their times, in one run.

    python benchmarks/perturbations.py [--device cuda] [--samples 64 512] [--perturbations 16] [--rounds 5]

For each network and number of samples: the time of k losses at random perturbations (`random_sharpness`) and of the steps of k
ascents (`adaptive_sharpness` with k restarts) one by one over the time at once, as the median of interleaved rounds; `*` marks
the way that is taken by itself.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from products import TextClassifier
from torch import Tensor, nn

from landscope.core.seeding import generator
from landscope.measures.base import Measure
from landscope.measures.sharpness import ascent
from landscope.measures.sharpness.random_noise import RandomSharpness
from landscope.measures.sharpness.worst_case import AdaptiveSharpness
from landscope.probe import perturbed, points
from landscope.probe.probe import Probe


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Name → (network, shape of one input; none for tokens)."""
    torch.manual_seed(0)
    conv = (nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2))
    head = (nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
    mlp = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return {
        "MLP 10-64-64-10": (mlp, (10,)),
        "LeNet": (nn.Sequential(*conv, *head), (1, 28, 28)),
        "transformer": (TextClassifier(width=64, layers=2), ()),
    }


def inputs(shape: tuple[int, ...], samples: int) -> Tensor:
    """Images or vectors of normal numbers, or tokens."""
    rng = generator(0, "benchmark")
    return (
        torch.randn(samples, *shape, generator=rng) if shape else torch.randint(0, 1000, (samples, 32), generator=rng)
    )


def seconds(measure: Measure, probe: Probe, at_once: bool) -> float:
    """Wall time of one call with the way of evaluation forced."""
    rule = points.together
    for module in (perturbed, ascent):
        module.together = lambda *_: at_once
    try:
        if probe.device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        measure(probe)
        if probe.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start
    finally:
        for module in (perturbed, ascent):
            module.together = rule


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--samples", type=int, nargs="+", default=[16, 64, 512])
    parser.add_argument("--perturbations", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    k = args.perturbations
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, {where}, {k} perturbations, median of {args.rounds} interleaved rounds")
    for name, (net, shape) in networks().items():
        for samples in args.samples:
            probe = Probe(net, (inputs(shape, samples), torch.arange(samples) % 10), device=args.device)
            for what, measure in (
                ("losses", RandomSharpness(samples=k)),
                ("ascents", AdaptiveSharpness(batch_size=samples, steps=2, restarts=k)),
            ):
                times: dict[bool, list[float]] = {True: [], False: []}
                for round_ in range(args.rounds + 1):
                    for at_once, taken in times.items():
                        took = seconds(measure, probe, at_once)
                        if round_:
                            taken.append(took)
                together, single = (statistics.median(times[at_once]) for at_once in (True, False))
                chosen = points.together(probe, samples)
                print(
                    f"    {name:16s} {samples:5d} samples, {what:8s} at once {together * 1e3:8.1f} ms{'*' if chosen else ' '}  "
                    f"one by one {single * 1e3:8.1f} ms{' ' if chosen else '*'}  ratio {single / together:5.2f}"
                )


if __name__ == "__main__":
    main()
