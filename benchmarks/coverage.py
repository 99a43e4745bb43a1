"""How often what `landscope.measure` says holds the truth where it is stopped after part of its work.

    python benchmarks/coverage.py --processes 16 --seconds 500         # as much as fits; run the same command to resume
    python benchmarks/coverage.py --processes 16 --write               # all of it, into the docs
    python benchmarks/coverage.py --seeds 20 --networks trained --measures hessian_trace --measures loss
    python benchmarks/coverage.py --seeds 1000 --networks trained --measures ece --write        # a cell that fell short

Networks on 1,500 digits in float64: half trained, trained, trained with 4 % wrong labels, one whose two largest eigenvalues lie
0.5 % apart, and one with convolutions and rectifiers. Every measure is run by itself to its end, then with 5, 20 and 50 % of the
passes that this took. Every seed draws another order of rows, other probes, starts and directions. What is said holds the truth
where a bracket contains it, where a bound lies on the right side, or where the value is at most two standard errors away. The
truth is that of the dense Hessian and Gauss–Newton matrix; elsewhere what the measure says at the end, where that has no bar
(it is exact for this seed's batches, or the most that its search found), and otherwise the mean of that over all seeds.

Seeds go round all cells, so that a run that is stopped has as many of each. What was said is kept line by line (`--kept`), and
seeds that are there are not run again; `--write` makes `benchmarks/measured/coverage.json` and the table of the docs from it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn

import landscope as ls
from landscope.core.estimate import Estimate, Status
from landscope.measures.sharpness.eigenvalues import LogVolume
from landscope.probe import points

ROOT = Path(__file__).parents[1]
ROWS = 1500
PARTS = (0.05, 0.2, 0.5, 1.0)
TWINS, WRONG = "λ₂ = 0.995 λ₁", 60
WEIGHTS = ROOT / "benchmarks" / "measured" / "coverage_networks.safetensors"
"""Trained once: another machine rounds otherwise and would train other networks, and its seeds would not add up with these."""
ROUNDING = 1e-9
"""Relative: two float64 sums of the same numbers in another order."""
ENOUGH, NO_SEEDS = 25, {"seeds": 0}
"""Seeds from which on a cell says something in the docs."""
TURN = 5
"""Seeds of a cell that are run before the next cell has its turn."""
MARKERS = ("<!-- coverage: begin -->", "<!-- coverage: end -->")

MEASURES = (
    "loss", "accuracy", "brier", "ece", "classwise_ece", "hessian_top_eigenvalue", "hessian_bottom_eigenvalue", "hessian_trace",
    "hessian_frobenius", "hessian_spectrum", "log_volume", "ggn_top_eigenvalue", "ggn_trace", "ggn_frobenius",
    "average_sharpness", "random_sharpness", "sam_sharpness", "adaptive_sharpness", "relative_flatness", "fisher_rao", "igs",
    "gradient_norm", "gradient_noise",
)  # fmt: skip

Said = tuple[str, float, float, float]
"""Status, value, and the ends of the bracket, or two standard errors either way."""


class Twin(nn.Module):
    """Two copies of a network, one behind each of two inputs; the second sees its own parameters `scale` times as large.

    With the copies' weights divided accordingly the Hessian has two blocks, the second `scale`² times the first.
    """

    def __init__(self, net: nn.Module, scale: float) -> None:
        super().__init__()
        self.net, self.scale = net, scale
        self.other = nn.ParameterDict(
            {name.replace(".", "_"): nn.Parameter(p.detach() / scale) for name, p in net.named_parameters()}
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes, 2)."""
        weights = {name: self.scale * self.other[name.replace(".", "_")] for name, _ in self.net.named_parameters()}
        second = torch.func.functional_call(self.net, weights, (x[:, 1],))
        return torch.stack([self.net(x[:, 0]), second], -1)


def tanh_network() -> nn.Module:
    """610 parameters."""
    return nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))


def digits(wrong: int = 0) -> tuple[Tensor, Tensor]:
    """Rows and labels, some of which are drawn at random."""
    found = load_digits()
    x, y = torch.tensor(found.data[:ROWS] / 16), torch.tensor(found.target[:ROWS])
    if wrong:
        drawn = torch.Generator().manual_seed(0)
        y[torch.randperm(ROWS, generator=drawn)[:wrong]] = torch.randint(0, 10, (wrong,), generator=drawn)
    return x, y


