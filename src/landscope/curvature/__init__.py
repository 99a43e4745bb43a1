"""Linear operators at a probe: Hessian, Gauss–Newton, Fisher, empirical Fisher, and their dense truths."""

from landscope.curvature.matrices import GGN, EmpiricalFisher, Fisher, Hessian

__all__ = ["GGN", "EmpiricalFisher", "Fisher", "Hessian"]
