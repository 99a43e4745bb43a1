"""Robustness: accuracy on inputs that an adversary or the world has changed. Models and tensors in, accuracies out."""

from landscope.measures.robustness.attacks import Attack, Classifier, fgsm, pgd
from landscope.measures.robustness.corruption import Corrupt, CorruptionAccuracy, corruption_accuracy

__all__ = ["Attack", "Classifier", "Corrupt", "CorruptionAccuracy", "corruption_accuracy", "fgsm", "pgd"]
