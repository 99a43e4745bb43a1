"""The model's own loss: what it returns for the labels of a batch, and which likelihood of its outputs that is.

A model that is given labels and returns a loss knows what it was trained with: labels shifted by one, the tokens of a decoder,
masked words, start and end of an answer, yes/no labels. That loss is looked for among the likelihoods of its outputs,

    Σ_i m_i ℓ_i / Σ_i m_i,   ℓ_i a cross-entropy, log-loss or squared error of sample i,   m_i the labels that count,

and where one has the same value and the same gradient, the loss *is* that likelihood: it has a value for each sample, a GGN, a
Fisher matrix, an accuracy. Where none has (router losses, smoothed labels, contrasts), the number that the model returns is all
that is known. It is then a mean over samples or over labels, or it depends on which samples share a batch; batches stay whole
in that case, and are part of the definition.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from landscope.core.errors import LabelRangeError, LossError, LossReductionError, ModelError
from landscope.core.memory import is_out_of_memory
from landscope.probe.batches import TARGET_KEYS, Batch, Layout, diverse_sample, map_tensors
from landscope.probe.loss.losses import LOSSES, Loss
from landscope.probe.loss.readings import SPANS, Reading, part
from landscope.probe.loss.reductions import with_reduction
from landscope.probe.loss.targets import IGNORED, class_dimensions, kept_labels

if TYPE_CHECKING:
    from landscope.probe.probe import Probe

ROWS = 8
"""Samples on which losses are compared."""
AGREE = {torch.float32: 1e-5, torch.float64: 2e-6}
"""Relative difference of two values of one loss: models compute theirs in float32, whatever the precision of their weights."""
FEW = 2
"""Samples on which gradients are compared."""
SAME_SLOPE = 1e-3
"""Relative difference of two gradients of one loss."""
LABEL_KEYS = ("labels", "label")
"""Names that collators exchange for each other."""
PLAIN = Reading()
Likely = tuple[float, Reading, str]
"""The value of a likelihood of the outputs, how outputs and labels are read for it, and its name."""
OTHER_IGNORED = -1
"""What some models ignore in the place of −100."""


def returned_loss(outputs: object, _: object = None) -> Tensor:
    """The loss in what a model returned."""
    found = loss_in(outputs)
    if found is None:
        raise LossError("the model returned no loss for some of the batches")
    return found


MODEL = Loss(returned_loss, structured=True, name="model's own")
"""What `loss="model"` stands for until it is recognised."""


def loss_in(outputs: object) -> Tensor | None:
    """The loss that a model returned: `loss`, the only single number of a tuple, or one number; `None` where there is none."""
    found = part(outputs, "loss")
    if found is None and isinstance(outputs, Tensor) and outputs.dim() == 0:
        found = outputs
    if found is None and isinstance(outputs, tuple):
        scalars = [each for each in outputs if isinstance(each, Tensor) and each.dim() == 0]
        found = scalars[0] if len(scalars) == 1 else None
    return found if isinstance(found, Tensor) and found.numel() == 1 else None


def feeding(model: torch.nn.Module, layout: Layout, raw: object) -> Layout:
    """The layout with the targets going into the model as well, where its forward pass takes them; otherwise as it is."""
    if layout.targets(raw) is None:
        return layout
    accepted = inspect.signature(model.forward).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    own = layout.target_key
    names = TARGET_KEYS if own is None else LABEL_KEYS if own in LABEL_KEYS else (own,)
    key = next((name for name in names if name in accepted), names[0] if anything else None)
    args, kwargs = layout.arguments(raw)
    if key is None or key in kwargs or key in list(accepted)[: len(args)]:
        return layout
    return replace(layout, fed=key)


def own_loss(probe: Probe, batch: Batch) -> Tensor | None:
    """What the model returns as its loss when it is given the labels; `None` where it takes none or returns none."""
    layout = feeding(probe.module(""), probe.layout, batch.raw)
    outputs = _called(probe, layout, batch) if layout.fed else None
    return None if outputs is None else loss_in(outputs)


def _called(probe: Probe, layout: Layout, batch: Batch) -> object | None:
    """What the model returns under a layout; `None` where it cannot be called so."""
    args, kwargs = layout.arguments(batch.raw)
    args, kwargs = map_tensors(torch.clone, (args, kwargs))  # type: ignore[misc]
    try:
        return probe.run(probe.params, args, kwargs)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return None  # the labels are for something else, or whoever calls it next will say what is wrong


@dataclass(frozen=True)
class Recognised:
    """A loss, how batches go into the model, and how predictions and labels are read."""

    loss: Loss
    layout: Layout
    reading: Reading = PLAIN
    whole: bool = False
    """Whether the loss depends on which samples share a batch, so that batches stay as they are."""


def recognised(probe: Probe, asked: object) -> Recognised:
    """The loss of a new probe: the one that was asked for, or the model's own for `"model"` and, where it has one, for `None`."""
    layout, sample = probe.layout, _labelled_rows(probe)
    fed = feeding(probe.module(""), layout, sample.raw)
    explicit, labels = asked not in (None, "model"), layout.targets(sample.raw)
    if not fed.fed and (explicit or (labels is not None and asked is None)):
        return Recognised(probe.loss, layout)  # it takes no labels
    with torch.no_grad():
        outputs = _called(probe, fed, sample)
        if explicit:
            needs_labels = outputs is not None and _called(probe, layout, sample) is None
            return Recognised(probe.loss, fed if needs_labels else layout)
        if outputs is None:
            fed, outputs = layout, _called(probe, layout, sample)
    own = None if outputs is None else loss_in(outputs)
    if own is None or (labels is not None and not fed.fed and asked is None):
        if asked == "model":
            _refuse(probe, layout, sample, outputs)
        return Recognised(probe.loss, layout)
    assert outputs is not None, "it holds the loss"
    return _explained(probe, fed, sample, outputs, own) or _as_returned(probe, fed, sample, outputs, own)


