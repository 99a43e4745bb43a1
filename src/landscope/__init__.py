"""Landscope: what kind of minimum a trained network sits in.

>>> import torch, landscope as ls
>>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
>>> probe = ls.Probe(net, (torch.randn(32, 2), torch.arange(32) % 2))
>>> H = ls.Hessian(probe)
>>> (H @ probe.vector()).shape
torch.Size([42])
>>> ls.eigsh(H, k=2).converged
True
"""

from __future__ import annotations

import landscope.core  # noqa: F401  first: from here on no file of the current folder can stand in for a module of Python

# isort: split
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from landscope.comparison import Comparison, compare
    from landscope.core import errors
    from landscope.core.estimate import Cost, Estimate, Status
    from landscope.core.registry import Registry
    from landscope.curvature import GGN, EmpiricalFisher, Fisher, Hessian
    from landscope.measures import (
        MEASURES,
        Measure,
        Report,
        by_block,
        by_layer,
        enough_data,
        invariance,
        measure,
        progressive,
    )
    from landscope.measures.calibration import ece, fit_temperature, reliability
    from landscope.planes import Landscape, between, landscape, line
    from landscope.probe.loss.losses import Loss
    from landscope.probe.probe import Probe
    from landscope.probe.reading import freeze
    from landscope.spectra import diagonal, eigsh, frobenius, log_det, spectrum, trace
    from landscope.training import FAM, SAM, Pool, TrainingResult, TrainingSpec, train, train_pool

__version__ = "0.1.0"
"""Recorded with every run; a source tree has that of the package that is built from it."""

__all__ = [
    "FAM",
    "GGN",
    "MEASURES",
    "SAM",
    "Comparison",
    "Cost",
    "EmpiricalFisher",
    "Estimate",
    "Fisher",
    "Hessian",
    "Landscape",
    "Loss",
    "Measure",
    "Pool",
    "Probe",
    "Registry",
    "Report",
    "Status",
    "TrainingResult",
    "TrainingSpec",
    "__version__",
    "between",
    "by_block",
    "by_layer",
    "compare",
    "diagonal",
    "ece",
    "eigsh",
    "enough_data",
    "errors",
    "fit_temperature",
    "freeze",
    "frobenius",
    "invariance",
    "landscape",
    "line",
    "log_det",
    "measure",
    "progressive",
    "reliability",
    "spectrum",
    "trace",
    "train",
    "train_pool",
]

_HOMES = {
    "landscope.comparison": ("Comparison", "compare"),
    "landscope.core.estimate": ("Cost", "Estimate", "Status"),
    "landscope.probe.loss.losses": ("Loss",),
    "landscope.probe.probe": ("Probe",),
    "landscope.probe.reading": ("freeze",),
    "landscope.core.registry": ("Registry",),
    "landscope.curvature": ("EmpiricalFisher", "Fisher", "GGN", "Hessian"),
    "landscope.measures": (
        "MEASURES",
        "Measure",
        "Report",
        "by_block",
        "by_layer",
        "enough_data",
        "measure",
        "progressive",
    ),
    "landscope.measures.calibration": ("ece", "fit_temperature", "reliability"),
    "landscope.planes": ("Landscape", "between", "landscape", "line"),
    "landscope.spectra": ("diagonal", "eigsh", "frobenius", "log_det", "spectrum", "trace"),
    "landscope.training": ("FAM", "Pool", "SAM", "TrainingResult", "TrainingSpec", "train", "train_pool"),
}
"""Where each public name lives: its module is imported when the name is first used, so that importing the package is free."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_ROOMS = ("analysis", "curvature", "data", "measures", "models", "planes", "report", "spectra", "studies", "training")
_MODULES = {
    "errors": "landscope.core.errors",
    "invariance": "landscope.measures.invariance",
    **{room: f"landscope.{room}" for room in _ROOMS},
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        value: object = import_module(_MODULES[name])
    elif name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
    else:
        raise AttributeError(f"module 'landscope' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})
