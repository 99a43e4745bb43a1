"""How much a sharpness-aware step costs, in plain steps: ours and, where installed, pytorch_optimizer's, in one run.

    python benchmarks/sam.py [--device cuda] [--model convnet|resnet18|all] [--batch 128] [--base sgd|adamw] [--rounds 9]

Prints, for each network, the time of one step over the time of one step of the base optimizer on the same batch, as the median
over interleaved rounds of the ratio within the round (so that a noisy machine disturbs both alike), and what perturbing and
restoring the weights take by themselves. Two gradients are a ratio of 2; what lies above is the optimizer's own work.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from landscope.core.seeding import generator
from landscope.models import build
from landscope.training.optimizers import SAM

BASES: dict[str, tuple[type[torch.optim.Optimizer], dict[str, float]]] = {
    "sgd": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-4}),
}


def network(name: str) -> nn.Module:
    """A network for 32 × 32 images of ten classes."""
    torch.manual_seed(0)
    if name != "convnet":
        return build(name)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))


def seconds(function: Callable[[], object], device: torch.device) -> float:
    """Wall time of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def closure_of(optimizer: torch.optim.Optimizer, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """What every step evaluates."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


def candidates(model: nn.Module, x: Tensor, y: Tensor, base: str) -> dict[str, Callable[[], object]]:
    """Name → one step, each of a model of its own."""
    kind, options = BASES[base]

    def ours(adaptive: bool, freeze: bool = True) -> Callable[[], object]:
        net = copy.deepcopy(model)
        sam = SAM(net.parameters(), kind, adaptive=adaptive, **options)
        closure = closure_of(sam, net, x, y)
        return lambda: sam.step(closure, model=net if freeze else None)

    plain_net = copy.deepcopy(model)
    plain = kind(plain_net.parameters(), **options)
    plain_closure = closure_of(plain, plain_net, x, y)

    still = copy.deepcopy(model)
    mover = SAM(still.parameters(), kind, **options)
    closure_of(mover, still, x, y)()

    calls: dict[str, Callable[[], object]] = {
        "plain step": lambda: plain.step(plain_closure),
        "SAM": ours(adaptive=False),
        "SAM, statistics not frozen": ours(adaptive=False, freeze=False),
        "ASAM": ours(adaptive=True),
        "  first_step and restore alone": lambda: (mover.first_step(), mover.restore()),
    }
    try:
        from pytorch_optimizer import SAM as Theirs  # noqa: N811 (two classes of one name)
    except ImportError:
        print("    pytorch_optimizer is not installed: left out")
    else:
        net = copy.deepcopy(model)
        other = Theirs(net.parameters(), kind, **options)
        closure = closure_of(other, net, x, y)
        calls["pytorch_optimizer's SAM"] = lambda: (closure(), other.step(closure))
    return calls


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="all", choices=["convnet", "resnet18", "all"])
    parser.add_argument("--base", default="sgd", choices=[*BASES])
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    device = torch.device(args.device)
    batch = args.batch or (512 if device.type == "cuda" else 64)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, {where}, batch {batch}, {args.base}, median of {args.rounds} interleaved rounds")
    x = torch.randn(batch, 3, 32, 32, generator=generator(0, "benchmark")).to(device)
    y = torch.arange(batch, device=device) % 10
    for name in ("convnet", "resnet18") if args.model == "all" else (args.model,):
        model = network(name).to(device)
        print(f"\n{name}: {sum(p.numel() for p in model.parameters()):,} parameters")
        calls = candidates(model, x, y, args.base)
        times: dict[str, list[float]] = {key: [] for key in calls}
        for round_ in range(args.rounds + 2):
            for key, call in calls.items():
                took = seconds(call, device)
                if round_ >= 2:
                    times[key].append(took)
        unit = times["plain step"]
        print(f"    {'plain step':32s} {statistics.median(unit) * 1e3:8.1f} ms")
        for key in list(calls)[1:]:
            ratio = statistics.median(own / one for own, one in zip(times[key], unit, strict=True))
            print(f"    {key:32s} {statistics.median(times[key]) * 1e3:8.1f} ms {ratio:6.2f} plain steps")


if __name__ == "__main__":
    main()