def _refuse(probe: Probe, layout: Layout, sample: Batch, outputs: object) -> None:
    what = type(probe.module("")).__name__
    if outputs is None:
        raise ModelError(f"{what} could not be called with {layout.described(sample.raw)}, with labels or without")
    labels = layout.targets(sample.raw)
    remedy = (
        "Put labels into the batches (a language model: 'labels': input_ids, with -100 where there is padding)."
        if labels is None
        else "Name the loss that it was trained with: loss='cross_entropy', or a function of (outputs, targets)."
    )
    raise LossError(f"loss='model': {what} returns no loss for {layout.described(sample.raw)}. {remedy}")


# Which likelihood of its outputs a model's loss is.


def _explained(probe: Probe, fed: Layout, sample: Batch, outputs: object, own: Tensor) -> Recognised | None:
    """The likelihood whose value and gradient are those of the model's loss."""
    layout, returned = _without_labels(probe, fed, sample, outputs)
    for loss, reading in _candidates(outputs, fed, sample):
        found = Recognised(replace(loss, name=f"model's {loss.name}{reading}", known="model"), layout, reading)
        at = probe.reading_as(found.loss, layout, reading)
        if not _same(at, sample, returned, own) or not _same_slope(at, probe.reading_as(MODEL, fed, reading), sample):
            continue
        others = (uneven_rows(at, sample.size), diverse_sample(at.batches(), at.targets, sample.size))
        if all(_own_at(at, fed, ready) for ready in _ready(probe, others)):
            return found
    return None


def _without_labels(probe: Probe, fed: Layout, sample: Batch, outputs: object) -> tuple[Layout, object]:
    """The layout without labels going into the model, where these do not decide what it predicts; what it then returns.

    Its own loss need not be computed then. Without labels it must predict the same, and with other labels, too: a decoder may
    take the inputs in the place of labels, which can be equal.
    """
    labels = fed.targets(sample.raw)
    if fed.fed is None or not isinstance(labels, Tensor):
        return fed, outputs
    layout = replace(fed, fed=None)
    others = replace(sample, raw=fed.with_targets(sample.raw, labels.flip(0).roll(1, -1)))
    with torch.no_grad():
        found = _called(probe, layout, sample), _called(probe, fed, others)
    try:
        a, *rest = (Reading().predictions(each) for each in (outputs, *found))
    except ModelError:
        return fed, outputs
    rounding = 100 * torch.finfo(a.dtype).eps if a.is_floating_point() else 0.0
    size = rounding * float(a.nan_to_num(0.0).abs().max()) if a.is_floating_point() else 0.0
    same = all(b.shape == a.shape and torch.allclose(a, b, rounding, size, equal_nan=True) for b in rest)
    return (layout, found[0]) if same else (fed, outputs)


