"""What a spec asks for and this data or model cannot give, in words, before anything starts."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from landscope.core.errors import LabelRangeError, LandscopeError, SpecError
from landscope.core.seeding import preserved_rng
from landscope.core.targets import IGNORED, check_label_range, label_classes
from landscope.training.rows import SPLITS

if TYPE_CHECKING:
    from landscope.training.sources import Task

__all__ = ["refuse_what_cannot_work"]


def refuse_what_cannot_work(task: Task) -> None:
    """Raise `SpecError` with the key of the spec that cannot be met."""
    if not any(parameter.requires_grad for parameter in task.model.parameters()):
        raise SpecError(f"model: {task.spec.model.name} has no parameters that are trained; set requires_grad on some")
    _check_regularisers(task)
    _check_fit(task)
    _check_single_rows(task)


def _check_regularisers(task: Task) -> None:
    """What a spec asks for and this data or model cannot give."""
    spec, rows = task.spec, task.rows
    images = rows.train.x.dim() == 4 and rows.train.x.is_floating_point()
    shape = "×".join(map(str, rows.train.x.shape[1:])) or "single numbers"
    if spec.augmentation is not None and (not images or rows.kind == "reconstruction"):
        raise SpecError(f"augmentation: is for images with labels; the rows of {rows.name} are {shape}, {rows.kind}")
    if spec.channels_last and not images:
        raise SpecError(f"channels_last: is for images; the rows of {rows.name} are {shape}")
    if spec.early_stopping is not None and not len(rows.validation.y):
        raise SpecError(
            f"early_stopping: {rows.name} has no validation rows; give data the option `validation`, or rows of that name"
        )
    if spec.early_stopping is not None and spec.early_stopping.metric == "error" and not task.classes:
        raise SpecError(
            f"early_stopping.metric: {rows.name} has no classes to be wrong about with the loss {task.loss.name}; use the metric "
            "`loss`"
        )
    if not task.steps_per_epoch:
        raise SpecError(f"drop_last: {len(rows.train.y)} rows are less than one batch of {spec.batch_size}")
    if spec.sam and spec.sam.micro_batch and spec.sam.micro_batch > min(_batch(task), len(rows.train.y)):
        raise SpecError(f"sam.micro_batch: {spec.sam.micro_batch} rows are more than a batch of {_batch(task)}")
    if late := [step for step in spec.snapshots if step > task.steps]:
        raise SpecError(f"snapshots: step {late[0]:,} is beyond the {task.steps:,} steps of the run")


def _batch(task: Task) -> int:
    size = task.spec.batch_size
    return len(task.train.y) if size == "full" else size


@torch.no_grad()
def _check_fit(task: Task) -> None:
    """Two rows go through the model and the loss, so that a model for other data is told so in words."""
    rows, model = task.rows, task.model
    x, y = (part[:2] for part in rows.train)
    modes = [(module, module.training) for module in model.modules()]
    try:
        outputs = _at_home(task).forward(model.eval(), x.to(next(model.parameters()).device)).cpu()
        if rows.classes and task.loss.likelihood == "categorical" and outputs.shape[1] < rows.classes:
            raise SpecError(f"model: it has {outputs.shape[1]} outputs and {rows.name} has {rows.classes} classes")
        task.objective.function(outputs, y)
        _check_labels(task, outputs)
    except SpecError:
        raise
    except LandscopeError as error:
        raise SpecError(f"loss: {error}") from error
    except Exception as error:
        found = f"{'×'.join(map(str, x.shape[1:]))} of {str(x.dtype).removeprefix('torch.')}"
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise SpecError(
            f"model: {task.spec.model.name} does not take the rows of {rows.name}, {found}: {reason}"
        ) from error
    finally:
        for module, mode in modes:
            module.training = mode


def _check_labels(task: Task, outputs: Tensor) -> None:
    """Labels of every split that the loss does not know; it would take them for others in silence."""
    likelihood = task.loss.likelihood
    classes = label_classes(outputs, task.train.y[: len(outputs)]) if likelihood == "categorical" else None
    for name in SPLITS:
        labels = getattr(task.rows, name).y
        if not len(labels):
            continue
        told = f"data: the {name} rows of {task.rows.name}"
        if classes is not None:
            try:
                check_label_range(classes, labels, IGNORED if labels.dim() > 1 else None)
            except LabelRangeError as error:
                raise SpecError(f"{told}: {error}") from error
        if likelihood == "bernoulli" and not bool(((labels >= 0) & (labels <= 1)).all()):
            low, high = float(labels.min()), float(labels.max())
            raise SpecError(f"{told}: targets of {task.loss.name} lie from 0 to 1, but run from {low:g} to {high:g}")


def _check_single_rows(task: Task) -> None:
    """BatchNorm has no variance to divide by where a batch, or a part of one, has a single row and no other positions."""
    spec, rows, size = task.spec, len(task.train.y), _batch(task)
    last = 0 if spec.drop_last else rows % size
    micro = spec.sam.micro_batch if spec.sam else None
    batches = [batch for batch in (min(rows, size), last) if batch]
    parts = [batch % micro or min(batch, micro) if micro else max(1, batch // spec.accumulate) for batch in batches]
    if min(parts) > 1 or not any(isinstance(module, _BatchNorm) for module in task.model.modules()):
        return
    twin = _at_home(replace(task, model=copy.deepcopy(task.model)))
    try:
        with preserved_rng(), torch.no_grad():
            twin.forward(twin.model.train(), twin.train.x[:1])
    except ValueError as error:
        remedy = (
            f"{rows} rows in batches of {size} leave one for the last: set drop_last, or choose another batch_size"
            if last == 1
            else "choose a larger batch_size, fewer parts (accumulate) or larger ones (sam.micro_batch)"
        )
        raise SpecError(f"batch_size: BatchNorm cannot be trained on a single row; {remedy}") from error


def _at_home(task: Task) -> Task:
    """The task where its model lies."""
    return task.to(next(task.model.parameters()).device)
