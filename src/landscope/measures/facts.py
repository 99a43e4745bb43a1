"""What a number in a report is: what people call it, what kind of number it is, its unit, and which way is better.

A measure states this on its class (`landscope.measures.base.Measure`), and `register` refuses one that does not. Scores that are
not measured at a probe, such as the agreement of several models, state it in `SCORES`. Whoever shows a number looks it up by its
exact name; nothing is read out of pieces of a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from landscope.core.registry import Registry

Better: TypeAlias = Literal["lower", "higher"] | None
"""Which values are better; `None` where neither is, or where that is the question (sharpness)."""


class Family(Enum):
    """The kinds of measures.

    >>> Family("scale-invariant").is_of_predictions, Family.FIT.is_of_predictions
    (False, True)
    """

    FIT = "fit"
    """How well the model fits the data: loss, error."""
    CALIBRATION = "calibration"
    """Whether stated probabilities are true."""
    CURVATURE = "curvature"
    """Eigenvalues of the Hessian, the Gauss–Newton and the Fisher matrix, and sums of them."""
    PERTURBATION = "perturbation"
    """How far the loss rises when the parameters are moved."""
    SCALE_INVARIANT = "scale-invariant"
    """Curvature in units of the weights: rescaling a layer and undoing it in the next changes nothing."""
    GRADIENT = "gradient"
    """The gradient and its spread over the samples."""
    WEIGHTS = "weights"
    """The parameters alone, without data."""

    @property
    def is_of_predictions(self) -> bool:
        """Whether the model's predictions alone decide the value, so that it is an outcome and not a property of the minimum."""
        return self in (Family.FIT, Family.CALIBRATION)

    @property
    def is_of_sharpness(self) -> bool:
        """Whether its numbers say how sharp a minimum is."""
        return self in (Family.CURVATURE, Family.PERTURBATION, Family.SCALE_INVARIANT)


FACTS = ("title", "family", "unit", "better", "cost")
"""What a class must state to be registered."""


def check_facts(kind: type) -> None:
    """Refuse a measure that does not say what it is.

    >>> class Half:
    ...     title, family, unit = "half a measure", Family.FIT, "loss"
    >>> check_facts(Half)
    Traceback (most recent call last):
    TypeError: the measure Half must state as class attributes: better, cost (see landscope.measures.base.Measure)
    """
    if missing := [name for name in FACTS if not hasattr(kind, name)]:
        raise TypeError(
            f"the measure {kind.__name__} must state as class attributes: {', '.join(missing)} "
            "(see landscope.measures.base.Measure)"
        )
    stated = {name: getattr(kind, name) for name in FACTS}
    if not isinstance(stated["family"], Family):
        raise TypeError(f"the measure {kind.__name__}: family must be a Family, got {stated['family']!r}")
    if stated["better"] not in ("lower", "higher", None):
        raise TypeError(
            f"the measure {kind.__name__}: better must be 'lower', 'higher' or None, got {stated['better']!r}"
        )
    for name in ("title", "unit", "cost"):
        if not isinstance(stated[name], str) or not (stated[name] or name == "unit"):
            raise TypeError(f"the measure {kind.__name__}: {name} must be a text, got {stated[name]!r}")


@dataclass(frozen=True, kw_only=True)
class Score:
    """A number that a study records and that no measure computes at a probe."""

    title: str
    better: Better
    unit: str = ""


SCORES: Registry[Score] = Registry("score")
