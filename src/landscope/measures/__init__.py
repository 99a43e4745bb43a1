"""What can be measured at a probe: the registry, and the call that measures everything."""

from landscope.measures import sharpness
from landscope.measures.base import MEASURES, Measure
from landscope.measures.measuring import measure
from landscope.measures.report import Report

__all__ = ["MEASURES", "Measure", "Report", "measure", "sharpness"]
