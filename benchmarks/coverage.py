"""How often early answers hold the truth: λ₁'s bracket and the trace's error bar after part of the rows.

    python benchmarks/coverage.py --seeds 40

Networks on 1,500 digits, float64, against the dense Hessian: half trained, trained, and trained on 4 % wrong labels. Every
seed draws another order of rows and other probes. `docs/progressive.md` has the table.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import landscope as ls
from landscope.measures.row_measure import RowValues
from landscope.measures.sharpness.early import early_brackets, row_quadratics
from landscope.measures.sharpness.traces import HessianTrace
from landscope.probe import points
from landscope.probe.rows.means import row_mean

ROWS = 1500
BEDS = {"half trained": (0, 25), "trained": (0, 900), "4 % wrong labels": (60, 900)}
PARTS = (0.05, 0.2, 0.5, 1.0)


def trained(wrong: int, steps: int) -> tuple[nn.Module, Tensor, Tensor, float]:
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
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    return net.double(), x.double(), y, loss.item()


def main() -> None:
    """Print coverage and half-widths."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40)
    seeds = parser.parse_args().seeds
    points.SMALL_WORK = 0  # these networks are small: their early answers are wanted here all the same
    torch.set_num_threads(1)
    for name, (wrong, steps) in BEDS.items():
        net, x, y, loss = trained(wrong, steps)
        hessian = ls.Hessian(ls.Probe(net, (x, y))).dense()
        top, trace = float(torch.linalg.eigvalsh(hessian)[-1]), float(hessian.trace())
        found: dict[str, list[tuple[bool, float]]] = defaultdict(list)
        for seed in range(seeds):
            probe = ls.Probe(net, (x, y), seed=seed)
            for bracket in early_brackets(probe, "hessian", 1.0, seed):
                if bracket is not None:
                    held = bracket.low <= top <= bracket.high
                    found[f"λ₁, {bracket.rows} rows"].append((held, (bracket.high - bracket.low) / 2 / top))
            measure, nothing = HessianTrace(seed=seed), torch.empty((0, probe.n_params), dtype=torch.float64)
            values = RowValues(
                probe,
                lambda batch, unit, probe=probe, measure=measure, nothing=nothing: row_quadratics(
                    probe, "hessian", batch, [measure._probe_of(probe, nothing, 0, unit, which) for which in (0, 1)]
                ),
                load=2.0,
                passes=1.0,
                shared=True,
            )
            for _ in values.read():
                pass
            assert values.order is not None
            for part in PARTS:
                count = int(part * ROWS)
                mean = row_mean(values.values[:count], values.order, values.units[:count])
                held = mean.low <= trace <= mean.high
                found[f"trace, {part:.0%} of the rows"].append((held, (mean.high - mean.low) / 2 / trace))
        print(f"{name}: loss {loss:.3f}, λ₁ {top:.3g}, trace {trace:.3g}")
        for what, cases in found.items():
            held, widths = zip(*cases, strict=True)
            print(f"    {what:28s} held {np.mean(held):4.0%} of {len(held)}, half-width {np.median(widths):.0%}")


if __name__ == "__main__":
    main()
