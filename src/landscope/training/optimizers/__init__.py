"""Sharpness-aware optimizers: `SAM` around any optimizer of torch, and the running statistics they must leave alone."""

from landscope.training.optimizers.ascent import Adaptive, Neighbourhood, Perturbation, ascent
from landscope.training.optimizers.sam import SAM
from landscope.training.optimizers.statistics import frozen_statistics

__all__ = ["SAM", "Adaptive", "Neighbourhood", "Perturbation", "ascent", "frozen_statistics"]