def trained(net: nn.Module, steps: int, wrong: int = 0) -> nn.Module:
    """A network after some steps on all digits."""
    x, y = digits(wrong)
    optimizer = torch.optim.Adam(net.double().parameters(), 2e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


def convolutions() -> nn.Module:
    """Convolutions and rectifiers: the Hessian has the diagonal of the Gauss–Newton matrix."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 6, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6, 10),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "half trained": (tanh_network, 25, 0),
    "trained": (tanh_network, 900, 0),
    "4 % wrong labels": (tanh_network, 900, WRONG),
    "convolutions": (convolutions, 300, 0),
    TWINS: (tanh_network, 25, 0),
}
"""How each is made, its training steps and wrong labels. The twins are the half-trained network twice: λ₂ = 0.995 λ₁."""


def made() -> dict[str, dict[str, Tensor]]:
    """The weights of all networks: from the file beside this one; where it is missing they are trained and written there."""
    if not WEIGHTS.exists():
        found = {}
        for network, (kind, steps, wrong) in NETWORKS.items():
            if network != TWINS:
                torch.manual_seed(0)
                state = trained(kind(), steps, wrong).state_dict()
                found |= {f"{network}/{name}": p.contiguous() for name, p in state.items()}
        save_file(found, WEIGHTS)
    weights: dict[str, dict[str, Tensor]] = {}
    for name, p in load_file(WEIGHTS).items():
        network, _, parameter = name.partition("/")
        weights.setdefault(network, {})[parameter] = p
    return {**weights, TWINS: weights["half trained"]}


def network_and_data(network: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A network with its weights, and the digits."""
    kind, _, wrong = NETWORKS[network]
    net, (x, y) = kind().double(), digits(wrong)
    net.load_state_dict(made()[network])
    if network != TWINS:
        return net, x, y
    other = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    return Twin(net, math.sqrt(0.995)).double(), torch.stack([x, x[other]], 1), torch.stack([y, y[other]], 1)


def dense_truths(net: nn.Module, data: tuple[Tensor, Tensor]) -> dict[str, float]:
    """What the dense matrices say."""
    probe = ls.Probe(net, data)
    hessian, ggn = ls.Hessian(probe).dense(), ls.GGN(probe).dense()
    values = torch.linalg.eigvalsh(hessian)
    return {
        "hessian_top_eigenvalue": float(values[-1]),
        "hessian_spectrum": float(values[-1]),
        "hessian_bottom_eigenvalue": float(values[0]),
        "hessian_trace": float(hessian.trace()),
        "hessian_frobenius": float(hessian.norm()),
        "ggn_top_eigenvalue": float(torch.linalg.eigvalsh(ggn)[-1]),
        "ggn_trace": float(ggn.trace()),
        "ggn_frobenius": float(ggn.norm()),
        "log_volume": float(values[-LogVolume.k :].log().sum()),
    }


def said_by(found: Estimate) -> Said:
    """What an estimate says about the truth, in numbers."""
    low, high = found.bracket or (found.value - 2 * (found.stderr or 0.0), found.value + 2 * (found.stderr or 0.0))
    return found.status.value, found.value, low, high


def holds(said: Said, truth: float) -> bool:
    """Whether it is true: a bound on the right side, or the truth between the ends."""
    status, value, low, high = said
    slack = ROUNDING * max(abs(truth), abs(value))
    if status == Status.LOWER_BOUND.value:
        return truth >= value - slack
    if status == Status.UPPER_BOUND.value:
        return truth <= value + slack
    return low - slack <= truth <= high + slack


@cache
def subject(network: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """The network and its data, made once in every process."""
    torch.set_num_threads(1)
    points.SMALL_WORK = 0  # these networks are small: their early answers are wanted here all the same
    net, x, y = network_and_data(network)
    return net, (x, y)


def run(network: str, name: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """What a measure says after every part of its work, seed by seed."""
    net, data = subject(network)

    def stopped(seed: int, passes: float | None) -> Estimate:
        return ls.measure(ls.Probe(net, data, seed=seed), None, [name], passes=passes)[name]

    lines = []
    for seed in seeds:
        whole = stopped(seed, None)
        parts = [stopped(seed, max(part * whole.cost.passes, 1e-9)) for part in PARTS[:-1]]
        said = [said_by(found) for found in (*parts, whole)]
        lines.append({"network": network, "measure": name, "seed": seed, "said": said})
    return lines


def cell(lines: Sequence[dict[str, Any]], truth: float | None) -> dict[str, Any] | None:
    """Coverage and half-widths of one measure on one network, after every part of its work; `None` where it is not defined."""
    ends: list[Said] = [tuple(line["said"][-1]) for line in lines]
    if all(status == Status.NOT_APPLICABLE.value for status, *_ in ends):
        return None
    mean = statistics.fmean(value for _, value, _, _ in ends) if truth is None else truth
    own = truth is None and all(low == high for _, _, low, high in ends)
    truths = [end[1] if own else mean for end in ends]
    found: dict[str, Any] = {"truth": mean, "seeds": len(lines)}
    for place, part in enumerate(PARTS):
        said = [tuple(line["said"][place]) for line in lines]
        given = [(one, true) for one, true in zip(said, truths, strict=True) if one[0] != Status.SKIPPED.value]
        numbers = [one for one, _ in given if Status(one[0]).has_value and not Status(one[0]).is_bound]
        found[f"{part:g}"] = {
            "held": sum(holds(one, true) for one, true in given),
            "given": len(given),
            "numbers": len(numbers),
            "half_width": statistics.median((one[3] - one[2]) / 2 for one in numbers) / abs(mean) if numbers else None,
        }
    return found


def cells(lines: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Every cell of which there are seeds."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for network in NETWORKS:
        mine = [line for line in lines if line["network"] == network]
        truths = dense_truths(*subject(network)) if mine else {}
        for name in MEASURES:
            if of_name := sorted((line for line in mine if line["measure"] == name), key=lambda line: line["seed"]):
                one = cell(of_name, truths.get(name))
                found.setdefault(network, {}).update({} if one is None else {name: one})
    return found


def table(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Markdown: per network and measure, coverage (and median half-width) after each part of the work."""
    lines = ["| network | measure | seeds | 5 % | 20 % | 50 % | all |", "|---|---|--:|--:|--:|--:|--:|"]
    for network, row in found.items():
        for name, one in row.items():
            shown = " | ".join(_shown(one[f"{part:g}"]) for part in PARTS)
            lines.append(f"| {network} | `{name}` | {one['seeds']} | {shown} |")
    return "\n".join(lines)


def worst(found: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Of every measure the network on which what it says holds least often after some part, among cells of seeds enough."""

    def least(one: dict[str, Any]) -> float:
        parts = [one[f"{part:g}"] for part in PARTS]
        return min((part["held"] / part["given"] for part in parts if part["given"]), default=1.0)

    kept: dict[str, dict[str, dict[str, Any]]] = {}
    for name in MEASURES:
        if networks := [network for network, row in found.items() if row.get(name, NO_SEEDS)["seeds"] >= ENOUGH]:
            network = min(networks, key=lambda network: least(found[network][name]))
            kept.setdefault(network, {})[name] = found[network][name]
    return kept


def _shown(part: dict[str, Any]) -> str:
    if not part["given"]:
        return "–"
    text = f"{100 * part['held'] / part['given']:.3g} %"
    if part["numbers"] and part["half_width"] > 1e-6:
        text += f", ± {100 * part['half_width']:.2g} %"
    if 0 < part["numbers"] < part["given"]:
        text += f" ({part['given'] - part['numbers']} bounds)"
    elif not part["numbers"]:
        text += ", bounds"
    return text


def jobs(asked: argparse.Namespace, lines: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, list[int]]]:
    """What is missing: a few seeds of every cell, then the next few."""
    there = {(line["network"], line["measure"], line["seed"]) for line in lines}
    for first in range(0, asked.seeds, TURN):
        for network in asked.networks or NETWORKS:
            for name in asked.measures or MEASURES:
                turn = range(first, min(first + TURN, asked.seeds))
                if seeds := [seed for seed in turn if (network, name, seed) not in there]:
                    yield network, name, seeds


def work(asked: argparse.Namespace, lines: list[dict[str, Any]]) -> None:
    """Run what is missing, and keep it."""
    end = time.monotonic() + asked.seconds
    asked.kept.parent.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.processes, context) as pool, asked.kept.open("a", encoding="utf-8") as kept:
        waiting = {pool.submit(run, *job) for job in jobs(asked, lines)}
        try:
            for done in as_completed(waiting):
                if done.cancelled():
                    continue
                lines += done.result()
                kept.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in done.result())
                kept.flush()
                if (
                    time.monotonic() > end
                ):  # the pool tells of each; those that its own shutdown cancels are not heard of again
                    for one in waiting:
                        one.cancel()
        finally:  # an interrupted pool would do all that is waiting first
            pool.shutdown(cancel_futures=True)


def write(found: dict[str, dict[str, dict[str, Any]]]) -> None:
    """All cells as JSON, and each measure's worst in the docs."""
    numbers = ROOT / "benchmarks" / "measured" / "coverage.json"
    numbers.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page = ROOT / "docs" / "progressive.md"
    before, begin, rest = page.read_text(encoding="utf-8").partition(MARKERS[0])
    _, end, after = rest.partition(MARKERS[1])
    if not (begin and end):
        raise SystemExit(f"{page} has no place for the table: put {MARKERS[0]} and {MARKERS[1]} on two lines of it")
    page.write_text("\n".join([before + begin, table(worst(found)), end + after]), encoding="utf-8")


def main() -> None:
    """Run what is missing, keep it, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing after this long")
    parser.add_argument("--networks", action="append", choices=NETWORKS)
    parser.add_argument("--measures", action="append", choices=MEASURES)
    parser.add_argument("--kept", type=Path, default=ROOT / ".bench" / "coverage.jsonl", help="what was said so far")
    parser.add_argument("--write", action="store_true", help="write the numbers and the table of the docs")
    asked = parser.parse_args()
    known = asked.kept.read_text(encoding="utf-8").splitlines() if asked.kept.exists() else []
    lines = [json.loads(line) for line in known]
    work(asked, lines)
    found = cells(lines)
    print(table(found))
    if asked.write:
        write(found)


if __name__ == "__main__":
    main()
