"""What the training loop costs: an epoch against a loop written by hand, SAM and FAM against plain; on CUDA, recorded steps.

    python benchmarks/training.py [--device cuda] [--rounds 15] [--nets lenet5 resnet20] [--batch 128]

Every row is a ratio of times taken in one run: short epochs of both kinds take turns, so that a noisy machine disturbs both,
and the median of the ratios of neighbours is printed with its quartiles. On the CPU, time is that of the processor, not of the
clock. The loop by hand is what one would write: rows in memory, a permutation, forward, backward, step, and a running loss and
accuracy.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from landscope.core.seeding import generator
from landscope.specs.schema import parse
from landscope.training.callbacks import _Silent
from landscope.training.loop.program import SingleProgram
from landscope.training.loop.run import Places, Run
from landscope.training.loop.state import State
from landscope.training.spec import TrainingSpec
from landscope.training.task import make_task

NETS: dict[str, tuple[dict[str, object], tuple[int, ...], int]] = {
    "lenet5": ({"name": "lenet5"}, (1, 28, 28), 1_280),
    "resnet20": ({"name": "resnet20", "width": 8}, (3, 32, 32), 256),
    "vgg19": ({"name": "vgg19"}, (3, 32, 32), 50_000),
    "resnet18": ({"name": "resnet18"}, (3, 32, 32), 12_800),
}


def rows(shape: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
    """Random images with labels."""
    rng = generator(0, "benchmark")
    return torch.randn(count, *shape, generator=rng), torch.randint(0, 10, (count,), generator=rng)


def ours(
    net: str, device: torch.device, batch: int, graphs: bool | None = None, **settings: object
) -> Callable[[], None]:
    """One epoch of the loop, from a run that never ends."""
    model, shape, count = NETS[net]
    spec = parse(TrainingSpec, {"model": model, "epochs": 10_000, "batch_size": batch, "drop_last": True, **settings})
    task = make_task(spec, data={"train": rows(shape, count)}).to(device)
    program = SingleProgram(task, graphs=graphs)
    run = Run(task, program, State.fresh([0], device), Places())
    stream = torch.cuda.Stream() if program.captures else None

    def epoch() -> None:
        with torch.cuda.stream(stream):
            for _ in range(task.steps_per_epoch):
                run.advance()
            run.end_epoch(_Silent())

    return epoch


def by_hand(
    net: str, device: torch.device, batch: int, precision: torch.dtype | None = None, channels_last: bool = False
) -> Callable[[], None]:
    """One epoch of a loop as one would write it."""
    model_options, shape, count = NETS[net]
    task = make_task(parse(TrainingSpec, {"model": model_options}), data={"train": rows(shape, count)}).to(device)
    model, (x, y) = task.model.train(), task.train
    if channels_last:
        model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def epoch() -> None:
        total = torch.zeros((), device=device)
        correct = torch.zeros((), device=device)
        for chosen in torch.randperm(len(y), device=device).split(batch)[: len(y) // batch]:
            inputs, targets = x[chosen], y[chosen]
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=precision or torch.bfloat16, enabled=precision is not None):
                outputs = model(inputs)
                loss = F.cross_entropy(outputs, targets)
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(targets)
            correct += (outputs.argmax(1) == targets).sum()
        (total / len(y)).item(), (correct / len(y)).item()

    return epoch


def seconds(function: Callable[[], None], device: torch.device) -> float:
    """Time of one call: of the clock for a GPU, of the processor otherwise."""
    if device.type != "cuda":
        start = time.process_time()
        function()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(
    name: str, first: Callable[[], None], second: Callable[[], None], rounds: int, device: torch.device
) -> None:
    """Print the ratio of two functions' times, and the times."""
    first(), second()
    pairs = []
    for at in range(rounds):
        order = (first, second) if at % 2 else (second, first)
        taken = {function: seconds(function, device) for function in order}
        pairs.append((taken[first], taken[second]))
    ratios = sorted(a / b for a, b in pairs)
    low, _, high = statistics.quantiles(ratios, n=4)
    times = [statistics.median(column) for column in zip(*pairs, strict=True)]
    print(
        f"{name:44s} {statistics.median(ratios):5.3f}×  (quartiles {low:.3f}–{high:.3f}, n = {rounds}; "
        f"{times[0]:.3f} s against {times[1]:.3f} s)"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=["lenet5", "resnet20"])
    given = parser.parse_args()
    device = torch.device(given.device)
    for net in given.nets:
        plain = ours(net, device, given.batch)
        compare(f"{net}: epoch, loop against by hand", plain, by_hand(net, device, given.batch), given.rounds, device)
        compare(
            f"{net}: epoch, SAM against plain", ours(net, device, given.batch, sam=0.05), plain, given.rounds, device
        )
        compare(
            f"{net}: epoch, FAM on the classifier against plain",
            ours(net, device, given.batch, fam={"strength": 0.1}),
            plain,
            given.rounds,
            device,
        )
        if device.type == "cuda":
            eager = ours(net, device, given.batch, graphs=False)
            compare(f"{net}: epoch, recorded against eager", plain, eager, given.rounds, device)
            fast = {"precision": "bfloat16", "channels_last": True}
            compare(
                f"{net}: the same in bfloat16, channels last",
                ours(net, device, given.batch, **fast),
                by_hand(net, device, given.batch, torch.bfloat16, channels_last=True),
                given.rounds,
                device,
            )
            compare(
                f"{net}: with flips and crops, against without",
                ours(net, device, given.batch, augmentation={}, **fast),
                ours(net, device, given.batch, **fast),
                given.rounds,
                device,
            )
            compare(
                f"{net}: with flips and crops, compiled against not",
                ours(net, device, given.batch, augmentation={}, compile=True, **fast),
                ours(net, device, given.batch, augmentation={}, **fast),
                given.rounds,
                device,
            )


if __name__ == "__main__":
    main()