def _candidates(outputs: object, layout: Layout, sample: Batch) -> Iterator[tuple[Loss, Reading]]:
    """Likelihoods that the shapes of outputs and labels allow."""
    cross_entropy = LOSSES["cross_entropy"]
    names = [f"{name}_{what}" for name in SPANS for what in ("logits", "positions")]
    if isinstance(sample.raw, dict) and all(part(outputs, n) is not None or n in sample.raw for n in names):
        yield cross_entropy.with_classes_last(), Reading(spans=True)
        return
    try:
        z, y = Reading().predictions(outputs), layout.targets(sample.raw)
    except ModelError:
        return
    if not isinstance(y, Tensor) or not z.dim():
        return
    if kept_labels(y) is not None and z.dim() > 1:
        others = (IGNORED, OTHER_IGNORED) if bool((y == OTHER_IGNORED).any()) else (IGNORED,)
        lead = z.shape[1] - y.shape[1] if z.dim() == 3 and y.dim() == 2 and z.shape[1] > y.shape[1] else 0
        for ignored in others:
            for reading in (Reading(lead=lead), Reading(lead=lead, shift=True))[: 2 if y.dim() == 2 else 1]:
                loss = replace(cross_entropy, ignored=ignored)
                for dim in class_dimensions(z, reading.labels(y, sample.raw)):  # type: ignore[arg-type]
                    if dim == 1 and not reading.shift:
                        yield loss, reading
                    elif dim == z.dim() - 1:
                        yield loss.with_classes_last(), reading
    if z.numel() == y.numel():
        yield LOSSES["mse"], Reading()
        yield LOSSES["binary_cross_entropy"], Reading()
    if z.shape == y.shape and y.is_floating_point() and z.dim() > 1:
        yield cross_entropy, Reading()


def _own_at(at: Probe, fed: Layout, batch: Batch) -> bool:
    """Whether the likelihood is the number that the model returns for another batch, labels and all."""
    with torch.no_grad():
        outputs = _called(at, fed, batch)
    own = None if outputs is None else loss_in(outputs)
    return own is not None and _same(at, batch, outputs, own)


def _same(at: Probe, batch: Batch, returned: object, own: Tensor) -> bool:
    """Whether the likelihood of a batch, from what the model returned for it, is the model's own number."""
    try:
        with torch.no_grad():
            ours = float(mean_over_labels(at, batch, returned))
    except (LossError, RuntimeError, ValueError, IndexError) as error:
        if is_out_of_memory(error):
            raise
        return False
    theirs = float(own)
    return abs(ours - theirs) <= AGREE[at.dtype] * max(abs(ours), abs(theirs), 1e-3)


def mean_over_labels(probe: Probe, batch: Batch, returned: object) -> Tensor:
    """The loss of a batch as one mean over its labels, as a model would return it, from what the model did return."""
    losses = probe.loss.function(probe.compared(returned), probe.second(batch)).double()
    mass = None if probe.loss.mass is None or probe.loss.weigh is not None else probe.loss.mass(probe.targets(batch))
    return losses.mean() if mass is None else (losses * mass.to(losses)).sum() / mass.sum().to(losses)


def _same_slope(ours: Probe, theirs: Probe, sample: Batch) -> bool:
    """Whether the gradients of a likelihood and of the model's loss agree: equal values at one point may be a coincidence."""
    few = next(sample.pieces(FEW))
    leaves = {name: p.detach().requires_grad_() for name, p in ours.params.items()}
    with torch.enable_grad():
        returned = theirs.call(leaves, few)
        mine, own = mean_over_labels(ours, few, returned), returned_loss(returned)
        if not (mine.requires_grad and own.requires_grad):
            return not (mine.requires_grad or own.requires_grad)
        size, apart = _slope(mine, leaves), _slope(mine - own, leaves)
    return not apart > SAME_SLOPE**2 * size


def _slope(value: Tensor, leaves: Mapping[str, Tensor]) -> float:
    """‖∇‖², of which nothing is kept."""
    parts = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, retain_graph=True)
    return sum(float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2 for part in parts if part is not None)


# A loss that is not a likelihood of the outputs: the number that the model returns.


