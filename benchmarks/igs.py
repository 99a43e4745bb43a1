"""Information-geometric sharpness of one batch: by the Gram matrix (all ranks) and by power iteration, in one run.

    python benchmarks/igs.py [--model lenet5] [--batch 64] [--classes 10] [--rank 20] [--iterations 100]
    python benchmarks/igs.py --model vgg19_imagenet_head --classes 100 --iterations 0

Power iteration is the published way: eigenvectors of the Fisher matrix one after the other, each by `--iterations` products
with the earlier ones projected out. With fewer than 100 iterations the table says what was run, and beside it the time of 100
at the measured time per product. `--iterations 0` leaves power iteration out. On a GPU the peak of its memory is printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp

from landscope import Fisher, Probe
from landscope.core.seeding import generator, normal
from landscope.curvature.gram import gram
from landscope.measures.sharpness.igs import igs_curve, saturated_igs
from landscope.models import MODELS, build
from landscope.probe.batches import Batch

PUBLISHED_ITERATIONS = 100


def seconds(function: Callable[[], object], device: torch.device) -> float:
    """Wall time of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def by_power_iteration(probe: Probe, batch: Batch, rank: int, iterations: int) -> float:
    """IGS at a rank from eigenpairs found one by one, as published."""
    fisher = Fisher(probe, compile=False)
    found = torch.zeros(probe.n_params, 0, dtype=probe.dtype, device=probe.device)
    total = 0.0
    for k in range(rank):
        v = normal((probe.n_params,), generator(k, "power"), probe.dtype, probe.device)
        value = 0.0
        for _ in range(iterations):
            v = v - found @ (found.T @ v)
            v = v / v.norm()
            product = fisher @ v
            value, v = float(v @ product), product
        v = v - found @ (found.T @ v)
        v = v / v.norm()
        total += float(along_gradients(probe, batch, v).square().mean()) / value
        found = torch.cat([found, v[:, None]], 1)
    return total


def along_gradients(probe: Probe, batch: Batch, v: Tensor) -> Tensor:
    """⟨g_i, v⟩ for every sample: r_iᵀ J_i v, by forward mode."""
    with probe.measuring():
        z, tangent = jvp(lambda p: probe.outputs(p, batch), (dict(probe.params),), (probe.space.unflatten(v),))
        leaf = z.detach().requires_grad_()
        (residual,) = torch.autograd.grad(probe.loss_of(leaf, batch), leaf)
        return (residual * tangent).sum(1)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rank", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=PUBLISHED_ITERATIONS)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    model = build(args.model, num_classes=args.classes).to(device).eval()
    x = torch.randn(args.batch, *MODELS[args.model].input_shape, generator=generator(0, "benchmark"))
    probe = Probe(model, (x, torch.arange(args.batch) % args.classes), device=device)
    batch = next(probe.batches())
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, {where}")
    print(f"{args.model}: {probe.n_params:,} parameters, {args.classes} classes, batch {args.batch}")

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    matrix = gram(probe, batch)
    curve = igs_curve(matrix)
    whole = statistics.median(seconds(lambda: igs_curve(gram(probe, batch)), device) for _ in range(args.rounds))
    small = statistics.median(seconds(lambda: igs_curve(matrix), device) for _ in range(args.rounds))
    at_rank, full_rank, formula = curve[min(args.rank, len(curve)) - 1], curve[-1], saturated_igs(matrix)
    print(f"    Gram matrix, all {len(curve)} ranks: {whole:.3f} s per batch, of which eigenvalues {small:.3f} s")
    print(f"        IGS at rank {args.rank}: {at_rank:.6g}; full rank {full_rank:.6g}, formula {formula:.6g}")
    if device.type == "cuda":
        print(f"        GPU memory at its peak: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    if not args.iterations:
        return
    value = 0.0

    def power() -> None:
        nonlocal value
        value = by_power_iteration(probe, batch, args.rank, args.iterations)

    took = seconds(power, device)
    products = args.rank * args.iterations
    print(
        f"    power iteration, rank {args.rank}: {took:8.3f} s for {products} products, {took / products * 1e3:.1f} ms each"
    )
    print(f"        IGS at rank {args.rank}: {value:.6g}; {took / whole:.0f} times the Gram matrix's time")
    if args.iterations < PUBLISHED_ITERATIONS:
        full = took * PUBLISHED_ITERATIONS / args.iterations
        print(
            f"        not run: {PUBLISHED_ITERATIONS} iterations, {full:.0f} s at this time per product, {full / whole:.0f} times"
        )


if __name__ == "__main__":
    main()
