"""A made-up study that looks like a real one: conditions × seeds, sharpness that goes with the error, every kind of extra."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from landscope.core.estimate import Cost, Estimate, Status
from landscope.core.json import Plain
from landscope.measures import Report
from landscope.spectra import spectrum
from landscope.studies.record import MeasuredModel, Record

CONDITIONS = ("baseline", "weight decay", "augmentation", "SAM")
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "\"quoted\" & 'single' `${1}`",
    "ψυχή 测试 🜂 %{x}",
)
LAYERS = ("conv1", "conv2", "fc1", "fc2")


def make_records(
    conditions: Sequence[str] = CONDITIONS,
    seeds: int = 5,
    *,
    extras: bool = True,
    temperature: bool = True,
    epochs: int = 30,
) -> list[Record]:
    """Runs in the order of conditions and seeds; the first seed of a condition has a landscape."""
    return [
        _record(number, condition, seed, extras, temperature, epochs)
        for number, condition in enumerate(conditions)
        for seed in range(seeds)
    ]


def _record(number: int, condition: str, seed: int, extras: bool, temperature: bool, epochs: int) -> Record:
    rng = np.random.default_rng(1000 * number + seed)
    # Conditions differ in sharpness and error alike; inside a condition the relation to calibration is turned around.
    level = 1.5 - 0.4 * (number % 5)
    sharp = level + 0.5 * rng.normal()
    error = float(np.clip(0.12 + 0.02 * level + 0.008 * (sharp - level) + 0.01 * rng.normal(), 0.01, 0.9))
    fitted = float(1.6 + 0.2 * rng.normal())
    history: list[dict[str, Plain]] = [
        {
            "epoch": epoch,
            "train_loss": float(2.3 * np.exp(-epoch / 6) + 0.01 * np.exp(0.1 * rng.normal())),
            "test_error": float(error + 0.6 * np.exp(-epoch / 5) + 0.004 * rng.normal()),
            "lr": 0.1 if epoch < epochs // 2 else 0.01,
        }
        for epoch in range(epochs)
    ]
    subjects = [_subject(rng, number, seed, sharp, error, 1.0, extras)]
    if temperature:
        subjects.append(_subject(rng, number, seed, sharp, error, fitted, extras))
    return Record(
        run=f"{number:02x}{seed:02x}c0ffee",
        condition=condition,
        axes={"regulariser": condition, "widths": [64, 32]},
        seed=seed,
        spec={"training": {"model": "mlp", "seed": seed}, "condition": condition},
        subjects=tuple(subjects),
        history=tuple(history),
        environment={"torch": "2.6.0", "python": "3.11.7", "commit": "4234333", "device": "cpu"},
        seconds=30.0 + 5 * float(rng.random()),
        peak_memory=400_000_000 + 1000 * seed,
    )


def _subject(
    rng: np.random.Generator, number: int, seed: int, sharp: float, error: float, temperature: float, extras: bool
) -> MeasuredModel:
    scaled = temperature != 1.0
    trace = float(200 * np.exp(1.4 * sharp))
    level = 1.5 - 0.4 * (number % 5)
    ece = float(0.02 if scaled else 0.06) + 0.03 * level - 0.012 * (sharp - level) + 0.008 * float(rng.normal())

    def near(value: float, relative: float = 0.02, status: Status = Status.CONVERGED) -> Estimate:
        found = value * float(np.exp(0.5 * rng.normal()))
        return Estimate(found, relative * abs(found), 2 * relative * abs(found), status, cost=Cost(12.0, 0.4))

    ranks = np.unique(np.geomspace(1, 640, 60).round())
    curve = 0.4 * np.exp(0.5 * sharp + 0.3 * rng.normal()) * (1 - np.exp(-ranks / 60))
    train = {
        "loss": Estimate(0.02 * float(np.exp(-0.3 * sharp + 0.4 * rng.normal())) * (1 + scaled)),
        "error": Estimate(0.002 * float(rng.random())),
        "hessian_trace": near(trace),
        "hessian_top_eigenvalue": near(trace / 12, 0.001),
        "hessian_frobenius": near(trace / 7),
        "relative_flatness": near(12 * float(np.exp(0.7 * sharp))),
        "fisher_rao": near(0.8 + 0.3 * number),
        "l2_norm": Estimate(40.0 + 3 * number + float(rng.normal())),
        "sam_sharpness": near(0.012 * float(np.exp(0.9 * sharp)), 0.05, Status.BUDGET_SPENT)
        if seed % 2 == 0
        else near(0.012 * float(np.exp(0.9 * sharp)), 0.05),
        "adaptive_sharpness": Estimate.failed("the ascent did not end") if seed == 1 else near(0.2, 0.1),
        "pac_bayes_sigma": Estimate.not_applicable("a batch-normalised network"),
        "igs": Estimate(
            float(curve[20]),
            data_stderr=0.01,
            settings={"rank": 20, "batch_size": 64},
            details={
                "ranks": ranks.astype(int).tolist(),
                "curve": curve.tolist(),
                "mean_log_curve": np.log(curve).tolist(),
                "mean_log": float(np.log(curve[20])),
                "saturated": float(curve[-1]),
            },
        ),
    }
    if extras:
        outliers = trace / 12 * np.array([1.0, 0.6, 0.35, 0.2])
        values = np.concatenate([0.5 * np.exp(0.5 * sharp) * rng.standard_normal(60) * 0.1, outliers])
        found = spectrum(np.diag(values), steps=24, probes=2, seed=seed)
        train["hessian_spectrum"] = Estimate(
            float(values.max()), 0.01, status=Status.CONVERGED, details=found.to_dict()
        )
    test = {
        "loss": Estimate(0.5 + 0.2 * sharp * (0.6 if scaled else 1.0) + 0.15 * float(rng.normal()), data_stderr=0.02),
        "error": Estimate(error, data_stderr=0.007),
        "accuracy": Estimate(1 - error, data_stderr=0.007),
        "ece": Estimate(max(ece, 0.001), 0.004, 0.004),
        "brier": Estimate(0.8 * error + 0.01 * float(rng.normal()), data_stderr=0.006),
    }
    plain: dict[str, Plain] = {}
    if extras:
        plain = {"reliability": _reliability(rng, 0.02 if scaled else 0.35), "layers": _layers(rng, sharp)}
        if not scaled and seed == 0:
            plain |= {"landscape": _landscape(rng, sharp), "invariance": _invariance()}
    about: dict[str, Plain] = {"model": "MLP", "parameters": "12,345 parameters", "samples": "1,000 samples"}
    reports = {"train": Report(train, about), "test": Report(test, about)}
    if scaled:
        reports["calibration"] = Report({"temperature": Estimate(temperature, 0.05)})
    elif extras:
        corrupted = np.clip(1 - error - np.outer([0.03, 0.08], range(1, 6)) * (1 + 0.2 * sharp), 0, 1)
        reports["corrupted"] = Report({"accuracy": Estimate(float(corrupted.mean()), data_stderr=0.01)})
        plain["corruptions"] = {
            "names": ["fog", "gaussian_noise"],
            "severities": [1, 2, 3, 4, 5],
            "accuracy": corrupted.tolist(),
            "clean": 1 - error,
            "temperature": 1.0,
        }
    return MeasuredModel(checkpoint="final", temperature=temperature, reports=reports, extras=plain)


def _reliability(rng: np.random.Generator, overconfidence: float) -> dict[str, Plain]:
    edges = np.linspace(0, 1, 16)
    middle = (edges[:-1] + edges[1:]) / 2
    counts = np.where(middle < 0.2, 0, (800 * middle**4 + 5).round()).astype(int)
    stated = np.where(counts > 0, middle, np.nan)
    right = np.clip(stated - overconfidence * stated * (1 - stated) + 0.02 * rng.normal(size=15), 0, 1)
    columns = {"lower": edges[:-1], "upper": edges[1:], "count": counts, "confidence": stated, "accuracy": right}
    return {name: [None if np.isnan(v) else float(v) for v in values] for name, values in columns.items()}


def _layers(rng: np.random.Generator, sharp: float) -> dict[str, Plain]:
    trace = np.exp(sharp) * np.array([30.0, 12.0, 6.0, 2.0]) * np.exp(0.1 * rng.normal(size=4))
    return {
        "layer": list(LAYERS),
        "hessian_trace": trace.tolist(),
        "hessian_trace_stderr": (0.03 * trace).tolist(),
        "relative_flatness": [None, None, 3.0, 9.0],
        "relative_flatness_stderr": [None, None, 0.1, 0.2],
    }


def _landscape(rng: np.random.Generator, sharp: float) -> dict[str, Plain]:
    axis = np.linspace(-1, 1, 21)
    a, b = np.meshgrid(axis, axis)
    skew = 0.3 * rng.normal(size=2)

    def loss(shift: float) -> list[list[float | None]]:
        height = 0.02 + np.exp(sharp) * (
            (a - shift) ** 2 + 0.5 * (b - shift) ** 2 + skew[0] * a**3 + 0.4 * (a * b) ** 2
        )
        rows: list[list[float | None]] = np.maximum(height, 0.01).tolist()
        rows[0][0] = None  # overflow at a corner
        return rows

    return {
        "axes": [axis.tolist(), axis.tolist()],
        "values": {"loss": loss(0.0), "accuracy": None, "samples": 1000},
        "others": {"test": {"loss": loss(0.15), "accuracy": None, "samples": 500}},
        "directions": {
            "kind": "random",
            "labels": ["1st random direction, in filter norms", "2nd random direction, in filter norms"],
            "norms": [3.0, 3.1],
            "moved_parameters": 12000,
            "origin_norm": 40.0,
            "cosine": 0.004,
        },
        "status": "exact",
        "reason": "",
        "cost": {"passes": 441.0, "seconds": 3.0, "bytes": 0},
        "settings": {"name": "train", "resolution": [21, 21]},
    }


def _invariance() -> dict[str, Plain]:
    still, moved = {"change": 1e-7, "error": 1e-6}, {"change": 2.31, "error": 0.01}
    return {
        "hessian_trace": {"layer_rescaling": dict(moved), "permutation": dict(still), "batchnorm_scaling": None},
        "relative_flatness": {"layer_rescaling": dict(still), "permutation": dict(still), "batchnorm_scaling": None},
    }
