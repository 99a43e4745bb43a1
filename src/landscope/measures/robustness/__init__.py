"""Robustness: accuracy on inputs that an adversary or the world has changed. Models and tensors in, accuracies out."""

from landscope.measures.robustness.attacks import Attack, fgsm, pgd
from landscope.measures.robustness.auto_pgd import apgd, strongest, targeted
from landscope.measures.robustness.classifier import Classifier
from landscope.measures.robustness.corruption import Corrupt, CorruptionAccuracy, corruption_accuracy

__all__ = [
    "Attack",
    "Classifier",
    "Corrupt",
    "CorruptionAccuracy",
    "apgd",
    "corruption_accuracy",
    "fgsm",
    "pgd",
    "strongest",
    "targeted",
]