def _as_returned(probe: Probe, fed: Layout, sample: Batch, outputs: object, own: Tensor) -> Recognised:
    """The number that the model returns, with its reduction: over samples, over labels, or neither.

    Which labels count depends on how they are read (shifted or not): the first reading whose mean over labels fits.
    """
    likelihoods = _likelihoods(probe, fed, sample, outputs, own)
    nearest = next(iter(likelihoods), None)
    tried: list[tuple[Likely | None, Reading]] = [(like, like[1]) for like in likelihoods]
    tried = tried or [(None, reading) for reading in _of_labels(fed, sample)]
    for like, reading in tried:
        loss = _returned_as_read(fed, sample, own, like, reading)
        try:
            return Recognised(_with_its_reduction(probe, loss, fed, reading, sample), fed, reading)
        except LossReductionError:
            pass
    reading = tried[0][1]
    loss = _returned_as_read(fed, sample, own, nearest, reading)
    at = probe.reading_as(loss, fed, reading)
    over_labels = loss.takes == "targets" and kept_labels(at.targets(sample)) is not None
    return Recognised(replace(loss, reduction="label_mean" if over_labels else "mean"), fed, reading, whole=True)


def _of_labels(fed: Layout, sample: Batch) -> tuple[Reading, ...]:
    """How labels may be read where a model returns nothing to compare them with."""
    labels = fed.targets(sample.raw)
    return (PLAIN, Reading(shift=True)) if kept_labels(labels) is not None and labels.dim() == 2 else (PLAIN,)  # type: ignore[attr-defined]


def _returned_as_read(fed: Layout, sample: Batch, own: Tensor, like: Likely | None, reading: Reading) -> Loss:
    labels = reading.labels(fed.targets(sample.raw), sample.raw)
    return replace(MODEL, takes="batch" if labels is None else "targets", unexplained=_difference(sample, own, like))


def _with_its_reduction(probe: Probe, loss: Loss, fed: Layout, reading: Reading, sample: Batch) -> Loss:
    at = probe.reading_as(loss, fed, reading)

    def evaluate(_: Loss, batch: Batch) -> Tensor:
        return returned_loss(at.outputs(at.params, batch))

    others = (uneven_rows(at, sample.size), diverse_sample(at.batches(), at.targets, sample.size))
    with torch.no_grad():
        return with_reduction(loss, evaluate, at.targets, sample, _ready(probe, others), 5 * AGREE[probe.dtype])


def _likelihoods(probe: Probe, fed: Layout, sample: Batch, outputs: object, own: Tensor) -> list[Likely]:
    """The likelihoods of the outputs, the one that comes closest to the model's loss first, one for each reading."""
    found: dict[Reading, Likely] = {}
    for loss, reading in _candidates(outputs, fed, sample):
        try:
            with torch.no_grad():
                value = float(mean_over_labels(probe.reading_as(loss, fed, reading), sample, outputs))
        except (LossError, RuntimeError, ValueError, IndexError):
            continue
        like = value, reading, f"{loss.name}{reading}"
        found[reading] = min(found.get(reading, like), like, key=lambda each: abs(each[0] - float(own)))
    return sorted(found.values(), key=lambda each: abs(each[0] - float(own)))


def _difference(sample: Batch, own: Tensor, nearest: Likely | None) -> str:
    returned = f"the model returns a loss of {float(own):.7g} on {sample.size} samples"
    if nearest is None:
        return f"{returned}, and no likelihood of its outputs is known to compare it with"
    return (
        f"{returned}, which is not a likelihood of its outputs: the closest, {nearest[2]}, is {nearest[0]:.7g}. Smoothed "
        f"labels, class weights, a router's or another auxiliary loss would do that; switch them off (for a router: "
        f"config.output_router_logits = False) to measure the likelihood"
    )


# Rows to look at.


def _labelled_rows(probe: Probe) -> Batch:
    """The first rows, ready, some of whose labels count."""
    rows = next(probe.batches()).first(ROWS)
    pieces = (piece for batch in probe.batches() for piece in batch.pieces(rows.size))
    while (kept := kept_labels(probe.layout.targets(rows.raw))) is not None and not bool(kept.any()):
        later = next(pieces, None)
        if later is None:
            raise LabelRangeError("every label is -100, which marks a position to ignore: nothing is left to measure")
        rows = later
    return rows.prepared(lambda raw: map_tensors(torch.clone, probe.ready(raw)))


def uneven_rows(probe: Probe, count: int) -> Batch | None:
    """Samples of one batch of which some have ignored labels, those with the most first; `None` where none has."""
    for batch in probe.batches():
        kept = kept_labels(probe.targets(batch))
        if not batch.divisible or kept is None or not bool((kept != kept[0]).any()):
            continue
        order = kept.argsort(descending=True)
        return batch.select(torch.cat([order[: count // 2], order[-(count // 2) :]]).unique())
    return None


def _ready(probe: Probe, batches: Iterable[Batch | None]) -> Iterator[Batch]:
    return (batch.prepared(probe.ready) for batch in batches if batch is not None)
