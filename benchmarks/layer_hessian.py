"""Figures 4 and 5 of the fourth paper: what the Hessian of a layer costs, and its trace, against the size of the layer.

    python benchmarks/layer_hessian.py [--device cuda] [--units 8 16 32 64] [--batch 64] [--rounds 5] [--seconds 20]

A hidden layer of so many units with as many inputs, ReLU, a classifier of ten classes, cross-entropy, float64 against rounding.
Hessian: a loop of autograd calls, the same calls as one batch (`is_grads_batched`), `torch.func.hessian`. Trace: of that
matrix, Hutchinson's estimate with `--probes` products, and ours: the exact identity over the layer's outputs,

    tr H = mean over samples of ‖φ‖² tr ∂²L/∂z²,

in one value, and with one random product per batch (both as `FAM(form="layerwise")` computes them, less its ‖W‖²). The exact ways
are checked against each other before they are timed. Prints medians of interleaved rounds in milliseconds; a way that
has taken more than `--seconds` once is left out of larger layers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian

from landscope.core.seeding import generator, rademacher
from landscope.training.objectives import FAM

CLASSES = 10
LAYER = "0"
Way = Callable[[], Tensor]


def network(units: int, device: torch.device) -> nn.Sequential:
    """A layer of `units` with as many inputs, ReLU, a classifier."""
    model = nn.Sequential(nn.Linear(units, units), nn.ReLU(), nn.Linear(units, CLASSES))
    rng = generator(0, "network")
    for p in model.parameters():
        nn.init.normal_(p, std=units**-0.5, generator=rng)
    return model.double().to(device)


def ways(units: int, batch: int, probes: int, device: torch.device) -> tuple[dict[str, Way], dict[str, Way]]:
    """The Hessian of the first layer's weight as a matrix, and its trace, each in every way."""
    model = network(units, device)
    weight = model[0].weight
    x = torch.randn(batch, units, generator=generator(0, "inputs"), dtype=torch.float64).to(device)
    y = (torch.arange(batch) % CLASSES).to(device)
    size = weight.numel()

    def loss() -> Tensor:
        return nn.functional.cross_entropy(model(x), y)

    def gradient() -> Tensor:
        (found,) = torch.autograd.grad(loss(), weight, create_graph=True)
        return found.flatten()

    def loop() -> Tensor:
        first = gradient()
        rows = [torch.autograd.grad(first[i], weight, retain_graph=True)[0].flatten() for i in range(size)]
        return torch.stack(rows)

    def batched() -> Tensor:
        units_of = torch.eye(size, dtype=torch.float64, device=device)
        return torch.autograd.grad(gradient(), weight, units_of, is_grads_batched=True)[0].reshape(size, size)

    def functional() -> Tensor:
        def of_weight(w: Tensor) -> Tensor:
            return nn.functional.cross_entropy(functional_call(model, {f"{LAYER}.weight": w}, (x,)), y)

        found: Tensor = hessian(of_weight)(weight.detach())
        return found.reshape(size, size)

    rng = generator(0, "hutchinson")

    def hutchinson() -> Tensor:
        first = gradient()
        draws = []
        for _ in range(probes):
            v = rademacher((size,), rng, torch.float64, device)
            (product,) = torch.autograd.grad(first, weight, v, retain_graph=True)
            draws.append(v @ product.flatten())
        return torch.stack(draws).mean()

    exact, probe = (FAM(model, LAYER, strength=1.0, form="layerwise", probes=number) for number in (None, 1))

    def ours(fam: FAM) -> Tensor:
        return fam.penalty(loss()).detach() / weight.detach().square().sum()

    matrices: dict[str, Way] = {
        "loop of autograd calls": loop,
        "batched autograd calls": batched,
        "torch.func.hessian": functional,
    }
    traces: dict[str, Way] = {
        "torch.func.hessian, its trace": lambda: functional().trace(),
        f"Hutchinson, {probes} products": hutchinson,
        "ours, exact": lambda: ours(exact),
        "ours, one probe": lambda: ours(probe),
    }
    return matrices, traces


def check(device: torch.device) -> None:
    """All ways agree on a small layer; random ones within five standard errors of many draws."""
    matrices, traces = ways(6, 32, 50, device)
    first, *others = (way().detach() for way in matrices.values())
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-9, atol=1e-12)
    trace = first.trace()
    for name, way in traces.items():
        if "probe" in name or "Hutchinson" in name:
            draws = torch.stack([way() for _ in range(60)])
            error = draws.std() / len(draws) ** 0.5
            assert (draws.mean() - trace).abs() < 5 * error, f"{name}: {draws.mean()} ± {error} against {trace}"
        else:
            torch.testing.assert_close(way(), trace, rtol=1e-9, atol=1e-12)


def timed(all_ways: Mapping[str, Way], rounds: int, limit: float, device: torch.device) -> dict[str, float]:
    """Medians in seconds over interleaved rounds, after one that warms up and weeds out."""

    def once(way: Way) -> float:
        start = time.perf_counter()
        way()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    kept: dict[str, list[float]] = {}
    slow: dict[str, float] = {}
    for name, way in all_ways.items():
        try:
            first = once(way)
        except RuntimeError as error:  # out of memory, which torch reports so on every device
            if "memory" not in str(error).lower():
                raise
            slow[name] = float("inf")
            continue
        if first > limit:
            slow[name] = first
        else:
            kept[name] = []
    for _ in range(rounds):
        for name, seconds in kept.items():
            seconds.append(once(all_ways[name]))
    return {name: statistics.median(seconds) for name, seconds in kept.items()} | slow


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--units", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--probes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    device = torch.device(args.device)
    check(device)
    results: dict[str, list[float | None]] = {}
    for column, units in enumerate(args.units):
        both = ways(units, args.batch, args.probes, device)
        left = {
            name: way
            for group in both
            for name, way in group.items()
            if all(seconds is not None and seconds <= args.seconds for seconds in results.get(name, []))
        }
        took = timed(left, args.rounds, args.seconds, device)
        for name in (name for group in both for name in group):
            results.setdefault(name, [None] * column).append(took.get(name))
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, {where}, batch {args.batch}, median of {args.rounds} interleaved rounds, ms\n")
    print(f"{'units × inputs':32}" + "".join(f"{f'{units} × {units}':>13}" for units in args.units))
    for name, row in results.items():
        cells = ("–" if seconds is None else f"{1e3 * seconds:.2f}" for seconds in row)
        print(f"{name:32}" + "".join(f"{cell:>13}" for cell in cells))


if __name__ == "__main__":
    main()
