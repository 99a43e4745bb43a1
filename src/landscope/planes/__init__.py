"""Planes and lines through a trained network: the loss as a map.

>>> import torch
>>> from landscope.probe.probe import Probe
>>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
>>> probe = Probe(net, (torch.randn(20, 2), torch.arange(20) % 2))
>>> landscape(probe, resolution=5).loss.shape
(5, 5)
"""

from landscope.planes.directions import eigenvector_slice, trajectory_slice
from landscope.planes.landscape import Landscape, landscape
from landscope.planes.line import Line, between, line
from landscope.planes.slices import Slice, given_slice, random_slice

__all__ = [
    "Landscape",
    "Line",
    "Slice",
    "between",
    "eigenvector_slice",
    "given_slice",
    "landscape",
    "line",
    "random_slice",
    "trajectory_slice",
]
