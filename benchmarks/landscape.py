"""How many points of a plane per second: a plain loop over points, ours one by one, many at once, and what is chosen.

    python benchmarks/landscape.py [--device cuda] [--samples 128 1024] [--points 160] [--rounds 3] [--networks LeNet …]

The plain loop is what research scripts do: write θ + a d₁ + b d₂ into a copy of the model, run it over batches of 128 under
`no_grad`, and add up the loss. All ways evaluate the same points; medians of interleaved rounds, so that a noisy machine disturbs
all alike. The number in brackets is the one that is chosen.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from perturbations import inputs, networks
from torch import Tensor, nn

from landscope.models import build
from landscope.planes import random_slice
from landscope.planes.grid import PointValues
from landscope.planes.slices import Slice
from landscope.probe import points as engine
from landscope.probe.probe import Probe


def plain_loop(model: nn.Module, x: Tensor, y: Tensor, cut: Slice, points: Tensor) -> Tensor:
    """Mean losses the way that scripts compute them."""
    twin = copy.deepcopy(model)
    params = dict(twin.named_parameters())
    losses = []
    with torch.no_grad():
        for row in points.tolist():
            for name, value in cut.origin.items():
                params[name].copy_(value + sum(c * d[name] for c, d in zip(row, cut.directions, strict=True)))
            total = 0.0
            for a, b in zip(x.split(128), y.split(128), strict=True):
                total += nn.functional.cross_entropy(twin(a), b, reduction="sum").item()
            losses.append(total / len(x))
    return torch.tensor(losses, dtype=torch.float64)


def ours(probe: Probe, cut: Slice, points: Tensor, width: int | None = None) -> Tensor:
    """Mean losses with this number of points at once, or with the number that is chosen."""
    rule = engine.points_at_once
    if width is not None:
        engine.points_at_once = lambda *_: width
    try:
        return PointValues(probe, cut, accuracy=False)(points)[:, 0]
    finally:
        engine.points_at_once = rule


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--samples", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--points", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", nargs="+", default=None)
    args = parser.parse_args()
    device = torch.device(args.device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, {where}, {args.points} points, median of {args.rounds} interleaved rounds")
    known = {**networks(), "resnet18": (build("resnet18"), (3, 32, 32))}
    for name in args.networks or known:
        net, shape = known[name]
        net = net.to(device).eval()
        for samples in args.samples:
            x, y = inputs(shape, samples).to(device), (torch.arange(samples) % 10).to(device)
            probe = Probe(net, (x, y))
            cut = random_slice(probe)
            points = torch.rand(args.points, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
            ways: dict[str, Callable[[], Tensor]] = {
                "plain loop": lambda: plain_loop(net, x, y, cut, points),  # noqa: B023
                **{
                    f"{w} at once": lambda w=w: ours(probe, cut, points, w)  # type: ignore[misc]  # noqa: B023
                    for w in (1, 8, 64)
                },
                "chosen": lambda: ours(probe, cut, points),  # noqa: B023
            }
            rates: dict[str, list[float]] = {key: [] for key in ways}
            found: dict[str, Tensor] = {}
            for round_ in range(args.rounds + 1):
                for key, way in ways.items():
                    start = time.perf_counter()
                    found[key] = way()
                    if device.type == "cuda":
                        torch.cuda.synchronize()
                    if round_:
                        rates[key].append(args.points / (time.perf_counter() - start))
            apart = max(float((v / found["plain loop"] - 1).abs().max()) for v in found.values())
            middle = {key: statistics.median(values) for key, values in rates.items()}
            width = engine.points_at_once(probe, samples)
            shown = "  ".join(f"{key} {rate:8.1f}/s" for key, rate in middle.items())
            ratio = middle["chosen"] / middle["plain loop"]
            print(f"    {name:16s} {samples:6d} samples: {shown} ({width})  ratio {ratio:5.2f}  apart {apart:.0e}")


if __name__ == "__main__":
    main()
