"""The conditions of the fourth paper, as changes of a training, and what a task of it consists of.

`fam` is the method of the text, with its whole gradient. `fam as coded` is what made the paper's tables: the Hessian held
constant, and κ divided by the number of inputs of the layer where it is neuronwise. Images have both gradients at that λ, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = [
    "AS_CODED",
    "FAM_ROW",
    "STRENGTHS",
    "SWEEP_ROWS",
    "WEAKER",
    "Task",
    "Written",
    "autoencoder",
    "methods",
    "sweep",
    "text",
]

STRENGTHS = (0.0006, 0.002, 0.02, 0.1, 0.7)
"""λ of table 2."""
IMAGE_STRENGTH, TEXT_STRENGTH = 0.1, 3e6
AS_CODED = "as coded"
WEAKER = "fam, λ of the code"
"""The whole gradient with the strength that the code's division leaves: what tells the gradients apart, at the same λ."""

Written: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One part at one size: how it is trained, under which conditions, and what stands beside it."""

    training: Written
    conditions: Mapping[str, Written]
    note: str
    seeds: int = 3
    published: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    paper_conditions: Mapping[str, str] = field(default_factory=dict)


def methods(inputs: int, sam: Written | None = None) -> dict[str, Written]:
    """Plain training, SAM and FAM on a classifier with so many inputs, by which the code divides κ."""
    return {
        "baseline": {},
        "sam": {"sam.rho": 0.05, **(sam or {})},
        "fam": {"fam.strength": IMAGE_STRENGTH},
        f"fam {AS_CODED}": {"fam.strength": IMAGE_STRENGTH / inputs, "fam.gradient": "weights_only"},
        WEAKER: {"fam.strength": IMAGE_STRENGTH / inputs},
    }


def sweep(strengths: tuple[float, ...] = STRENGTHS) -> dict[str, Written]:
    """Table 2: ‖W‖² tr H of the layer that reads the code, by one random product per step."""
    found: dict[str, Written] = {"baseline": {}}
    for strength in strengths:
        fam = {"fam.strength": strength, "fam.layer": "decode", "fam.form": "layerwise", "fam.probes": 1}
        found |= {f"fam {strength:g}": fam, f"fam {strength:g} {AS_CODED}": {**fam, "fam.gradient": "weights_only"}}
    return found


def text(inputs: int) -> dict[str, Written]:
    """Table 3, and FAM with the λ of the images: beside 3e6 times the whole gradient of κ hardly any of the loss counts."""
    return {
        "baseline": {},
        "fam": {"fam.strength": TEXT_STRENGTH},
        f"fam {AS_CODED}": {"fam.strength": TEXT_STRENGTH / inputs, "fam.gradient": "weights_only"},
        f"fam {IMAGE_STRENGTH:g}": {"fam.strength": IMAGE_STRENGTH},
    }


FAM_ROW = {"fam": f"fam {AS_CODED}"}
"""The paper's FAM is what its code did."""
SWEEP_ROWS = {f"fam {strength:g}": f"fam {strength:g} {AS_CODED}" for strength in STRENGTHS}


def autoencoder(
    data: object, model: object, *, n_train: int, batch_size: int, epochs: int, lr: float = 1e-4
) -> Written:
    """Adam with the Dice loss; weights are kept at half time, too, as in table 2."""
    return {
        "data": data,
        "model": model,
        "loss": "dice",
        "epochs": epochs,
        "batch_size": batch_size,
        "optimizer": {"name": "adam", "lr": lr},
        "snapshots": [epochs // 2 * (n_train // batch_size)],
    }
