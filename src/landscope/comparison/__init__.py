"""Checkpoints set against each other on the same data: what differs, whether that is real, how alike they are."""

from landscope.comparison.compare import compare
from landscope.comparison.differences import Difference, Verdict
from landscope.comparison.result import Comparison

__all__ = ["Comparison", "Difference", "Verdict", "compare"]
