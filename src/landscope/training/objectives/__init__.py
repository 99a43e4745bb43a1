"""What can be added to a loss in training: relative flatness (FAM)."""

from landscope.training.objectives.fam import FAM

__all__ = ["FAM"]
