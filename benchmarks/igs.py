"""What the information-geometric sharpness of one batch costs by the Gram matrix, all ranks at once.

    python benchmarks/igs.py [--model lenet5] [--batch 64] [--classes 10] [--rank 20]
    python benchmarks/igs.py --model vgg19_imagenet_head --classes 100

On a GPU the peak of its memory is printed. Against the published way, power iteration: `landscope bench --rows igs`.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from timing import seconds

from landscope import Probe
from landscope.core.seeding import generator
from landscope.curvature.gram import gram
from landscope.measures.sharpness.igs import igs_curve, saturated_igs
from landscope.models import MODELS, build


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rank", type=int, default=20)
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


if __name__ == "__main__":
    main()
