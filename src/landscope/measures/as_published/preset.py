"""What a preset is: the measures as a paper's code computed them, beside the corrected ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from torch import Tensor

from landscope.core.estimate import Estimate
from landscope.core.registry import Registry
from landscope.measures.base import Measure

__all__ = ["AS_PUBLISHED", "Preset"]


@dataclass(frozen=True)
class Preset:
    """The measures of one paper, by the names of its tables.

    `landscope.measure(model, data, measures=preset.measures)` gives what the paper's code gave, slips included;
    `preset.corrected` has the same names and what they should have measured.

    >>> from landscope.measures.sharpness.gradients import L2Norm
    >>> norms = {"weight_norm": L2Norm(squared=True)}
    >>> preset = Preset("A. Author 2024", norms, {"weight_norm": L2Norm()}, {"weight_norm": "It was squared."}, "any data")
    >>> preset.measures["weight_norm"].squared, preset.corrected["weight_norm"].squared
    (True, False)
    """

    paper: str
    measures: Mapping[str, Measure]
    corrected: Mapping[str, Measure]
    difference: Mapping[str, str]
    """How the published measure differs from the corrected one."""
    setup: str
    """What lies in the data, the mode and the model rather than in a measure, and is needed to meet the tables."""
    scale: Mapping[str, Callable[[Estimate], float]] = field(default_factory=dict)
    """How a corrected estimate is read in the unit of the published number, where that is not its value."""
    temperature: Callable[[Tensor, Tensor], Estimate] | None = None
    """How the code fits a temperature to logits and labels, where it does."""

    def __post_init__(self) -> None:
        for name in ("corrected", "difference"):
            if set(getattr(self, name)) != set(self.measures):
                raise ValueError(f"{name} must name the same measures: {', '.join(self.measures)}")
        if not set(self.scale) <= set(self.measures):
            raise ValueError(f"scale names unknown measures; choices: {', '.join(self.measures)}")
        for name in ("measures", "corrected", "difference", "scale"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def in_published_unit(self, name: str, corrected: Estimate) -> float:
        """The corrected estimate in the unit of the paper's table: divided by ρ, per parameter, as a logarithm …

        Args:
            name: the measure.
            corrected: what `self.corrected[name]` gave.
        """
        return self.scale[name](corrected) if name in self.scale else corrected.value


AS_PUBLISHED: Registry[Preset] = Registry("preset")
"""The presets by the names of the recipes."""
