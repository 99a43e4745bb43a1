"""The three families of models of paper 5: how each is trained and measured, by the text and by its notebook.

`fcnn`, `lenet5` and `gat` have one training each, read from the text. The parts that end in `-notebook` have several trainings
side by side, the first as its notebook has it, and `lenet5-radii` repeats those of LeNet-5 with other radii.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

__all__ = [
    "AS_CODED",
    "AS_DESCRIBED",
    "BATCH",
    "FAMILIES",
    "FASHION",
    "RADII",
    "UNTIL_LEARNT",
    "Family",
    "left_in_evaluation",
    "radius_name",
]

AS_CODED, AS_DESCRIBED = "as coded", "as described"
"""How models are trained: by the notebooks, slips included, and by the text."""
TRAINING_MODE, UNTIL_LEARNT = "in training mode", "until learnt"
"""As coded but for one thing: LeNet-5 stays in training mode; the graph network is trained on."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of model: how it is trained, and the measure of the preset that belongs to it."""

    title: str
    training: Mapping[str, object]
    """What all its trainings have in common."""
    trainings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """The conditions where there are several; the first is that of its notebook."""
    measure: str
    published: Mapping[str, str | tuple[str, ...]]
    tau: float
    seeds: int = 50
    rows: int | None = None
    """Training rows on which the models of the paper's size are measured; all of them unless given."""
    measures: Mapping[str, Mapping[str, object] | None]
    """On the training rows, besides the loss and those of the preset."""


FASHION = {"name": "fashion_mnist", "pixels": "standard", "validation": 0}
BATCH = 64
EPOCH_OF_FCNN = 53
"""Steps on all 3,340 rows that the FCNN notebook calls an epoch: as many as it has batches, which it draws and does not use."""
RADII = (1e-4, 1e-3, 1e-2)
"""The paper's radius for LeNet-5, and two larger ones: its text says that several were tried."""

_CONVERGED = {"relative_change": 0.05}
_ASCENT = "landscope:MovedCentreSharpness"
_STALE: Mapping[str, Mapping[str, object] | None] = {"stale_statistics": {"measure": "landscope:StaleStatistics"}}
_CHEAP: Mapping[str, Mapping[str, object] | None] = {
    "l2_norm": None,
    "gradient_norm": None,
    "fisher_rao": None,
    "sam_sharpness": None,
    "average_sharpness": {"rho": 0.01},
}
_HESSIAN: Mapping[str, Mapping[str, object] | None] = {
    "hessian_top_eigenvalue": {"tol": 0.01},
    "hessian_trace": {"tol": 0.1, "max_matvecs": 32},
}


def radius_name(rho: float) -> str:
    """As columns are named.

    >>> radius_name(1e-4)
    '1e-4'
    """
    return f"{rho:.0e}".replace("e-0", "e-")


def _radii() -> dict[str, Mapping[str, object] | None]:
    """The ascent of the LeNet notebook with dropout on and off (and BatchNorm moving or not), and the text's, by radius."""
    described = {"p": "inf", "batch_size": BATCH, "steps": 5, "method": "pga", "step_size": 0.05, "batches": 50}
    found: dict[str, Mapping[str, object] | None] = {}
    for rho in RADII:
        name = radius_name(rho)
        if rho != RADII[0]:  # these two are the preset's
            found[f"notebook {name}"] = {"measure": _ASCENT, "rho": rho}
            found[f"text {name}"] = {"measure": "adaptive_sharpness", "rho": rho, **described}
        found[f"notebook, evaluation mode {name}"] = {"measure": _ASCENT, "rho": rho, "training_mode": False}
    return found


def left_in_evaluation(rows: int) -> dict[str, object]:
    """LeNet-5 that stays in evaluation mode after one epoch over `rows` rows."""
    return {"name": "landscope:lenet5_left_in_evaluation", "steps": -(-rows // BATCH)}


_WITHOUT_POINTS = {"table": ("figure 1", "notebook")}
"""Published numbers without those read off the figure, which stand beside models that were trained as coded."""

_FCNN = Family(
    title="FCNN 10-64-64-1 on Abalone",
    training={
        "data": {"name": "abalone", "pixels": "standard", "standard_targets": True, "validation": 0},
        "model": {"name": "mlp", "widths": [64, 64], "init": "xavier"},
        "optimizer": {"name": "sgd", "lr": 0.014, "momentum": 0.0},
        "convergence": _CONVERGED,
    },
    measure="adaptive_sharpness_fcnn",
    published={"data": "abalone", "model": "fcnn"},
    tau=-0.311,
    measures={**_CHEAP, **_HESSIAN},
)
_LENET5 = Family(
    title="LeNet-5 with BatchNorm and dropout on FashionMNIST",
    training={
        "data": FASHION,
        "model": {"name": "lenet5", "batch_norm": True, "dropout": 0.5, "init": "xavier"},
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.0},
        "convergence": _CONVERGED,
    },
    measure="adaptive_sharpness_lenet5",
    published={"data": "fashionmnist", "model": "lenet5"},
    tau=-0.180,
    measures={**_CHEAP, **_HESSIAN},
)
_GAT = Family(
    title="graph attention network on Cora",
    training={
        "data": {"name": "cora"},
        "model": {"name": "gat"},
        "optimizer": {"name": "sgd", "lr": 0.236, "momentum": 0.0},
    },
    measure="adaptive_sharpness_gat",
    published={"data": "cora", "model": "gat"},
    tau=-0.185,
    measures={**_CHEAP, **_HESSIAN},
)
_LENET5_NOTEBOOK = replace(
    _LENET5,
    trainings={
        AS_CODED: {"model": left_in_evaluation(60_000), "optimizer.weight_decay": 5e-3},
        TRAINING_MODE: {"model.init": "pytorch", "optimizer.weight_decay": 5e-3},
        AS_DESCRIBED: {},
    },
    measures={**_CHEAP, **_STALE},
)

FAMILIES: Mapping[str, Family] = {
    "fcnn": replace(_FCNN, published={**_FCNN.published, **_WITHOUT_POINTS}),
    "lenet5": replace(_LENET5, published={**_LENET5.published, **_WITHOUT_POINTS}, rows=10_000),
    "gat": replace(
        _GAT,
        training={**_GAT.training, "convergence": {**_CONVERGED, "after": 10}, "epochs": 100},
        published={**_GAT.published, **_WITHOUT_POINTS},
    ),
    "fcnn-notebook": replace(
        _FCNN,
        trainings={
            AS_CODED: {
                "data": {"name": "landscope:abalone_of_the_notebook"},
                "model": {"name": "mlp", "widths": [64, 64], "activation": "elu", "activate_output": True},
                "optimizer.lr": 0.102,
                "batch_size": "full",
                "epochs": 12 * EPOCH_OF_FCNN,
                "evaluate_every": EPOCH_OF_FCNN,
            },
            AS_DESCRIBED: {},
        },
        seeds=200,
    ),
    "lenet5-notebook": _LENET5_NOTEBOOK,
    "lenet5-radii": replace(_LENET5_NOTEBOOK, seeds=10, measures={**_HESSIAN, **_STALE, **_radii()}),
    "gat-notebook": replace(
        _GAT,
        trainings={
            AS_CODED: {"epochs": 20, "convergence": {**_CONVERGED, "after": 11}},
            UNTIL_LEARNT: {"epochs": 200},
        },
        seeds=200,
    ),
}
