"""`landscope.measure`: every measure that applies, in an order that shares work and keeps to a budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from landscope.core.errors import BudgetSpentError, LandscopeError, NotApplicableError, SpecError
from landscope.core.estimate import Estimate
from landscope.core.json import Plain
from landscope.core.memory import beyond_gpu_share
from landscope.core.parameters import Selection
from landscope.core.progress import progress_display
from landscope.measures.base import MEASURES, OUT_OF_MEMORY, Measure, failure
from landscope.measures.results import Report
from landscope.probe.frozen import Mode
from landscope.probe.loss.losses import Loss
from landscope.probe.probe import Probe
from landscope.probe.reading import DataLike
from landscope.probe.totals import checked_limit
from landscope.specs.names import import_function, is_import
from landscope.specs.schema import describe

__all__ = ["NOTHING_LEFT", "Budget", "Wanted", "enough_data", "measure", "resolve_measures", "shares"]


# A budget of seconds or passes, shared out among measures that still wait.
#
# Each measure has a cost that it would like and a least below which it is not worth beginning. Those that come last give way
# until
# the leasts of the rest fit into what is left; what remains is shared in proportion to what they would like. Costs are
# passes; a
# budget of seconds is converted at the rate seen so far; before any work has been done, the clock alone ends it.


NOTHING_LEFT = 1e-9
"""Seconds or passes after a budget's end: a limit is a positive number."""


def shares(available: float, wishes: Sequence[tuple[float, float]]) -> list[float]:
    """What each of (like, least) gets of `available`, first come first served; 0 for those that must give way.

    >>> shares(100.0, [(30.0, 30.0), (300.0, 50.0), (300.0, 50.0)])
    [30.0, 70.0, 0.0]
    >>> shares(float("inf"), [(5.0, 5.0)])
    [inf]
    """
    kept, needed = 0, 0.0
    for _, least in wishes:
        if needed + least > available:
            break
        kept, needed = kept + 1, needed + least
    liked = sum(like - least for like, least in wishes[:kept])
    spare = available - needed
    if liked <= 0 or spare == float("inf"):
        return [spare if spare == float("inf") else least for _, least in wishes[:kept]] + [0.0] * (len(wishes) - kept)
    part = spare / liked
    return [least + part * (like - least) for like, least in wishes[:kept]] + [0.0] * (len(wishes) - kept)


class Budget:
    """What is left of the allowed seconds and passes (see `checked_limit`), counted from `start`."""

    def __init__(self, probe: Probe, start: float, seconds: float | None, passes: float | None) -> None:
        self._ledger = probe.ledger
        self._deadline = None if seconds is None else start + seconds
        self._last_pass = None if passes is None else probe.ledger.passes + passes

    def left(self) -> tuple[float | None, float | None]:
        """(seconds, passes) that remain; `None` where there is no limit."""
        seconds = None if self._deadline is None else self._deadline - time.monotonic()
        passes = None if self._last_pass is None else self._last_pass - self._ledger.passes
        return seconds, passes

    def share(self, wishes: Sequence[tuple[float, float]]) -> float:
        """Passes for the first of those that wait; `BudgetSpentError` if that is not worth beginning."""
        seconds, passes = self.left()
        available = float("inf") if passes is None else passes
        if seconds is not None and seconds <= 0:
            available = 0.0
        elif seconds is not None and (rate := self._ledger.passes_per_second) is not None:
            available = min(available, seconds * rate)
        like, least = wishes[0]
        mine = shares(max(available, 0.0), wishes)[0]
        if least > 0 and mine <= 0:
            raise BudgetSpentError(
                f"the budget is spent: {max(available, 0):.0f} passes are left; it takes about {like:.0f}, at least {least:.0f}"
            )
        return mine

    def limited(self) -> AbstractContextManager[None]:
        """Inside, work ends with `BudgetSpentError` where the budget does."""
        seconds, passes = (None if left is None else max(left, NOTHING_LEFT) for left in self.left())
        return self._ledger.limited(seconds, passes)


Wanted = None | str | Measure | Iterable[str | Measure] | Mapping[str, Mapping[str, object] | Measure | None]
"""All (`None`), names, measures, or names with settings."""


FEW_PASSES = 20.0
"""Passes up to which a measure counts as cheap."""


