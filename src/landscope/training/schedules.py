"""The learning rate as a function of the optimizer step: nothing is stepped, so nothing can be stepped wrongly.

    constant          1
    cosine            f + (1 − f)(1 + cos πt)/2, t the share of the steps after warm-up (Loshchilov and Hutter 2017)
    multistep         γ^(milestones passed)
    flat_linear_flat  1 until `flat`, then linearly to f at `end` (Izmailov et al. 2018; Granziol 2020)
    warm-up           (k + 1)/w for the first w steps, times the above

Step k counts from 0 over optimizer steps (not batches of an accumulated one, not epochs).
"""

from __future__ import annotations

import math

from landscope.training.spec import ScheduleSpec, TrainingSpec

__all__ = ["averaging_begins", "factor", "learning_rate"]

ROUNDING = 1e-9
"""Shares of a run times its steps fall short of whole numbers by rounding."""


def factor(step: int, steps: int, spec: ScheduleSpec) -> float:
    """What the base rate is multiplied by for optimizer step `step` of `steps`.

    >>> [factor(k, 4, ScheduleSpec(name="cosine")) for k in (0, 2)]
    [1.0, 0.5]
    >>> [factor(k, 10, ScheduleSpec(name="multistep", milestones=(0.3, 0.6), gamma=0.5)) for k in (2, 3, 6)]
    [1.0, 0.5, 0.25]
    """
    warm = round(spec.warmup * steps)
    rise = min(1.0, (step + 1) / warm) if warm else 1.0
    share = step / steps
    if spec.name == "cosine":
        done = max(0, step - warm) / max(1, steps - warm)
        return rise * (spec.final + (1 - spec.final) * (1 + math.cos(math.pi * done)) / 2)
    if spec.name == "multistep":
        return float(rise * spec.gamma ** sum(step >= part * steps - ROUNDING for part in spec.milestones))
    if spec.name == "flat_linear_flat":
        fallen = min(1.0, max(0.0, (share - spec.flat) / (spec.end - spec.flat)))
        return rise * (1 - (1 - spec.final) * fallen)
    return rise


def averaging_begins(spec: TrainingSpec) -> int:
    """The first epoch, counted from 0, whose iterates are averaged; the last one always is.

    >>> from landscope.training.spec import AveragingSpec, ModelSpec
    >>> averaging_begins(TrainingSpec(model=ModelSpec(name="mlp"), epochs=300, averaging=AveragingSpec(start=0.54)))
    162
    """
    if spec.averaging is None:
        return spec.epochs
    return min(math.ceil(spec.averaging.start * spec.epochs - ROUNDING), spec.epochs - 1)


def learning_rate(spec: TrainingSpec, step: int, steps_per_epoch: int) -> float:
    """The rate of optimizer step `step`: by the schedule, or fixed once iterates are averaged and a rate is set for that."""
    averaging = spec.averaging
    if averaging and averaging.lr is not None and step >= averaging_begins(spec) * steps_per_epoch:
        return spec.optimizer.lr * averaging.lr
    return spec.optimizer.lr * factor(step, spec.epochs * steps_per_epoch, spec.schedule)
