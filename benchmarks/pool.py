"""How much faster a pool is than its members one after another, in one run.

    python benchmarks/pool.py [--device cuda] [--members 50] [--rounds 3] [--networks circles abalone lenet …] [--threads 2]
                              [--longer 40]

For each network and batch size, the time per member and optimizer step, median over interleaved rounds of which the first is left
out, of

- `train` for each member (of which a few are timed),
- a plain loop as anybody would write it: forward, `backward`, `torch.optim.SGD`, batches from a shuffled order,
- `train_pool` as one program,

and the ratios to the last; also the bytes of activations by which `train_pool` chooses its strategy on a CPU. Data are random
numbers of the real shapes, resident on the device; members are trained for whole epochs, evaluation at their end included
(the plain loop evaluates nothing). On a GPU they train `--longer` times as many epochs: a few steps pass before one is recorded.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from timing import seconds
from torch import Tensor

from landscope.core.seeding import generator
from landscope.models import build
from landscope.specs.schema import parse
from landscope.training.loop.train import train
from landscope.training.pool.train_pool import activation_bytes, choose, train_pool
from landscope.training.spec import TrainingSpec
from landscope.training.task import make_task


@dataclass(frozen=True)
class Subject:
    """A network, the shape of its rows, and how it is trained."""

    model: str
    shape: tuple[int, ...]
    batch_size: int
    rows: int
    epochs: int = 1
    classes: int = 0
    options: Mapping[str, object] = field(default_factory=dict)

    def data(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Random rows."""
        rng = generator(0, "benchmark", self.model)
        x = torch.randn(self.rows, *self.shape, generator=rng)
        if self.classes:
            return {"train": (x, torch.randint(0, self.classes, (self.rows,), generator=rng))}
        return {"train": (x, torch.randn(self.rows, 1, generator=rng))}

    def spec(self) -> dict[str, object]:
        """The training of one member."""
        return {
            "model": {"name": self.model, **self.options},
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "optimizer": {"lr": 0.01, "momentum": 0.9},
        }


def mlp(*widths: int) -> dict[str, object]:
    """Options of an MLP."""
    return {"widths": list(widths)}


SUBJECTS = {
    "circles": Subject("mlp", (2,), 5, 100, 5, 2, mlp(100, 100)),
    "abalone": Subject("mlp", (10,), 64, 3342, 1, 0, mlp(64, 64)),
    "functions": Subject("mlp", (2,), 1000, 10_000, 3, 0, mlp(64, 64)),
    "digits": Subject("mlp", (64,), 64, 1198, 1, 10, mlp(64)),
    "mnist, batch 16": Subject("mlp", (1, 28, 28), 16, 640, 1, 10, mlp(100)),
    "mnist": Subject("mlp", (1, 28, 28), 128, 1280, 1, 10, mlp(100)),
    "lenet, batch 4": Subject("lenet5", (1, 28, 28), 4, 80, 1, 10),
    "lenet": Subject("lenet5", (1, 28, 28), 64, 640, 1, 10),
}


def plain_loop(subject: Subject, data: Mapping[str, tuple[Tensor, Tensor]], seed: int, device: torch.device) -> None:
    """What anybody would write."""
    x, y = (part.to(device) for part in data["train"])
    features = {} if x.dim() > 2 and subject.model == "lenet5" else {"in_features": x[0].numel()}
    net = build(subject.model, seed=seed, num_classes=subject.classes or 1, **features, **subject.options).to(device)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    criterion: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy if subject.classes else F.mse_loss
    net.train()
    for _ in range(subject.epochs):
        for rows in torch.randperm(len(y)).to(device).split(subject.batch_size):
            optimizer.zero_grad()
            criterion(net(x[rows]), y[rows]).backward()
            optimizer.step()


def compare(subject: Subject, members: int, alone: int, rounds: int, device: torch.device) -> str:
    """The row of one network."""
    data, spec = subject.data(), subject.spec()
    task = make_task(parse(TrainingSpec, spec), data=data).to(device)
    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "train": (alone, lambda: [train({**spec, "seed": seed}, data=data, device=device) for seed in range(alone)]),
        "plain": (alone, lambda: [plain_loop(subject, data, seed, device) for seed in range(alone)]),
        "pool": (members, lambda: train_pool(spec, members, data=data, strategy="stacked", device=device)),
    }
    times: dict[str, list[float]] = {key: [] for key in calls}
    for round_ in range(rounds + 1):
        for key, (count, call) in calls.items():
            took = 1e6 * seconds(call, device) / count / task.steps
            if round_:
                times[key].append(took)
    each = [statistics.median(times[key]) for key in calls]
    ratios = [
        statistics.median(a / b for a, b in zip(times[key], times["pool"], strict=True)) for key in ("train", "plain")
    ]
    strategy = choose(task, "auto", None).strategy
    return (
        f"{activation_bytes(task) / 1000:>9.0f} kB"
        + "".join(f"{value:>9.0f} µs" for value in each)
        + "".join(f"{value:>12.1f}" for value in ratios)
        + f"  {strategy}"
    )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--alone", type=int, default=3, help="how many members are timed one after another")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--longer", type=int, help="this many times the epochs; 1 on a CPU, 40 on a GPU by default")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--networks", nargs="+", default=list(SUBJECTS), choices=list(SUBJECTS))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{args.threads} CPU threads"
    print(f"torch {torch.__version__}, {where}, {args.members} members, median of {args.rounds} interleaved rounds")
    titles = ("activations", "train", "plain loop", "pool", "train/pool", "plain/pool")
    print(f"{'network':18}" + "".join(f"{title:>12}" for title in titles) + "  strategy")
    longer = args.longer or (40 if device.type == "cuda" else 1)
    for name in args.networks:
        subject = replace(SUBJECTS[name], epochs=longer * SUBJECTS[name].epochs)
        print(f"{name:18}" + compare(subject, args.members, args.alone, args.rounds, device), flush=True)


if __name__ == "__main__":
    main()
