"""Train a small network on scikit-learn's digits, measure it, print the table and draw the figures.

make demo        or        python examples/demo.py [FOLDER]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

import landscope as ls
from landscope import data, models
from landscope.spectra import Spectrum


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int = 30) -> None:
    """Plain SGD with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rng = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(epochs):
        for index in torch.randperm(len(x), generator=rng).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()


def main(folder: Path) -> None:
    """Everything, leaving its files in `folder`."""
    console = Console(width=130)
    folder.mkdir(parents=True, exist_ok=True)
    digits = data.load("digits")
    x, y = digits.train.x.flatten(1), digits.train.y
    model = models.build("mlp", in_features=x.shape[1], widths=(32, 32), num_classes=10)
    train(model, x, y)
    test = digits.test
    accuracy = (model.eval()(test.x.flatten(1)).argmax(1) == test.y).float().mean().item()
    console.print(
        f"An MLP with two hidden layers on {len(x)} digits: {100 * accuracy:.1f} % right on {len(test.y)} others.\n"
    )

    start = time.perf_counter()
    report = ls.measure(model, (x, y), seconds=120)
    console.print(report)
    report.save(folder / "report.json")
    report.plot().savefig(folder / "report.png", dpi=150)
    spectrum = Spectrum.from_dict(report["hessian_spectrum"].details)
    spectrum.plot().savefig(folder / "spectrum.png", dpi=150)
    console.print(
        f"\nMeasured in {time.perf_counter() - start:.0f} s. Look at {folder / 'spectrum.png'} (the eigenvalues of the Hessian), "
        f"{folder / 'report.png'} and {folder / 'report.json'}."
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
