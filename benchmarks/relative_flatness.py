"""What relative flatness costs, as ratios in one run: the head over a forward pass, and over the papers' way.

    python benchmarks/relative_flatness.py [--device cuda] [--samples 512] [--rounds 5]

Prints, for ResNet-18 on random 32×32 images, medians of interleaved rounds of

- the closed form of the softmax head on all samples over one forward pass over the same samples, in the same pieces,
  and over a plain loop of the model over batches of 128;
- the same with everything that is looked up once per probe (which layer, which form) looked up again;
- the same number the papers' way (the head's C×d×C×d Hessian by autograd) over the closed form, both on the same
  features;
- the general form (a linear layer with a hidden layer behind it, and a convolution) over a forward and a backward pass.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from timing import seconds
from torch import Tensor, nn

from landscope.core.seeding import generator
from landscope.measures.sharpness.relative_flatness import RelativeFlatness, head_curvature
from landscope.models import build
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.probe.shared import FORWARD_LOAD
from landscope.probe.totals import FORWARD


def interleaved(calls: dict[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of every call, round by round, the first round left out."""
    times: dict[str, list[float]] = {key: [] for key in calls}
    for round_ in range(rounds + 1):
        for key, call in calls.items():
            took = seconds(call, device)
            if round_:
                times[key].append(took)
    return times


def ratio(times: dict[str, list[float]], over: str, under: str) -> str:
    """The median of the rounds' ratios, and their range."""
    ratios = sorted(a / b for a, b in zip(times[over], times[under], strict=True))
    return f"{statistics.median(ratios):8.3g}   ({ratios[0]:.3g} … {ratios[-1]:.3g})"


def forward_only(probe: Probe) -> Callable[[Batch], tuple[Tensor, ...]]:
    """The outputs of a piece, and next to nothing else."""

    def piece(batch: Batch) -> tuple[Tensor, ...]:
        outputs = probe.outputs(probe.params, batch)
        assert isinstance(outputs, Tensor)
        return (outputs.sum(),)

    return piece


def plain_forward(model: nn.Module, x: Tensor) -> None:
    """What anybody would write."""
    with torch.no_grad():
        for part in x.split(128):
            model(part)


def papers_hessian(features: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """κ from the whole Hessian of the head, block by block, as the papers' code did."""

    def loss(w: Tensor) -> Tensor:
        return nn.functional.cross_entropy(features @ w.T + bias, y)

    hessian = torch.autograd.functional.hessian(loss, weight, vectorize=True)
    return torch.einsum("sj,tj,sata->", weight, weight, hessian)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    device, n = torch.device(args.device), args.samples
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, {where}, {n} samples, median (range) of {args.rounds} interleaved rounds")
    torch.manual_seed(0)
    x = torch.randn(n, 3, 32, 32, generator=generator(0, "benchmark")).to(device)
    y = (torch.arange(n) % 10).to(device)

    model = build("resnet18").to(device).eval()
    probe = Probe(model, (x, y))
    times = interleaved(
        {
            "forward": lambda: probe.total(forward_only(probe), load=FORWARD_LOAD, passes=FORWARD, grad=False),
            "plain": lambda: plain_forward(model, x),
            "head": lambda: RelativeFlatness()(probe),
            "head, afresh": lambda: RelativeFlatness()(probe.at_temperature(1.0)),
        },
        args.rounds,
        device,
    )
    print(f"\nresnet18: one forward pass {statistics.median(times['forward']) * 1e3:.0f} ms")
    print(f"    head in closed form / forward pass             {ratio(times, 'head', 'forward')}")
    print(f"    the same / plain loop over batches             {ratio(times, 'head', 'plain')}")
    print(f"    the same, nothing remembered / forward pass    {ratio(times, 'head, afresh', 'forward')}")

    head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    weight, bias = head.weight.detach(), head.bias.detach()
    features = torch.randn(n, weight.shape[1], generator=generator(1, "benchmark")).to(device).relu()
    few = {
        "papers": lambda: papers_hessian(features[:256], y[:256], weight, bias),
        "ours": lambda: head_curvature(features[:256], features[:256] @ weight.T + bias, weight).mean(),
    }
    apart = abs(float(few["papers"]()) / float(few["ours"]()) - 1)
    times = interleaved(few, args.rounds, device)
    print(f"\nhead {tuple(weight.shape)}, features of 256 samples, the two apart by {apart:.1e} (relative)")
    print(f"    whole Hessian, as the papers did / closed form {ratio(times, 'papers', 'ours')}")

    hidden = nn.Sequential(model, nn.ReLU(), nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 10)).to(device).eval()
    for title, net, layer in (("linear 10 → 64, exact", hidden, "2"), ("last convolution of resnet18", model, None)):
        at = Probe(net, (x, y))
        name = layer or [key for key, module in at.modules.items() if isinstance(module, nn.Conv2d)][-1]
        measure = RelativeFlatness(layer=name, tol=0.05)
        times = interleaved({"gradient": at.gradient, "ours": lambda: measure(at)}, max(1, args.rounds // 2), device)  # noqa: B023
        estimate = measure(at)
        print(
            f"\n{title} ({name}): {estimate.details['form']}, relative error {estimate.stderr / abs(estimate.value):.1e}"
        )
        print(f"    relative flatness / forward and backward pass  {ratio(times, 'ours', 'gradient')}")


if __name__ == "__main__":
    main()
