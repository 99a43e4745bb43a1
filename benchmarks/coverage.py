"""How often what `landscope.measure` says holds the truth where it is stopped after part of its work.

    python benchmarks/coverage.py --seeds 200                          # every cell, several hours on one core
    python benchmarks/coverage.py --seeds 20 --networks trained --measures hessian_trace --measures loss

Networks on 1,500 digits in float64: half trained, trained, trained with 4 % wrong labels, and one whose two largest
eigenvalues lie 0.5 % apart. Every measure is run by itself to its end, then with 5, 20, 50 and 100 % of the passes that this
took. Every seed draws another order of rows, other probes, starts and directions. What is said holds the truth where a
bracket contains it, where a bound lies on the right side, or where the value is at most two standard errors away. The truth is
that of the dense Hessian and Gauss–Newton matrix, a value that is exact with all rows read, or, for noise whose law has no closed
form, the mean over all seeds at the end. Finished cells are kept (`benchmarks/measured/coverage.json`), so the command resumes.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import landscope as ls
from landscope.core.estimate import Estimate, Status
from landscope.probe import points

ROWS = 1500
PARTS = (0.05, 0.2, 0.5, 1.0)
KEPT = Path(__file__).parent / "measured" / "coverage.json"
ROUNDING = 1e-9
"""Relative: two float64 sums of the same numbers in another order."""

MEASURES = (
    "loss", "accuracy", "ece", "hessian_top_eigenvalue", "hessian_bottom_eigenvalue", "hessian_trace", "hessian_frobenius",
    "ggn_top_eigenvalue", "ggn_trace", "hessian_spectrum", "average_sharpness", "sam_sharpness", "relative_flatness",
    "fisher_rao", "gradient_norm", "gradient_noise",
)  # fmt: skip


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


def trained(wrong: int, steps: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A small network on digits, some labels of which are drawn at random."""
    digits = load_digits()
    x, y = torch.tensor(digits.data[:ROWS] / 16, dtype=torch.float32), torch.tensor(digits.target[:ROWS])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
    if wrong:
        y[torch.randperm(ROWS)[:wrong]] = torch.randint(0, 10, (wrong,))
    optimizer = torch.optim.Adam(net.parameters(), 2e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net.double(), x.double(), y


def twins() -> tuple[nn.Module, Tensor, Tensor]:
    """The half-trained network twice: λ₂ = 0.995 λ₁."""
    net, x, y = trained(0, 25)
    other = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    return Twin(net, math.sqrt(0.995)).double(), torch.stack([x, x[other]], 1), torch.stack([y, y[other]], 1)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor]]] = {
    "half trained": lambda: trained(0, 25),
    "trained": lambda: trained(0, 900),
    "4 % wrong labels": lambda: trained(60, 900),
    "λ₂ = 0.995 λ₁": twins,
}


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
    }


def holds(said: Estimate, truth: float) -> bool:
    """Whether an estimate is true: within its bracket, on the right side of its bound, or within two standard errors."""
    slack = ROUNDING * max(abs(truth), abs(said.value))
    if said.status is Status.LOWER_BOUND:
        return truth >= said.value - slack
    if said.status is Status.UPPER_BOUND:
        return truth <= said.value + slack
    low, high = said.bracket or (said.value - 2 * (said.stderr or 0.0), said.value + 2 * (said.stderr or 0.0))
    return low - slack <= truth <= high + slack


def half_width(said: Estimate) -> float:
    """Half of the bracket, or two standard errors."""
    return (said.bracket[1] - said.bracket[0]) / 2 if said.bracket else 2 * (said.stderr or 0.0)


def cell(net: nn.Module, data: tuple[Tensor, Tensor], name: str, truth: float | None, seeds: int) -> dict[str, object]:
    """Coverage, half-widths and kinds of answers of one measure on one network, for every part of its work."""
    said: dict[float, list[Estimate]] = {part: [] for part in PARTS}
    ends: list[Estimate] = []
    for seed in range(seeds):
        whole = ls.measure(ls.Probe(net, data, seed=seed), None, [name])[name]
        ends.append(whole)
        for part in PARTS:
            budget = whole.cost.passes * part if part < 1 else None
            said[part].append(
                whole
                if budget is None
                else ls.measure(ls.Probe(net, data, seed=seed), None, [name], passes=budget)[name]
            )
    bound = any(end.status.is_bound for end in ends)
    if truth is None:  # the best of a search is the largest of all seeds
        truth = max(end.value for end in ends) if bound else float(np.mean([end.value for end in ends]))
    found: dict[str, object] = {"truth": truth, "seeds": seeds}
    for part, estimates in said.items():
        given = [one for one in estimates if one.status is not Status.SKIPPED]
        numbers = [one for one in given if not one.status.is_bound]
        found[f"{part:g}"] = {
            "held": sum(holds(one, truth) for one in given),
            "given": len(given),
            "numbers": len(numbers),
            "half_width": float(np.median([half_width(one) for one in numbers]) / abs(truth)) if numbers else None,
        }
    return found


def table(cells: dict[str, dict[str, dict[str, object]]]) -> str:
    """Markdown: per network and measure, coverage (and median half-width) after each part of the work."""
    lines = ["| network | measure | seeds | 5 % | 20 % | 50 % | all |", "|---|---|--:|--:|--:|--:|--:|"]
    for network, row in cells.items():
        for name, found in row.items():
            lines.append(
                f"| {network} | `{name}` | {found['seeds']} | "
                + " | ".join(map(_shown, (found[f"{p:g}"] for p in PARTS)))
                + " |"
            )
    return "\n".join(lines)


def _shown(part: object) -> str:
    assert isinstance(part, dict)
    if not part["given"]:
        return "–"
    text = f"{part['held'] / part['given']:.1%}"
    if part["numbers"]:
        text += f", ± {part['half_width']:.2g}"
    if part["numbers"] < part["given"]:
        text += f" ({part['given'] - part['numbers']} bounds)"
    return text


def main() -> None:
    """Run what is missing, keep it, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--networks", action="append", choices=NETWORKS)
    parser.add_argument("--measures", action="append", choices=MEASURES)
    parser.add_argument("--again", action="store_true", help="run cells again that are kept")
    asked = parser.parse_args()
    points.SMALL_WORK = 0  # these networks are small: their early answers are wanted here all the same
    torch.set_num_threads(1)
    cells: dict[str, dict[str, dict[str, object]]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for network in asked.networks or NETWORKS:
        net, x, y = NETWORKS[network]()
        truths = dense_truths(net, (x, y))
        for name in asked.measures or MEASURES:
            kept = cells.setdefault(network, {}).get(name)
            if kept is not None and int(str(kept["seeds"])) >= asked.seeds and not asked.again:
                continue
            cells[network][name] = cell(net, (x, y), name, truths.get(name), asked.seeds)
            KEPT.write_text(json.dumps(cells, indent=1, ensure_ascii=False) + "\n")
            print(table({network: {name: cells[network][name]}}).splitlines()[-1], flush=True)
    print(table(cells))


if __name__ == "__main__":
    main()