def resolve_measures(wanted: Wanted, seed: int = 0) -> dict[str, Measure]:
    """Measures by the name under which they are reported; one of the user's own is written `package.module:Class`.

    >>> sorted(resolve_measures({"l2_norm": {"squared": True}, "mine": MEASURES["gradient_norm"]()}))
    ['l2_norm', 'mine']
    >>> resolve_measures(["l2_nrom"])
    Traceback (most recent call last):
    landscope.core.errors.UnknownNameError: unknown measure 'l2_nrom'; did you mean 'l2_norm'? Choices: ...
    """
    if wanted is None:
        return {name: MEASURES[name](seed=seed) for name in MEASURES}
    if isinstance(wanted, (str, Measure)):
        wanted = [wanted]
    if isinstance(wanted, Mapping):
        return {name: _with_settings(name, settings, seed) for name, settings in wanted.items()}
    found: dict[str, Measure] = {}
    for item in wanted:
        one = item if isinstance(item, Measure) else _with_settings(item, None, seed)
        name = one.key or type(one).__name__
        if name in found:
            raise LandscopeError(
                f"{name!r} is asked for twice; give each a name of its own: measures={{'first': …, 'second': …}}"
            )
        found[name] = one
    return found


def _with_settings(name: str, settings: Mapping[str, object] | Measure | None, seed: int) -> Measure:
    if isinstance(settings, Measure):
        return settings
    kind = _imported(name) if is_import(name) else MEASURES[name]
    hints = _hints(kind)
    for key, value in (settings or {}).items():
        if key in hints and not _fits(value, hints[key]):
            raise SpecError(f"{name}: {key} must be {describe(hints[key])}, but is {value!r}")
    try:
        return kind(**{"seed": seed, **(settings or {})})  # type: ignore[arg-type]
    except TypeError as error:
        known = ", ".join(f.name for f in fields(kind))
        raise LandscopeError(
            f"{name} cannot be set up with {dict(settings or {})}: {error}. Its settings: {known}"
        ) from error
    except LandscopeError:
        raise
    except (ValueError, ArithmeticError) as error:
        raise SpecError(f"{name}: {error}") from error


@cache
def _hints(kind: type[Measure]) -> dict[str, object]:
    """The types of a measure's settings, as far as they can be told."""
    try:
        return get_type_hints(kind)
    except Exception:  # a user's own, with names that are there for a type checker only
        return {}


def _fits(value: object, hint: object) -> bool:
    """Whether a setting is of its type, as plain values go; what is no plain type is the measure's own to judge.

    >>> _fits(2, int), _fits(2, float), _fits(2.5, int), _fits(True, int), _fits(["fc"], str | tuple[str, ...])
    (True, True, False, False, True)
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, choice) for choice in args)
    if origin is Literal:
        return value in args
    if origin is tuple:
        same = len(args) == 2 and args[1] is ...
        return isinstance(value, list | tuple) and (not same or all(_fits(item, args[0]) for item in value))
    if hint is int or hint is float:
        if isinstance(value, bool) or not isinstance(value, Integral if hint is int else Real):
            return False
        return not math.isnan(float(value))
    if hint is bool or hint is str:
        return isinstance(value, bool if hint is bool else str)
    return value is None if hint is NoneType else True


def _imported(name: str) -> type[Measure]:
    """A measure of the user's own.

    >>> _imported("math:hypot")
    Traceback (most recent call last):
    landscope.core.errors.SpecError: math:hypot is not a measure: a class derived from landscope.Measure
    """
    kind = import_function(name)
    if not (isinstance(kind, type) and issubclass(kind, Measure)):
        raise SpecError(f"{name} is not a measure: a class derived from landscope.Measure")
    return kind


def measure(
    model: nn.Module | Probe,
    data: DataLike | None = None,
    measures: Wanted = None,
    *,
    loss: str | Loss | nn.Module | Callable[..., Tensor] = "cross_entropy",
    params: Selection = None,
    mode: Mode = "eval",
    temperature: float = 1.0,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    seconds: float | None = None,
    passes: float | None = None,
    progress: bool | None = None,
) -> Report:
    """Measure a model on data: a report with a value, an error bar, a status and a cost for every measure.

    Args:
        model: a module, or a `Probe` (then `data` and what defines the point are taken from it).
        data: see `Probe`, as are `loss` to `dtype`.
        measures: all by default; names, of your own ones as `package.module:Class`; a mapping from names to settings; or
            measure objects.
        seed: for everything random.
        seconds, passes: a budget. Cheap measures come first, costly ones get a fair share of what is left and say when it was not
            enough. A pass is the work of one gradient over all data. Positive numbers; `None` is no limit.
        progress: show what is running; by default on a terminal only.

    A measure that does not apply says why, and one that fails does not stop the others.

    >>> net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> report = measure(net, (torch.randn(16, 2), torch.arange(16) % 2), ["l2_norm", "hessian_top_eigenvalue"])
    >>> report["hessian_top_eigenvalue"].status.value
    'converged'
    """
    start, seconds, passes = time.monotonic(), checked_limit("seconds", seconds), checked_limit("passes", passes)
    probe = _probe(model, data, loss, params, mode, temperature, batch_size, device, dtype, seed)
    chosen = resolve_measures(measures, probe.seed)
    order = sorted(chosen, key=lambda name: (*_rank(chosen[name], probe), _predicted(chosen[name], probe), name))
    budget = Budget(probe, start, seconds, passes)
    estimates: dict[str, Estimate] = {}
    with progress_display(progress, len(order)) as display:
        for position, name in enumerate(order):
            display.show(position, doing=name)
            rest = [chosen[later] for later in order[position:]]
            found = estimates[name] = _one(chosen[name], probe, budget, rest)
            display.line(f"[{position + 1}/{len(order)}] {name}: {found!r}, {found.cost.seconds:.1f} s")
    return Report({name: estimates[name] for name in chosen}, _about(probe))


def _probe(
    model: nn.Module | Probe,
    data: DataLike | None,
    loss: str | Loss | nn.Module | Callable[..., Tensor],
    params: Selection,
    mode: Mode,
    temperature: float,
    batch_size: int | None,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
    seed: int,
) -> Probe:
    if isinstance(model, Probe):
        if data is not None:
            raise LandscopeError("a Probe holds its data already; pass either a Probe, or a model and data")
        return model
    if data is None:
        raise LandscopeError("no data: pass a DataLoader, a Dataset, or (x, y) tensors as the second argument")
    return Probe(
        model,
        data,
        loss,
        params=params,
        mode=mode,
        temperature=temperature,
        batch_size=batch_size,
        device=device,
        dtype=dtype,
        seed=seed,
    )


def _rank(measure: Measure, probe: Probe) -> tuple[int, int]:
    """What comes first when a budget is short.

    What takes a few passes; the Hessian; what takes many; the Gauss–Newton and the Fisher matrix; the volume. Within a
    matrix the top eigenvalue comes first, then the spectrum, which the other numbers can be read from.
    """
    return measure.turn or ((0 if _least(measure, probe) < FEW_PASSES else 2), 0)


def _predicted(measure: Measure, probe: Probe) -> float:
    try:
        return measure.passes(probe)
    except Exception:  # it will say itself what is wrong, and the others go on
        return 0.0


def _one(measure: Measure, probe: Probe, budget: Budget, rest: list[Measure]) -> Estimate:
    """The first of `rest`; once more with all of a card's free memory, where the part that this process has is too small."""
    estimate = _attempt(measure, probe, budget, rest)
    if estimate.details.get(OUT_OF_MEMORY):
        with beyond_gpu_share() as more:
            if more:
                return _attempt(measure, probe, budget, rest)
    return estimate


