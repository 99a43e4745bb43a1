"""`landscope.measure`: every measure that applies, in an order that shares work and keeps to a budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from landscope.core.errors import LandscopeError, SpecError
from landscope.core.estimate import Estimate, Plain
from landscope.core.frozen import Mode
from landscope.core.importing import import_function, is_import
from landscope.core.ledger import checked_limit
from landscope.core.losses import Loss
from landscope.core.memory import beyond_gpu_share
from landscope.core.parameters import Selection
from landscope.core.probe import Probe
from landscope.core.reading import DataLike
from landscope.core.schema import describe
from landscope.measures.base import MEASURES, OUT_OF_MEMORY, Measure, failure
from landscope.measures.budget import Budget
from landscope.measures.progress import progress_display
from landscope.measures.report import Report

__all__ = ["Wanted", "measure", "resolve_measures"]

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
    with progress_display(progress, order) as show:
        for position, name in enumerate(order):
            show.begin(name)
            rest = [chosen[later] for later in order[position:]]
            estimates[name] = _one(chosen[name], probe, budget, rest)
            show.end(name, estimates[name])
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
    matrix, _, what = measure.key.partition("_")
    matrices = {"hessian": 1, "ggn": 3, "fisher": 4}
    if measure.key == "log_volume":
        return 5, 0
    if matrix in matrices and not what.startswith("rao"):
        return matrices[matrix], {"top_eigenvalue": 0, "spectrum": 1}.get(what, 2)
    return (0 if _least(measure, probe) < FEW_PASSES else 2), 0


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
