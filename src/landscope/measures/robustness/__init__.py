"""Robustness: accuracy on inputs that an adversary or the world has changed. Models and tensors in, accuracies out."""

from landscope.measures.robustness.ball import Attack
from landscope.measures.robustness.corruption import Corrupt, CorruptionAccuracy, corruption_accuracy
from landscope.measures.robustness.fgsm import fgsm
from landscope.measures.robustness.pgd import pgd

__all__ = ["Attack", "Corrupt", "CorruptionAccuracy", "corruption_accuracy", "fgsm", "pgd"]