def _attempt(measure: Measure, probe: Probe, budget: Budget, rest: list[Measure]) -> Estimate:
    """The first of `rest`, with its share of the budget."""
    try:
        predicted = _predicted(measure, probe)
        share = budget.share([(_predicted(m, probe), min(_predicted(m, probe), _least(m, probe))) for m in rest])
        with budget.limited():
            return (measure if share >= predicted else measure.within(share, probe))(probe)
    except Exception as error:
        kind = "" if isinstance(error, LandscopeError) else f"{type(error).__name__}: "
        return replace(failure(error, kind + str(error)), settings=measure.settings)


def _least(measure: Measure, probe: Probe) -> float:
    try:
        return measure.least(probe)
    except Exception:
        return 0.0


def _about(probe: Probe) -> dict[str, Plain]:
    notices: dict[str, Plain] = {"notices": list(probe.notices)} if probe.notices else {}
    return {
        "model": type(probe.module("")).__name__,
        "parameters": f"{probe.n_params:,} parameters",
        "samples": f"{probe.n_samples:,} samples",
        "loss": probe.loss.name,
        "mode": probe.mode,
        "temperature": probe.temperature,
        "dtype": str(probe.dtype).removeprefix("torch."),
        "device": str(probe.device),
        "seed": probe.seed,
        "torch": torch.__version__,
        **notices,
    }


# How many samples suffice: from the error over the data, which shrinks with the square root of their number.


def enough_data(measure: Measure | str, probe: Probe, rel: float = 0.05) -> int:
    """Samples after which the error over the data is `rel` of the value: n (data_stderr / (rel · |value|))².

    One measurement on the samples at hand; a rule for more of the same kind of data.

    >>> import torch
    >>> net = torch.nn.Linear(3, 2)
    >>> probe = Probe(net, (torch.randn(200, 3), torch.arange(200) % 2))
    >>> 1 < enough_data("relative_flatness", probe, rel=0.05) < 10_000
    True
    """
    if not rel > 0:
        raise ValueError(f"rel must be positive, got {rel}")
    (one,) = resolve_measures(measure, probe.seed).values()
    estimate = one(probe)
    if not estimate.status.has_value:
        raise NotApplicableError(f"{one.key}: {estimate.reason}")
    if estimate.data_stderr is None or estimate.value == 0:
        raise NotApplicableError(
            f"{one.key} has no error over the data here, so it cannot say how many samples suffice"
        )
    return max(2, math.ceil(probe.n_samples * (estimate.data_stderr / (rel * abs(estimate.value))) ** 2))
