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

from landscope.core import errors
from landscope.core.estimate import Cost, Estimate, Status
from landscope.core.losses import Loss
from landscope.core.probe import Probe
from landscope.core.reading import freeze
from landscope.core.registry import Registry
from landscope.curvature import GGN, EmpiricalFisher, Fisher, Hessian
from landscope.measures import AS_PUBLISHED, MEASURES, Measure, Report, by_layer, enough_data, invariance, measure
from landscope.measures.calibration import ece, fit_temperature, reliability
from landscope.planes import Landscape, between, landscape, line
from landscope.spectra import diagonal, eigsh, frobenius, log_det, spectrum, trace
from landscope.training import FAM, SAM, Pool, Trained, TrainingSpec, train, train_pool

__version__ = "0.1.0"
"""Part of every run's key: a source tree has that of the package that is built from it."""

__all__ = [
    "AS_PUBLISHED",
    "FAM",
    "GGN",
    "MEASURES",
    "SAM",
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
    "Trained",
    "TrainingSpec",
    "__version__",
    "between",
    "by_layer",
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
    "reliability",
    "spectrum",
    "trace",
    "train",
    "train_pool",
]
