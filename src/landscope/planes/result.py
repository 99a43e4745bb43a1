"""What was found along a slice: values on a grid, what the directions were, what it cost; as data and as JSON."""

from __future__ import annotations

import json
from abc import ABC
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from landscope.core.errors import NotApplicableError, SpecError, UnknownNameError
from landscope.core.estimate import Cost, Status
from landscope.core.json import Plain, parse_json

if TYPE_CHECKING:
    from typing import Self

Floats = NDArray[np.float64]

FIRST = "probe"
"""The name of the first probe beside others."""


@dataclass(frozen=True, eq=False)
class GridValues:
    """Mean loss at every point for one set of samples, ∞ where it overflows or is undefined; accuracy where it applies."""

    loss: Floats
    accuracy: Floats | None
    samples: int

    def metric(self, name: str) -> Floats:
        """`"loss"` or `"accuracy"`."""
        if name not in ("loss", "accuracy"):
            raise UnknownNameError.among("metric", name, ("loss", "accuracy"))
        if name == "loss":
            return self.loss
        if self.accuracy is None:
            raise NotApplicableError("accuracy was not measured: it does not apply here, or was left out of metrics=…")
        return self.accuracy

    def to_dict(self) -> dict[str, Plain]:
        """Plain values; `None` for losses that are not finite."""
        accuracy = None if self.accuracy is None else self.accuracy.tolist()
        return {"loss": _listed(self.loss), "accuracy": accuracy, "samples": self.samples}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Plain]) -> GridValues:
        loss = np.array(plain["loss"], dtype=np.float64)  # None becomes NaN
        loss[np.isnan(loss)] = np.inf
        accuracy = plain["accuracy"]
        samples = cast(int, plain["samples"])
        return cls(loss, None if accuracy is None else np.array(accuracy, dtype=np.float64), samples)


def _listed(values: Floats) -> Plain:
    if values.ndim > 1:
        return [_listed(row) for row in values]
    return [float(value) if np.isfinite(value) else None for value in values]


@dataclass(frozen=True, eq=False)
class SliceValues(ABC):
    """Values along one or two directions from a point, for one or more sets of samples.

    `axes` hold the coordinates along each direction, `values` what the probe gave there, `others` what further probes
    gave at the same points, `directions` what the directions are. `status` is `budget spent` where the grid is coarser
    than was asked for.
    """

    axes: tuple[Floats, ...]
    values: GridValues
    others: Mapping[str, GridValues] = field(default_factory=dict)
    directions: Mapping[str, Plain] = field(default_factory=dict)
    status: Status = Status.EXACT
    reason: str = ""
    cost: Cost = field(default_factory=Cost)
    settings: Mapping[str, Plain] = field(default_factory=dict)

    @property
    def loss(self) -> Floats:
        """The probe's mean loss; ∞ where it overflows or is undefined."""
        return self.values.loss

    @property
    def accuracy(self) -> Floats | None:
        """The probe's accuracy, where it applies."""
        return self.values.accuracy

    @property
    def undefined(self) -> NDArray[np.bool_]:
        """Where the loss is not a finite number."""
        return ~np.isfinite(self.loss)

    @property
    def labels(self) -> tuple[str, ...]:
        """Axis labels for people."""
        return tuple(cast("list[str]", self.directions["labels"]))

    @property
    def centre_loss(self) -> float | None:
        """The loss at the origin, where the grid has a node there."""
        at = [np.flatnonzero(axis == 0) for axis in reversed(self.axes)]
        return float(self.loss[tuple(int(i[0]) for i in at)]) if all(len(i) for i in at) else None

    def series(self) -> dict[str, GridValues]:
        """The values of every probe by name; the first is the probe itself."""
        return {FIRST: self.values, **self.others}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, SliceValues) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Plain]:
        return {
            "axes": [axis.tolist() for axis in self.axes],
            "values": self.values.to_dict(),
            "others": {name: values.to_dict() for name, values in self.others.items()},
            "directions": dict(self.directions),
            "status": self.status.value,
            "reason": self.reason,
            "cost": asdict(self.cost),
            "settings": dict(self.settings),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Plain]) -> Self:
        part = cast("dict[str, dict[str, Plain]]", plain)
        others = cast("dict[str, dict[str, Plain]]", plain["others"])
        return cls(
            axes=tuple(np.array(axis, dtype=np.float64) for axis in cast("list[list[float]]", plain["axes"])),
            values=GridValues.from_dict(part["values"]),
            others={name: GridValues.from_dict(values) for name, values in others.items()},
            directions=part["directions"],
            status=Status(cast(str, plain["status"])),
            reason=cast(str, plain["reason"]),
            cost=Cost(**part["cost"]),  # type: ignore[arg-type]
            settings=part["settings"],
        )

    def to_json(self) -> str:
        """One JSON object; `from_json` gives the same result back, to the last digit."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            return cls.from_dict(cast("Mapping[str, Plain]", parse_json(text)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SpecError(f"not a result along a line or plane that landscope wrote: {error}") from error
