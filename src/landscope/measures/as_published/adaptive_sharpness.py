"""Paper 5, as coded: adaptive sharpness and generalisation; one notebook for each family of models.

The text has one estimator for all: batches S of 64, five projected gradient steps with the learning rate of training, the
highest L_S(w + δ) − L_S(w), ‖δ ⊘ |w|‖_∞ ≤ ρ, the mean over 50 batches. That is the corrected measure here (with Auto-PGD,
`method="apgd"`, the same measure finds more). The notebooks did three other things: see `notebook_ascent`.
"""

from __future__ import annotations

from landscope.measures.as_published.notebook_ascent import (
    FewRestartsSharpness,
    MovedCentreSharpness,
    UnsignedBallSharpness,
)
from landscope.measures.as_published.preset import AS_PUBLISHED, Preset
from landscope.measures.sharpness.worst_case import AdaptiveSharpness

__all__: list[str] = []


def _as_described(rho: float, learning_rate: float) -> AdaptiveSharpness:
    return AdaptiveSharpness(
        rho=rho, p="inf", batch_size=64, steps=5, method="pga", step_size=learning_rate, batches=50
    )


AS_PUBLISHED.register("adaptive-sharpness")(
    Preset(
        paper="H. Hammoud, O. Liossatos, L. Nicollier. Adaptive Sharpness and Generalization",
        measures={
            "adaptive_sharpness_fcnn": UnsignedBallSharpness(rho=0.025, learning_rate=0.102),
            "adaptive_sharpness_lenet5": MovedCentreSharpness(rho=1e-4, learning_rate=0.05),
            "adaptive_sharpness_gat": FewRestartsSharpness(rho=0.02, learning_rate=0.236, trials=5),
        },
        corrected={
            "adaptive_sharpness_fcnn": _as_described(0.025, 0.014),
            "adaptive_sharpness_lenet5": _as_described(1e-4, 0.05),
            "adaptive_sharpness_gat": _as_described(0.02, 0.236),
        },
        difference={
            "adaptive_sharpness_fcnn": (
                "The projection onto w ± ρw lacks |w|, so that negative weights are set to (1 + ρ)w; full-data steps for six "
                "epochs, no batches. Corrected: `adaptive_sharpness(rho=0.025, batch_size=64, steps=5, method='pga', "
                "step_size=0.014, batches=50)`, as the text describes."
            ),
            "adaptive_sharpness_lenet5": (
                "The ball is centred on the weights after the first, free step; five epochs of batches in training mode, so "
                "that dropout and moving BatchNorm statistics are part of the value. Corrected: `adaptive_sharpness(rho=1e-4, "
                "batch_size=64, steps=5, method='pga', step_size=0.05, batches=50)`, as the text describes."
            ),
            "adaptive_sharpness_gat": (
                "5 restarts in place of 50, judged by the loss on all data with dropout on, summed over batches. Corrected: "
                "`adaptive_sharpness(rho=0.02, batch_size=64, steps=5, method='pga', step_size=0.236, batches=50)`, as the "
                "text describes."
            ),
        },
        setup=(
            "Each measure belongs to its family: the FCNN on Abalone (standardised inputs and targets, `loss='mse'`), "
            "LeNet-5 with BatchNorm and dropout 0.5 on FashionMNIST, the GAT on the 140 training nodes of Cora; training data."
        ),
    )
)
