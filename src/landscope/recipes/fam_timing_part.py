"""Figures 4 and 5 of the fourth paper as a part of its recipe: layers of many sizes, every way timed, its claims about them.

The appendix says that one batch of autograd calls saves up to three orders of magnitude over a loop of them, that functorch
(now `torch.func`) saves another for large Hessians, and shows Hutchinson's trace beside that of the whole matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from landscope.recipes.fam_timing import HessianTime, Way, layer_rows
from landscope.recipes.recipe import Claim, Part, Size, Verdict
from landscope.specs.schema import parse
from landscope.studies.spec import StudySpec

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TIMING", "timing_claims", "timing_part"]

TIMING = "hessian-timing"
Where: TypeAlias = Literal["at every layer", "at some layer", "at the largest layer"]
_UNITS = {"tiny": (4, 6, 8), "small": (8, 16, 32, 64), "paper": (8, 16, 32, 64, 96)}
_ROUNDS = {"tiny": 2, "small": 5, "paper": 5}
_HERE = HessianTime.__module__
_WORDS: dict[Way, str] = {
    "hessian.loop": "a loop of autograd calls",
    "hessian.batched": "one batch of autograd calls",
    "hessian.functional": "torch.func.hessian",
    "trace.functional": "the trace of torch.func.hessian",
    "trace.hutchinson": "Hutchinson's trace",
    "trace.exact": "the exact trace over the layer's outputs",
    "trace.one_probe": "that trace by one random product",
}


def timing_part(size: Size) -> Part:
    """A layer of so many units with as many inputs, ReLU, a classifier of ten classes, 64 rows."""
    study = parse(
        StudySpec,
        {
            "name": f"fam-{TIMING}",
            "question": "What does the Hessian of a layer cost, and its trace?",
            "training": {
                "data": {"name": f"{_HERE}:{layer_rows.__name__}", "units": 8},
                "model": {"name": "mlp", "widths": [8]},
                "epochs": 1,
                "batch_size": "full",
            },
            "axes": {
                "units": {f"{units} units": {"data.units": units, "model.widths": [units]} for units in _UNITS[size]}
            },
            "seeds": 3,
            "measuring": {
                "splits": {
                    "train": {
                        "measures": {
                            _named(way): {
                                "measure": f"{_HERE}:{HessianTime.__name__}",
                                "way": way,
                                "rounds": _ROUNDS[size],
                            }
                            for way in get_args(Way)
                        }
                    }
                },
                "consistency": False,
            },
            "analysis": {"outcomes": [_column(way) for way in get_args(Way)], "measures": []},
        },
    )
    return Part(
        study=study,
        alone=True,
        note="Figures 4 and 5: seconds to the Hessian of a layer of so many units and inputs, and to its trace, medians of "
        f"{_ROUNDS[size]} rounds in turns, three networks each; ten products for Hutchinson's trace. The paper's axes have no "
        "numbers at hand: its claims are tested.",
    )


def _named(way: Way) -> str:
    """What a way is reported as.

    >>> _named("trace.exact"), _named("hessian.loop")
    ('seconds_to_trace.exact', 'seconds_to_Hessian.loop')
    """
    return f"seconds_to_{way}".replace("hessian", "Hessian")


def _column(way: Way) -> str:
    return f"train.{_named(way)}"


def timing_claims(table: pd.DataFrame) -> list[Claim]:
    """Ratios of times; a claim about large layers is asked of the largest, one of the kind "up to" where the ratio is largest."""
    if table.empty:
        return []
    return [
        _faster(table, "hessian.batched", "hessian.loop", "at every layer"),
        _faster(
            table, "hessian.batched", "hessian.loop", "at some layer", 10**2.5, ", by up to three orders of magnitude"
        ),
        _faster(
            table, "hessian.functional", "hessian.batched", "at the largest layer", 10**0.5, " by an order of magnitude"
        ),
        _faster(table, "trace.hutchinson", "trace.functional", "at the largest layer"),
        _faster(table, "trace.exact", "trace.hutchinson", "at the largest layer", how=" (not a claim of the paper)"),
    ]


def _faster(table: pd.DataFrame, fast: Way, slow: Way, where: Where, factor: float = 1.0, how: str = "") -> Claim:
    """The claim that `fast` takes less than 1/`factor` of the time of `slow`, in each network.

    How many times less is a matter of the machine, and the paper's was another: that can be shown here, not refuted.
    """
    columns = [_column(fast), _column(slow)]
    known = table.dropna(subset=columns) if set(columns) <= set(table.columns) else table[:0]
    text = f"{TIMING}: {_WORDS[fast]} takes less time than {_WORDS[slow]} {where}{how}"
    if known.empty:
        return Claim(text=text, verdict="cannot be told", why="not timed", part=TIMING)
    units = known["axis.units"].str.removesuffix(" units").astype(int)
    ratios = known[columns[1]] / known[columns[0]]
    mean = ratios.groupby(units).mean()
    sizes = {"at every layer": mean.index, "at some layer": [mean.idxmax()], "at the largest layer": [units.max()]}
    asked = units.isin(sizes[where])
    shown = [
        f"{size} units: {own[columns[0]].mean():.3g} s against {own[columns[1]].mean():.3g} s, "
        f"which is {ratios[own.index].min():.3g} to {ratios[own.index].max():.3g} times as long"
        for size, own in known.groupby(units)
    ]
    verdict, elsewhere = _verdict([float(ratio) for ratio in ratios[asked]], factor), ""
    if factor > 1 and verdict != "holds":
        verdict, elsewhere = "cannot be told", "; the paper's were timed on an RTX A6000"
    return Claim(
        text=text,
        verdict=verdict,
        why=f"{'; '.join(shown)} (means of {len(known) // len(shown)} networks){elsewhere}",
        part=TIMING,
        records=tuple(dict.fromkeys(known[asked]["run"])),
    )


def _verdict(ratios: Sequence[float], factor: float) -> Verdict:
    """All above the factor, all below, or some of each.

    >>> _verdict([20.0, 12.0], 10.0), _verdict([2.0, 1.0], 10.0), _verdict([20.0, 1.0], 10.0)
    ('holds', 'does not hold', 'cannot be told')
    """
    above = [ratio > factor for ratio in ratios]
    return "holds" if all(above) else "cannot be told" if any(above) else "does not hold"
