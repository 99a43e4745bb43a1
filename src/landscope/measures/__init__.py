"""What can be measured at a probe: the registry, and the call that measures everything."""

from landscope.measures import calibration, consistency, robustness, shapes, sharpness
from landscope.measures.base import MEASURES, Measure
from landscope.measures.by_block import by_block
from landscope.measures.by_layer import by_layer
from landscope.measures.measuring import enough_data, measure, progressive
from landscope.measures.results import Report

__all__ = [
    "MEASURES",
    "Measure",
    "Report",
    "by_block",
    "by_layer",
    "calibration",
    "consistency",
    "enough_data",
    "measure",
    "progressive",
    "robustness",
    "shapes",
    "sharpness",
]
