"""`landscope.compare`: two or more checkpoints on the same data, the first of them the one that the others are set against."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from landscope.comparison.agreement import Agreement, agreement
from landscope.comparison.differences import Difference, Groups, by_groups, differences
from landscope.comparison.result import Comparison
from landscope.core.errors import OperandError
from landscope.core.progress import progress_display
from landscope.measures.measuring import measured
from landscope.measures.resolve import Wanted, resolve_measures
from landscope.measures.results import Report
from landscope.probe.probe import Probe
from landscope.probe.reading import DataLike, freeze
from landscope.probe.totals import checked_limit

POINTS = 25
"""Points on the line between two models."""


def compare(
    models: Mapping[str, nn.Module | Probe],
    data: DataLike | None = None,
    measures: Wanted = None,
    *,
    seconds: float | None = None,
    paired: bool = True,
    progress: bool | None = None,
    **point: object,
) -> Comparison:
    """Measure models on the same data and say what differs: by how much, and whether that is real.

    Args:
        models: by name, in order; the others are compared with the first. Or probes, which hold their data.
        data, measures: as for `measure`. The data is read once and kept.
        seconds: for the measures of all models together; then nothing is paired.
        paired: measure means over rows on groups of them as well, for the true error of a difference: about twice the work.
        progress: show what is running; by default on a terminal only.
        point: what `Probe` takes: `loss`, `params`, `mode`, `per`, `temperature`, `batch_size`, `device`, `dtype`, `seed`.

    The line between two models of one architecture, how often they disagree and how alike their features are come with it:
    `comparison.agreements`. Measures that depend on the scale of weights are not compared between architectures.

    >>> import torch
    >>> x, y = torch.randn(40, 2), torch.arange(40) % 2
    >>> before, after = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> found = compare({"before": before, "after": after}, (x, y), ["loss", "l2_norm"])
    >>> [difference.measure for difference in found.differences]
    ['loss', 'l2_norm']
    """
    if not isinstance(models, Mapping):
        raise OperandError(f"models need names, as in {{'before': one, 'after': other}}; got a {type(models).__name__}")
    if len(models) < 2:
        raise OperandError(f"a comparison needs at least two models by name, got {len(models)}")
    allowed = checked_limit("seconds", seconds)
    probes = _probes(models, data, point)
    first, *others = probes
    chosen = resolve_measures(measures, probes[first].seed)
    reports: dict[str, Report] = {}
    groups: dict[str, Groups] = {}
    with progress_display(progress, 2 * len(probes)) as bar:

        def doing(done: int, what: str) -> None:
            bar.show(done, 2 * len(probes), what)
            bar.line(f"[{done}/{2 * len(probes)}] {what}")

        for number, (name, probe) in enumerate(probes.items()):
            doing(2 * number, name)
            reports[name] = measured(probe, chosen, seconds=None if allowed is None else allowed / len(probes))
            groups[name] = {}
            if paired and allowed is None:
                doing(2 * number + 1, f"{name}, on groups of rows")
                groups[name] = by_groups(probe, chosen, reports[name])
        tests = max(1, len(others) * sum(e.status.has_value for e in reports[first].values()))
        found: list[Difference] = []
        agreements: dict[str, Agreement] = {}
        for name in others:
            doing(2 * len(probes) - 1, f"the line to {name}")
            alike = _shapes(probes[name]) == _shapes(probes[first])
            held = (reports[first], reports[name], groups[first], groups[name])
            found += differences(name, *held, tests, alike=alike)
            agreements[name] = agreement(probes[first], probes[name], POINTS)
    return Comparison(reports, tuple(found), agreements)


def _probes(
    models: Mapping[str, nn.Module | Probe], data: DataLike | None, point: Mapping[str, object]
) -> dict[str, Probe]:
    held = [isinstance(model, Probe) for model in models.values()]
    if any(held) != all(held):
        raise OperandError("pass probes, which hold their data, or models and data; not some of each")
    if all(held):
        if data is not None:
            raise OperandError("probes hold their data already; pass either probes, or models and data")
        probes = {name: probe for name, probe in models.items() if isinstance(probe, Probe)}
        sizes = {name: probe.n_samples for name, probe in probes.items()}
        if len(set(sizes.values())) > 1:
            raise OperandError(
                f"the probes hold different numbers of samples: {sizes}; compare models on the same data"
            )
        return probes
    if data is None:
        raise OperandError("no data: pass a DataLoader, a Dataset, or (x, y) tensors as the second argument")
    rows = data if isinstance(data, tuple | Mapping) else freeze(data)
    return {name: Probe(model, rows, **point) for name, model in models.items()}  # type: ignore[arg-type]


def _shapes(probe: Probe) -> list[tuple[str, tuple[int, ...]]]:
    """What tells architectures apart."""
    return [(name, tuple(p.shape)) for name, p in probe.params.items()]
