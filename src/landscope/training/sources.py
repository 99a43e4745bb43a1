"""From a spec to what is trained: the model, its rows, the loss, and how the model is called on rows.

Options of the network that the data decides (`num_classes`, `in_channels`, `in_features`, `image_size`) are filled in where
the network has them and the spec leaves them out. Combinations that cannot work are refused, before anything starts.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from landscope.core.checks import tensor_output
from landscope.core.criteria import resolve_loss
from landscope.core.errors import SpecError
from landscope.core.frozen import unwrap
from landscope.core.importing import call_imported, import_function, is_import
from landscope.core.losses import LOSSES, Loss
from landscope.core.seeding import generator, preserved_rng
from landscope.data import Split
from landscope.models import MODELS, build
from landscope.models.inputs import takes_vectors
from landscope.training.order import steps_per_epoch
from landscope.training.refusing import refuse_what_cannot_work
from landscope.training.rows import GIVEN, DataLike, Rows, as_rows, load_rows
from landscope.training.spec import ModelSpec, TrainingSpec

__all__ = ["Forward", "Task", "built_model", "make_task"]

Callee = Callable[..., object]
Forward = Callable[[Callee, Tensor], Tensor]
"""How a model is called on inputs: `forward(model, x)`. The model may be any function with its signature."""

REGRESSION = ("mse", "dice")
"""Losses to which whole numbers are numbers, not classes."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained, and on what.

    `objective` is minimised and `loss` reported: they differ by label smoothing. `classes` is 0 where the targets are no
    classes, or none to the loss.
    """

    spec: TrainingSpec
    model: nn.Module
    rows: Rows
    loss: Loss
    objective: Loss
    forward: Forward

    @property
    def train(self) -> Split:
        """The training rows."""
        return self.rows.train

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return 0 if self.loss.name in REGRESSION else self.rows.classes

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one pass over the training rows."""
        return steps_per_epoch(len(self.train.y), self.spec.batch_size, self.spec.drop_last)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.spec.epochs * self.steps_per_epoch

    def rows_in(self, batches: int) -> int:
        """How many training rows so many batches from the beginning of an epoch have."""
        n, size = len(self.train.y), self.spec.batch_size
        epochs, rest = divmod(batches, self.steps_per_epoch)
        if size == "full":
            return n * epochs
        return epochs * min(n, size * self.steps_per_epoch) + min(n, size * rest)

    def to(self, device: torch.device) -> Task:
        """The task with its rows and its model on a device."""
        rows = self.rows.to(device)
        return replace(self, model=self.model.to(device), rows=rows, forward=_forward(self.model, self.spec, rows))


def make_task(spec: TrainingSpec, *, model: nn.Module | None = None, data: DataLike | None = None) -> Task:
    """The task of a spec; `model` and `data` stand for what the spec names. A given model is copied, never touched.

    >>> task = make_task(TrainingSpec(model=ModelSpec(name="mlp")))
    >>> task.forward(task.model, task.train.x[:5]).shape, task.loss, task.steps_per_epoch
    (torch.Size([5, 10]), Loss('cross_entropy', reduction='per_sample'), 10)
    """
    rows = as_rows(data, GIVEN) if data is not None else load_rows(spec.data)
    dtype = torch.float64 if spec.precision == "float64" else torch.float32
    rows = rows.to(dtype=dtype)
    if not len(rows.train.y):
        raise SpecError(f"data: {rows.name} has no training rows")
    loss = LOSSES[spec.loss or _usual_loss(rows)]
    net = copy.deepcopy(unwrap(model)) if model is not None else built_model(spec, rows, loss)
    net.to(dtype)
    task = Task(
        spec=spec, model=net, rows=rows, loss=loss, objective=_smoothed(loss, spec), forward=_forward(net, spec, rows)
    )
    refuse_what_cannot_work(task)
    return task


def _usual_loss(rows: Rows) -> str:
    if rows.classes:
        return "cross_entropy"
    return "dice" if rows.kind == "reconstruction" else "mse"


def _smoothed(loss: Loss, spec: TrainingSpec) -> Loss:
    if not spec.label_smoothing:
        return loss
    if loss is not LOSSES["cross_entropy"]:
        raise SpecError(f"label_smoothing: is for cross_entropy; the loss of this data is {loss.name}")
    return resolve_loss(nn.CrossEntropyLoss(label_smoothing=spec.label_smoothing))


def built_model(spec: TrainingSpec, rows: Rows, loss: Loss) -> nn.Module:
    """The network of a spec, freshly initialised from its seed."""
    name, options = spec.model.name, {**_decided(spec.model, rows, loss), **spec.model.options}
    if not is_import(name):
        return build(name, seed=spec.seed, **options)  # type: ignore[arg-type]
    with preserved_rng():
        torch.manual_seed(generator(spec.seed, "initialisation").initial_seed())
        model = call_imported(name, options)
    if not isinstance(model, nn.Module):
        raise SpecError(f"model: {name} returned a {type(model).__name__} where an nn.Module was expected")
    return model


def _decided(spec: ModelSpec, rows: Rows, loss: Loss) -> dict[str, object]:
    """Options that the data decides, where the network has them."""
    known: Mapping[str, object] = (
        inspect.signature(import_function(spec.name)).parameters if is_import(spec.name) else MODELS[spec.name].options
    )
    x, y = rows.train
    graph = rows.extra.get("features") if rows.kind == "node classification" else None
    outputs = 1 if rows.classes == 2 and loss is LOSSES["binary_cross_entropy"] else rows.classes or y[0].numel()
    from_data: dict[str, object] = {
        "num_classes": outputs,
        "in_features": (graph if graph is not None else x)[0].numel(),
    }
    if x.dim() >= 4:
        from_data |= {"in_channels": x.shape[1], "image_size": x.shape[-1]}
    return {key: value for key, value in from_data.items() if key in known}


def _forward(model: nn.Module, spec: TrainingSpec, rows: Rows) -> Forward:
    """Outputs in float32 at least: a CPU's autocast would sum the loss of a batch in the eight bits of bfloat16."""
    call = _call(model, spec, rows)

    def forward(net: Callee, x: Tensor) -> Tensor:
        outputs = call(net, x)
        return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs

    return forward


def _call(model: nn.Module, spec: TrainingSpec, rows: Rows) -> Forward:
    if rows.kind == "node classification":
        features, edges = rows.extra["features"], rows.extra["edge_index"]
        if _takes(model, "edge_index"):
            return lambda net, nodes: tensor_output(net(features, edges))[nodes]
        return lambda net, nodes: tensor_output(net(features[nodes]))
    x = rows.train.x
    if x.dim() == 2 and not x.is_floating_point() and _takes(model, "attention_mask"):
        return lambda net, tokens: tensor_output(net(tokens, (tokens != 0).long()))
    if x.dim() > 2 and takes_vectors(model, spec.model.name):
        return lambda net, x: tensor_output(net(x.flatten(1)))
    return lambda net, x: tensor_output(net(x))


def _takes(model: nn.Module, argument: str) -> bool:
    return argument in inspect.signature(model.forward).parameters
