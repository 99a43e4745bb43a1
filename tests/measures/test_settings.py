"""Settings of measures: of their type and in their range, or refused by name before anything is measured."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from landscope.core.errors import LandscopeError, SpecError
from landscope.measures.resolve import resolve_measures

WRONG = [
    ("hessian_top_eigenvalue", "k", 2.5, "must be an integer, but is 2.5"),
    ("hessian_top_eigenvalue", "k", "2", "must be an integer, but is '2'"),
    ("hessian_top_eigenvalue", "k", True, "must be an integer"),
    ("hessian_top_eigenvalue", "k", 0, "k"),
    ("hessian_top_eigenvalue", "tol", math.nan, "must be a number"),
    ("hessian_top_eigenvalue", "tol", -1, "tol"),
    ("hessian_trace", "tol", -1, "tol must be positive, got -1"),
    ("hessian_trace", "tol", "0.1", "must be a number, but is '0.1'"),
    ("hessian_trace", "max_matvecs", 10.5, "must be an integer or nothing"),
    ("hessian_trace", "max_matvecs", -1, "max_matvecs"),
    ("log_volume", "max_matvecs", -1, "max_matvecs"),
    ("ggn_top_eigenvalue", "max_matvecs", -1, "max_matvecs"),
    ("hessian_spectrum", "steps", 1e3, "must be an integer"),
    ("hessian_spectrum", "probes", [1], "must be an integer"),
    ("ece", "n_bins", 0, "bins"),
    ("ece", "n_bins", None, "must be an integer"),
    ("ece", "resamples", 1, "resamples"),
    ("l2_norm", "squared", "yes", "must be true or false"),
    ("l2_norm", "layer", 3, "must be a text or nothing"),
    ("average_sharpness", "rho", math.nan, "must be a number"),
    ("average_sharpness", "include", [1], "include"),
    ("adaptive_sharpness", "p", "two", "p"),
    ("fisher_rao", "labels", "mine", "must be one of 'model', 'data'"),
    ("loss", "seed", 1.5, "must be an integer"),
]


@pytest.mark.parametrize(("name", "key", "value", "message"), WRONG, ids=[f"{n}-{k}-{v!r}" for n, k, v, _ in WRONG])
def test_wrong_settings_are_refused_by_name(name: str, key: str, value: object, message: str) -> None:
    with pytest.raises(LandscopeError, match=f"^{name}: .*{message}") as raised:
        resolve_measures({name: {key: value}})
    assert isinstance(raised.value, SpecError)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("hessian_top_eigenvalue", {"k": np.int64(2), "tol": np.float32(0.01)}),
        ("hessian_trace", {"tol": 1, "max_matvecs": None}),
        ("average_sharpness", {"include": ["weight"]}),
        ("average_sharpness", {"include": ("weight",)}),
        ("adaptive_sharpness", {"p": math.inf}),
        ("adaptive_sharpness", {"p": "inf", "step_size": None}),
        ("adaptive_sharpness", {"p": 2}),
        ("l2_norm", {"layer": None, "squared": True}),
    ],
)
def test_right_settings_are_taken_as_they_are(name: str, settings: dict[str, object]) -> None:
    assert name in resolve_measures({name: settings})


def test_types_that_only_a_checker_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "measure_with_unknown_types.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from landscope.measures.base import MEASURES\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(MEASURES['l2_norm']):\n"
        "    other: NotThere = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "measure_with_unknown_types:Mine" in resolve_measures({"measure_with_unknown_types:Mine": {"other": 2.5}})
