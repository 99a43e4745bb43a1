"""The reading: what the numbers of a report say in words, and what they do not.

**A minimum?** In the quadratic model of the loss a gradient step of length 1/λ₁ lowers it by at least ‖g‖²/(2λ₁), because no
direction curves more than λ₁. As a fraction of the loss itself, this says how far from the bottom the weights are, in a unit that
does not change with the scale of weights or loss. A large fraction means that this is no minimum; a small one does not mean that
it is one, because a direction of curvature c < λ₁ may lower the loss by ‖g‖²/(2c). A point counts as stationary only if that is
small even at the smallest curvature that can be distinguished from zero. Where λ_min is negative by more than its error, there is
no minimum. Nor has a cross-entropy one whose rows are all classified correctly: it falls as long as the outputs grow.

**Learning rate.** Gradient descent on a quadratic form is stable for rates below 2/λ₁, with momentum β below 2(1 + β)/λ₁
(Cohen et al. 2021).

**Scale.** Multiplying one layer of a ReLU network by a and the next by 1/a changes no prediction and every number that is not
invariant to it (Dinh et al. 2017).

Nothing here calls a network sharp or flat: there is no such threshold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from landscope.core.estimate import Estimate, Status
from landscope.core.json import Plain
from landscope.core.text import counted, significant
from landscope.measures.base import MEASURES, invariances
from landscope.measures.facts import Family
from landscope.measures.reading.references import Place, kinds, places, ranked
from landscope.measures.reading.rows import Row, Rows

STATIONARY, DESCENDING = 1e-3, 1e-2
"""Fractions of the loss that a gradient step would remove: below the first it gains nothing, above the second it does."""
VANISHING = 1e-2
"""A cross-entropy below which the curvature is small because the loss is."""
CROSS_ENTROPY, BINARY = "cross_entropy", "binary"
"""Parts of the name of a loss, whether the model's own or a function's."""
PLAIN = re.compile(r"(model's )?cross_entropy( of [a-z ]+)?(, per \w+)?")
"""A cross-entropy that no weights and no smoothing keep from falling."""
RESOLVED = 1e-3
"""Part of λ₁ below which curvature counts as zero, where λ_min does not say what can be distinguished from it."""
MOMENTUM = 0.9
NAMED = 6
"""The most measures that a sentence names."""


@dataclass(frozen=True)
class Remark:
    """A topic and a sentence or two about it."""

    topic: str
    text: str

    def __str__(self) -> str:
        return f"{self.topic}{'' if self.topic.endswith('?') else ':'} {self.text}"


def reading(estimates: Mapping[str, Estimate], about: Mapping[str, Plain]) -> tuple[Remark, ...]:
    """What the estimates say, as far as they were measured.

    >>> found = {"hessian_top_eigenvalue": Estimate(4.0, 0.04, status=Status.CONVERGED), "l2_norm": Estimate(1.0)}
    >>> print(reading(found, {})[0])
    Learning rate: Full-batch gradient descent on this data is stable only below 2/λ₁ = 0.500 ± 0.005 (with momentum 0.9 below \
0.95). Small batches may need less; Adam follows another limit.
    """
    said = (
        ("A minimum?", _minimum(estimates, about)),
        ("Learning rate", _learning_rate(estimates)),
        ("Scale", _scale(estimates)),
        ("Caution", " ".join(_cautions(estimates, about))),
        ("Among others", _among_others(estimates, about)),
    )
    return tuple(Remark(topic, text) for topic, text in said if text)


def _value(estimates: Mapping[str, Estimate], name: str) -> Estimate | None:
    found = estimates.get(name)
    told = found is not None and found.status.has_value and found.status is not Status.SATURATED
    return found if told else None


# Is this a minimum of this data at all?


def _minimum(estimates: Mapping[str, Estimate], about: Mapping[str, Plain]) -> str:
    """The gradient and the smallest eigenvalue against their errors; empty where neither was measured."""
    slope, curve = _slope(estimates), _downwards(estimates)
    if slope is None and curve is None:
        return ""
    verdict = {
        (True, False): "As far as was measured, yes",
        (True, True): "Stationary, but not a minimum",
        (True, None): "Nearly stationary; hessian_bottom_eigenvalue would tell the rest",
        (False, True): "No",
        (False, False): "No",
        (False, None): "No",
        (None, True): "No",
    }.get((slope[0] if slope else None, curve[0] if curve else None), "Cannot tell")
    reasons = [f"{part[1]}." for part in (slope, curve) if part is not None]
    untrained = _no_better_than_guessing(estimates, about)
    why = [untrained or _WHY_DESCENDING] if untrained or (slope is not None and slope[0] is False) else []
    if _all_right(estimates, about):
        verdict = "Only in the limit" if verdict.startswith(("As far", "Nearly", "Cannot")) else verdict
        why = [_WHY_IN_THE_LIMIT]
    return " ".join([f"{verdict}.", *reasons[:1], *why, *reasons[1:]])


_WHY_DESCENDING = "Weight decay, dropout, early stopping, or other data than it was trained on leave such a gradient."
_WHY_IN_THE_LIMIT = "Every row is classified correctly, so the cross-entropy goes on falling as the outputs grow."


def _all_right(estimates: Mapping[str, Estimate], about: Mapping[str, Plain]) -> bool:
    """Whether larger outputs of the same network would lower its loss: a plain cross-entropy with every row classified correctly.

    A loss of zero to rounding shows it as well: a misclassified row costs ln 2 or more.
    """
    free = PLAIN.fullmatch(str(about.get("loss"))) and not about.get("part")
    known = (_value(estimates, "error"), _value(estimates, "loss"))
    return bool(free) and any(e is not None and e.status is Status.EXACT and e.value == 0 for e in known)


def _no_better_than_guessing(estimates: Mapping[str, Estimate], about: Mapping[str, Plain]) -> str:
    """A sentence about a cross-entropy that is no smaller than that of equal outputs for all classes."""
    loss, classes = _value(estimates, "loss"), about.get("outputs")
    if loss is None or not isinstance(classes, int) or classes < 2 or CROSS_ENTROPY not in str(about.get("loss")):
        return ""
    if BINARY in str(about.get("loss")) or loss.value + 2 * (loss.data_stderr or 0.0) < math.log(classes):
        return ""
    equal = f"ln {classes:,} = {significant(math.log(classes))}"
    return (
        f"Its loss is no better than {equal}, which equal outputs for all classes give: it was not trained on these labels, or "
        f"the training diverged."
    )


def _slope(estimates: Mapping[str, Estimate]) -> tuple[bool | None, str] | None:
    """Whether the point is stationary, and how that is known."""
    norm, top, loss = (_value(estimates, name) for name in ("gradient_norm", "hessian_top_eigenvalue", "loss"))
    if norm is None:
        return None
    if norm.value == 0 and not norm.status.is_bound:
        return True, "The gradient is zero"
    at = {Status.LOWER_BOUND: "at least ", Status.UPPER_BOUND: "at most "}.get(norm.status, "")
    shown = f"The gradient norm is {at}{significant(norm.value, 2)}"
    if not norm.status.is_bound and top is not None and not top.status.is_bound and top.value + _reach(top) <= 0:
        return False, f"{shown}, and no direction curves upwards"
    if norm.status.is_bound or top is None or not top.value > 0 or _doubt(top) == "own":
        return None, shown
    gain = norm.value**2 / (2 * top.value)
    if loss is None or not loss.value > 0:
        return None, f"{shown}, worth {significant(gain, 2)} of loss in a step of 1/λ₁"
    share, flattest = gain / loss.value, _flattest(_value(estimates, "hessian_bottom_eigenvalue"), top)
    told = f"{shown}: a step of 1/λ₁ along it would lower the loss by "
    if share * top.value / flattest < STATIONARY:
        return True, f"{told}{'at most ' if top.status.is_bound else ''}{_about(share)}"
    if top.status.is_bound:  # a larger λ₁ makes the step smaller, and what it gains
        return None, f"{told}at most {_percent(2 * share)}" if 2 * share < 1 else shown
    if share >= DESCENDING:
        return False, f"{told}about {_percent(share)} or more" if share < 1 else f"{told}more than all of it"
    return None, f"{told}{_about(share)}, and directions that curve less may lower it further"


def _flattest(bottom: Estimate | None, top: Estimate) -> float:
    """The smallest curvature that can be distinguished from zero: λ_min where it can, otherwise its error, or a part of λ₁."""
    if bottom is None or bottom.status.is_bound:
        return RESOLVED * top.value
    error = _reach(bottom)
    return bottom.value if bottom.value > error else max(bottom.value + error, RESOLVED * top.value)


def _reach(estimate: Estimate) -> float:
    """How far above the value the truth may lie: two standard errors, or the end of the bracket."""
    error = 2 * (estimate.stderr or 0.0)
    return error if estimate.bracket is None else max(error, estimate.bracket[1] - estimate.value)


def _downwards(estimates: Mapping[str, Estimate]) -> tuple[bool | None, str] | None:
    """Whether some direction curves downwards, and how that is known."""
    bottom, top = (_value(estimates, name) for name in ("hessian_bottom_eigenvalue", "hessian_top_eigenvalue"))
    if bottom is None:
        return None
    error = _reach(bottom)
    known = top is not None and top.value > abs(bottom.value) and not top.status.is_bound and not bottom.status.is_bound
    part = f" ({_percent(abs(bottom.value) / top.value)} of λ₁)" if known and top is not None else ""
    at = "at most " if bottom.status is Status.UPPER_BOUND else ""
    shown = f"λ_min is {at}{_with_error(bottom)}{part}"
    if bottom.value + error < 0:
        unsure = bottom.data_stderr is not None and bottom.value + 2 * bottom.data_stderr > 0
        other = ", though other samples might not show it" if unsure else ""
        return True, f"{shown}, so the loss curves downwards along some direction{other}"
    if bottom.status is Status.UPPER_BOUND:
        return None, f"{shown}, which leaves its sign open"
    if abs(bottom.value) <= error:
        return False, f"{shown}, zero within its error"
    return False, shown


# Which learning rates are stable.


def _learning_rate(estimates: Mapping[str, Estimate]) -> str:
    top = _value(estimates, "hessian_top_eigenvalue")
    if top is None or not top.value > 0 or (_doubt(top) == "own" and top.bracket is None):
        return ""
    rate = 2 / top.value
    error = rate * (top.stderr or 0.0) / top.value
    with_momentum = significant((1 + MOMENTUM) * rate, 2)
    if top.status is Status.LOWER_BOUND:
        limit = f"a limit that is at most 2/λ₁ = {significant(rate, 2)} (with momentum {MOMENTUM} {with_momentum})"
    elif top.bracket is not None and top.bracket[0] > 0:
        low, high = (significant(2 / end, 2) for end in reversed(top.bracket))
        limit = f"2/λ₁ = {significant(rate, 2)} ({low} to {high}; with momentum {MOMENTUM} below {with_momentum})"
    else:
        shown = _with_error(Estimate(rate, error)) if error > 1e-3 * rate else significant(rate)
        limit = f"2/λ₁ = {shown} (with momentum {MOMENTUM} below {with_momentum})"
    return (
        f"Full-batch gradient descent on this data is stable only below {limit}. Small batches may need less; Adam follows "
        f"another limit."
    )


# What depends on scale.


def _scale(estimates: Mapping[str, Estimate]) -> str:
    """Which families of numbers rescaled weights change, and which numbers they do not."""
    shown = [row.name for row in Rows.of(estimates) if row.name in MEASURES and row.estimate.status.has_value]
    asked = [name for name in shown if not MEASURES[name].family.is_of_predictions]
    fixed = [name for name in asked if "layer_rescaling" in invariances(name, estimates[name].settings)]
    moved = list(dict.fromkeys(MEASURES[name].family.value for name in asked if name not in fixed))
    if not moved:
        return ""
    kept = f" Such a trade does not change {_named(fixed)}." if fixed else ""
    return (
        f"The {_named(moved)} rows depend on the size of the weights, which says little by itself: the layers of a ReLU network "
        f"can trade it among each other without changing a single prediction. Compare these rows between networks of one "
        f"architecture that were trained alike, not across architectures.{kept}"
    )


# What is saturated, a bound, too uncertain, or not finished.


def _cautions(estimates: Mapping[str, Estimate], about: Mapping[str, Plain]) -> Iterator[str]:
    rows = [row for row in Rows.of(estimates) if row.tells]
    loss = _value(estimates, "loss")
    curved = [row.name for row in rows if row.name in MEASURES and MEASURES[row.name].family is Family.CURVATURE]
    if CROSS_ENTROPY in str(about.get("loss")) and loss is not None and loss.value < VANISHING and curved:
        yield (
            f"At a cross-entropy of {significant(loss.value, 2)} all curvature is small because the outputs are so confident: "
            f"compare only at equal loss, or at equal temperature."
        )
    if "BatchNorm" in str(about.get("architecture")) and about.get("mode") == "eval":
        yield (
            "BatchNorm uses its running statistics here, as in prediction. Training uses those of each batch, so its gradient "
            "and its stable learning rates differ (mode='batch_statistics' measures those)."
        )
    for told, doubted in (
        ("Known no better than to its own size", [row.name for row in rows if _doubt(row.estimate) == "own"]),
        ("Another sample could change all of it", [row.name for row in rows if _doubt(row.estimate) == "data"]),
        ("Saturated, hence uninformative", _of_status(rows, Status.SATURATED)),
        ("A bound and not the value", _of_status(rows, Status.LOWER_BOUND, Status.UPPER_BOUND)),
        ("Ended before the accuracy asked for", _of_status(rows, Status.BUDGET_SPENT, Status.INTERRUPTED)),
    ):
        if doubted:
            yield f"{told}: {_named(doubted)}."


def _of_status(rows: Iterable[Row], *statuses: Status) -> list[str]:
    return [row.name for row in rows if row.estimate.status in statuses]


def _doubt(estimate: Estimate) -> str:
    """Which error is as large as the value, if one is: two standard errors of it reach zero."""
    if estimate.status.is_bound or estimate.status is Status.SATURATED or estimate.value == 0:
        return ""
    size = abs(estimate.value) / 2
    return "own" if (estimate.stderr or 0.0) >= size else "data" if (estimate.data_stderr or 0.0) >= size else ""


# Where the values lie among networks of the same kind.


def _among_others(estimates: Mapping[str, Estimate], about: Mapping[str, Plain]) -> str:
    """The rank of each value among networks that were measured alike, or a sentence that there are none.

    Empty where no measure that networks are ranked by was measured, or the report does not say what the network is.
    """
    if not ranked(estimates):
        return ""
    family, outputs, loss = about.get("architecture"), about.get("outputs"), about.get("loss")
    size = _count(about.get("parameters"))
    if not isinstance(family, str) or not isinstance(outputs, int) or not isinstance(loss, str) or size is None:
        return ""
    plain = about.get("mode") == "eval" and about.get("temperature") == 1.0 and not about.get("part")
    sure = {name: e for name, e in estimates.items() if not _doubt(e)}
    found = places(sure, family, outputs, loss, size) if plain else None
    if found is None:
        return (
            f"None of the {len(kinds())} kinds of networks that Landscope ships values of is comparable with this one in "
            f"architecture, size, loss and state of training: nothing to rank these values against."
        )
    kind, among = found
    first, *others = among[:NAMED]
    more = "".join(f", {each.measure} than {_share(each)}" for each in others)
    fewer = len({each.of for each in among[:NAMED]}) > 1
    scaled = " What depends on the size of the weights is set only against those with as many of them." if fewer else ""
    return (
        f"Among {kind.title} trained to a similar loss ({kind.source}), {first.measure} is larger than {_share(first)}{more}."
        f"{scaled} They were trained differently on other data, so take this as a rough guide."
    )


def _share(place: Place) -> str:
    """How many are smaller.

    >>> _share(Place("loss", 0, 12)), _share(Place("loss", 5, 12)), _share(Place("loss", 12, 12))
    ('none of 12', '5 of 12', 'all 12')
    """
    if place.smaller == place.of:
        return f"all {place.of}"
    return f"{place.smaller or 'none'} of {place.of}"


def _count(words: Plain) -> int | None:
    first = words.split()[0].replace(",", "") if isinstance(words, str) and words else ""
    return int(first) if first.isdigit() else None


# Words.


def _with_error(estimate: Estimate) -> str:
    shown = str(Estimate(estimate.value, estimate.stderr or 0.0)) if estimate.stderr else significant(estimate.value, 3)
    return shown.replace("-", "−")


def _percent(share: float) -> str:
    """A share in per cent, in words where it is not worth a number.

    >>> _percent(0.0312), _percent(1e-9), _percent(math.inf)
    ('3.1 %', 'less than 0.01 %', '–')
    """
    if not math.isfinite(share):
        return "–"
    return "less than 0.01 %" if share < 1e-4 else f"{significant(100 * share, 2)} %"


def _about(share: float) -> str:
    """The same as an approximate number.

    >>> _about(0.0312), _about(1e-9)
    ('about 3.1 %', 'less than 0.01 %')
    """
    return _percent(share) if share < 1e-4 else f"about {_percent(share)}"


def _named(names: Sequence[str]) -> str:
    few = len(names) <= NAMED
    *first, last = names if few else [*names[: NAMED - 1], counted(len(names) - NAMED + 1, "other")]
    return f"{', '.join(first)} and {last}" if first else last
