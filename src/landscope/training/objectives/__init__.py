"""What can be added to a loss in training: relative flatness (FAM)."""

from landscope.training.objectives.fam import FAM
from landscope.training.objectives.several import SeveralFAM

__all__ = ["FAM", "SeveralFAM"]
