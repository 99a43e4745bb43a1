"""What a training step with FAM costs, as ratios to a plain SGD step in one run.

    python benchmarks/fam.py [--device cuda] [--batch 64] [--units 64] [--rounds 60]
    python benchmarks/fam.py --volumes [--device cuda] [--batch 10] [--rounds 10]

A convolutional network (three 3×3 convolutions on 32×32 images, a layer of `units`, a classifier), random data. Prints medians
of interleaved rounds, so that a machine's moods meet all of them alike: FAM on the layer of `units`, exact and with one
probe (with ReLU behind it, and with tanh, where every unit takes a product of its own); on the classifier; on the last
convolution; and a step that takes two gradients, as SAM does. `--volumes`: the fourth paper's auto-encoder on 64³ voxels with
one probe on the layer that reads its code, with the forward pass inside of `FAM.ready` and, to compare, outside.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from landscope.core.seeding import generator
from landscope.models import build
from landscope.training.objectives import FAM

CLASSES = 10


def network(units: int, activation: type[nn.Module]) -> nn.Module:
    """32×32 images, convolutions with 16, 32 and 64 channels, a hidden layer."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, units),
        activation(),
        nn.Linear(units, CLASSES),
    )


def step(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    gradients: int = 1,
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
    ready: bool = True,
    **settings: object,
) -> Callable[[], None]:
    """A training step of a network of its own, with FAM if there are `settings`."""
    model = model.to(x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    fam = FAM(model, **settings) if settings else None  # type: ignore[arg-type]

    def run() -> None:
        for _ in range(gradients):
            optimizer.zero_grad()
            with fam.ready() if fam is not None and ready else nullcontext():
                outputs = model(x)
            value = loss(outputs, y)
            (value if fam is None else fam(value)).backward()
        optimizer.step()

    return run


def volume_steps(batch: int, device: torch.device) -> dict[str, Callable[[], None]]:
    """Steps of the 3-D auto-encoder."""
    x = (torch.rand(batch, 1, 64, 64, 64, generator=generator(0, "volumes")) > 0.7).float().to(device)

    def dice(p: Tensor, y: Tensor) -> Tensor:
        p, y = p.flatten(1), y.flatten(1)
        return (1 - 2 * (p * y).sum(1) / (p.sum(1) + y.sum(1))).mean()

    def one(**settings: object) -> Callable[[], None]:
        return step(build("autoencoder3d"), x, x, loss=dice, **settings)  # type: ignore[arg-type]

    fam: dict[str, object] = {"layer": "decode", "strength": 1e-3, "form": "layerwise", "probes": 1}
    return {
        "plain": one(),
        "FAM, one probe": one(**fam),
        "FAM, one probe, outside of `ready`": one(**fam, ready=False),
        "FAM, weights only": one(**fam, gradient="weights_only"),
        "FAM, weights only, outside of `ready`": one(**fam, gradient="weights_only", ready=False),
    }


def image_steps(batch: int, units: int, device: torch.device) -> dict[str, Callable[[], None]]:
    """Steps of the network for images."""
    x = torch.randn(batch, 3, 32, 32, generator=generator(0, "benchmark")).to(device)
    y = (torch.arange(batch) % CLASSES).to(device)
    hidden, last, conv = "10", "12", "6"

    def relu() -> nn.Module:
        return network(units, nn.ReLU)

    def tanh() -> nn.Module:
        return network(units, nn.Tanh)

    of_units = f"FAM, layer of {units}"
    return {
        "plain": step(relu(), x, y),
        f"{of_units}, exact": step(relu(), x, y, layer=hidden, strength=0.01),
        f"{of_units}, one probe": step(relu(), x, y, layer=hidden, strength=0.01, probes=1),
        f"{of_units}, tanh, exact": step(tanh(), x, y, layer=hidden, strength=0.01),
        f"{of_units}, tanh, one probe": step(tanh(), x, y, layer=hidden, strength=0.01, probes=1),
        f"{of_units}, layerwise, one probe": step(
            relu(), x, y, layer=hidden, strength=1e-4, probes=1, form="layerwise"
        ),
        "FAM, classifier, exact": step(relu(), x, y, layer=last, strength=0.01),
        "FAM, last convolution, exact": step(relu(), x, y, layer=conv, strength=1e-4),
        "FAM, last convolution, one probe": step(relu(), x, y, layer=conv, strength=1e-4, probes=1),
        "two gradients, as SAM": step(relu(), x, y, gradients=2),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--volumes", action="store_true")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--units", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    device = torch.device(args.device)
    batch = args.batch or (10 if args.volumes else 64)
    steps = volume_steps(batch, device) if args.volumes else image_steps(batch, args.units, device)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(args.rounds + 5):
        for name, run in steps.items():
            start = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if round_ >= 5:
                times[name].append(time.perf_counter() - start)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, {where}, batch {batch}, {args.rounds} interleaved rounds\n")
    print(f"{'step':40}{'median ms':>10}{'ratio':>8}   quartiles of the rounds' ratios")
    for name, took in times.items():
        ratios = sorted(a / b for a, b in zip(took, times["plain"], strict=True))
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{name:40}{statistics.median(took) * 1e3:10.2f}{middle:8.2f}   {low:.2f} … {high:.2f}")


if __name__ == "__main__":
    main()
