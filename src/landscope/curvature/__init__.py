"""Linear operators at a probe: Hessian, Gauss–Newton, Fisher, empirical Fisher, and their dense truths."""

from landscope.curvature.empirical_fisher import EmpiricalFisher
from landscope.curvature.fisher import Fisher
from landscope.curvature.ggn import GGN
from landscope.curvature.hessian import Hessian

__all__ = ["GGN", "EmpiricalFisher", "Fisher", "Hessian"]
