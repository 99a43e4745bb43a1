"""From a spec to what is trained: the model, its samples, the loss, and how the model is called on samples.

Options of the network that the data decides (`num_classes`, `in_channels`, `in_features`, `image_size`) are filled in where
the network has them and the spec leaves them out. Combinations that cannot work are refused, before anything starts.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from landscope.core.errors import LabelRangeError, LandscopeError, SpecError
from landscope.core.seeding import generator, preserved_rng
from landscope.core.text import first_line, shape
from landscope.core.torch_fixes.strided_pointwise import overruns
from landscope.data import Split
from landscope.models import MODELS, build
from landscope.models.catalogue import takes_vectors
from landscope.probe.checks import refusing_layer, tensor_output
from landscope.probe.frozen import unwrap
from landscope.probe.loss.criteria import resolve_loss
from landscope.probe.loss.losses import LOSSES, Loss
from landscope.probe.loss.targets import IGNORED, check_label_range, label_classes
from landscope.specs.names import call_imported, import_function, is_import
from landscope.training.spec import ModelSpec, TrainingSpec
from landscope.training.task_data import (
    GIVEN,
    SPLITS,
    DataLike,
    TaskData,
    as_task_data,
    load_task_data,
    steps_per_epoch,
)

# What a spec asks for that this data or model cannot provide, reported before anything starts.


def refuse_what_cannot_work(task: Task) -> None:
    """Raise `SpecError` with the key of the spec that cannot be met."""
    if not any(parameter.requires_grad for parameter in task.model.parameters()):
        raise SpecError(f"model: {task.spec.model.name} has no parameters that are trained; set requires_grad on some")
    _check_regularisers(task)
    _check_fit(task)
    _check_single_samples(task)


def _check_regularisers(task: Task) -> None:
    """What a spec asks for that this data or model cannot provide."""
    spec, data = task.spec, task.data
    images = data.train.x.dim() == 4 and data.train.x.is_floating_point()
    shape = "×".join(map(str, data.train.x.shape[1:])) or "single numbers"
    if spec.augmentation is not None and (not images or data.kind == "reconstruction"):
        raise SpecError(f"augmentation: is for images with labels; the samples of {data.name} are {shape}, {data.kind}")
    fill = () if spec.augmentation is None else spec.augmentation.fill
    if isinstance(fill, tuple) and fill and len(fill) != data.train.x.shape[1]:
        raise SpecError(f"augmentation.fill: has {len(fill)} numbers; the samples of {data.name} are {shape}")
    if spec.channels_last and not images:
        raise SpecError(f"channels_last: is for images; the samples of {data.name} are {shape}")
    if spec.early_stopping is not None and not len(data.validation.y):
        raise SpecError(
            f"early_stopping: {data.name} has no validation samples; give data the option `validation`, or samples of that name"
        )
    if spec.early_stopping is not None and spec.early_stopping.metric == "error" and not task.classes:
        raise SpecError(
            f"early_stopping.metric: {data.name} has no classes with the loss {task.loss.name}; use the metric `loss`"
        )
    if not task.steps_per_epoch:
        raise SpecError(f"drop_last: {len(data.train.y)} samples are less than one batch of {spec.batch_size}")
    if spec.sam and spec.sam.micro_batch and spec.sam.micro_batch > min(_batch(task), len(data.train.y)):
        raise SpecError(f"sam.micro_batch: {spec.sam.micro_batch} samples are more than a batch of {_batch(task)}")
    if late := [step for step in spec.snapshots if step > task.steps]:
        raise SpecError(f"snapshots: step {late[0]:,} is beyond the {task.steps:,} steps of the run")


def _batch(task: Task) -> int:
    size = task.spec.batch_size
    return len(task.train.y) if size == "full" else size


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within it the model is in evaluation mode; then every module is in its own again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@torch.no_grad()
def _check_fit(task: Task) -> None:
    """Send two samples through the model and the loss, so that a model for other data is refused with an explanation."""
    data, model = task.data, task.model
    x, y = data.train.x[:2], data.train.y[:2].cpu()
    home = _at_home(task)

    def forward() -> Tensor:
        with evaluating(model):
            return home.forward(model, x.to(next(model.parameters()).device)).cpu()

    try:
        outputs = forward()
        if data.classes and task.loss.likelihood == "categorical" and outputs.shape[1] < data.classes:
            raise SpecError(f"model: it has {outputs.shape[1]} outputs and {data.name} has {data.classes} classes")
        task.objective.function(outputs, y)
        _check_labels(task, outputs)
    except SpecError:
        raise
    except LandscopeError as error:
        raise SpecError(f"loss: {error}") from error
    except Exception as error:
        found = f"{shape(x.shape[1:])} of {str(x.dtype).removeprefix('torch.')}"
        if data.kind == "node classification":
            found = f"nodes with {shape(data.extra['features'].shape[1:])} features"
        reason = refusing_layer(model, forward) or first_line(error)
        raise SpecError(
            f"model: {task.spec.model.name} does not take the samples of {data.name}, {found}: {reason}"
        ) from error


def _check_labels(task: Task, outputs: Tensor) -> None:
    """Refuse labels of any split that the loss does not know; it would silently take them for others."""
    likelihood = task.loss.likelihood
    classes = label_classes(outputs, task.train.y[: len(outputs)].cpu()) if likelihood == "categorical" else None
    for name in SPLITS:
        labels = getattr(task.data, name).y
        if not len(labels):
            continue
        where = f"data: the {name} samples of {task.data.name}"
        if classes is not None:
            try:
                check_label_range(classes, labels, IGNORED if labels.dim() > 1 else None)
            except LabelRangeError as error:
                raise SpecError(f"{where}: {error}") from error
        if likelihood == "bernoulli" and not bool(((labels >= 0) & (labels <= 1)).all()):
            low, high = float(labels.min()), float(labels.max())
            raise SpecError(f"{where}: targets of {task.loss.name} lie from 0 to 1, but run from {low:g} to {high:g}")


def _check_single_samples(task: Task) -> None:
    """BatchNorm has no variance to divide by where a batch, or a part of one, has a single sample and no other positions."""
    spec, n, size = task.spec, len(task.train.y), _batch(task)
    last = 0 if spec.drop_last else n % size
    micro = spec.sam.micro_batch if spec.sam else None
    batches = [batch for batch in (min(n, size), last) if batch]
    parts = [batch % micro or min(batch, micro) if micro else max(1, batch // spec.accumulate) for batch in batches]
    if min(parts) > 1 or not any(isinstance(module, _BatchNorm) for module in task.model.modules()):
        return
    twin = _at_home(replace(task, model=copy.deepcopy(task.model)))
    try:
        with preserved_rng(), torch.no_grad():
            twin.forward(twin.model.train(), twin.train.x[:1])
    except ValueError as error:
        remedy = (
            f"{n} samples in batches of {size} leave one for the last: set drop_last, or choose another batch_size"
            if last == 1
            else "choose a larger batch_size, fewer parts (accumulate) or larger ones (sam.micro_batch)"
        )
        raise SpecError(f"batch_size: BatchNorm cannot be trained on a single sample; {remedy}") from error


def _at_home(task: Task) -> Task:
    """The task where its model lies."""
    return task.to(next(task.model.parameters()).device)


Callee = Callable[..., object]
Forward = Callable[[Callee, Tensor], Tensor]
"""How a model is called on inputs: `forward(model, x)`. The model may be any function with its signature."""


class AsCalled(nn.Module):
    """A model that takes rows the way its task gives them (a node's number, tokens with their mask)."""

    def __init__(self, model: nn.Module, call: Forward) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.model, x)


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
    data: TaskData
    loss: Loss
    objective: Loss
    forward: Forward

    @property
    def train(self) -> Split:
        return self.data.train

    @property
    def classes(self) -> int:
        return 0 if self.loss.name in REGRESSION else self.data.classes

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one pass over the training samples."""
        return steps_per_epoch(len(self.train.y), self.spec.batch_size, self.spec.drop_last)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.spec.epochs * self.steps_per_epoch

    def samples_in(self, batches: int) -> int:
        """How many training samples this many batches from the beginning of an epoch have."""
        n, size = len(self.train.y), self.spec.batch_size
        epochs, rest = divmod(batches, self.steps_per_epoch)
        if size == "full":
            return n * epochs
        return epochs * min(n, size * self.steps_per_epoch) + min(n, size * rest)

    def to(self, device: torch.device) -> Task:
        """The task with its samples and its model on a device."""
        data = self.data.to(device)
        return replace(self, model=self.model.to(device), data=data, forward=_forward(self.model, self.spec, data))


def make_task(
    spec: TrainingSpec,
    *,
    model: nn.Module | None = None,
    data: DataLike | None = None,
    prepare: Callable[[nn.Module], object] = lambda _: None,
) -> Task:
    """The task of a spec; `model` and `data` stand for what the spec names. A given model is copied, never touched.

    `prepare` is called with the network before it is tried on the data, to give it weights.

    >>> task = make_task(TrainingSpec(model=ModelSpec(name="mlp")))
    >>> task.forward(task.model, task.train.x[:5]).shape, task.loss, task.steps_per_epoch
    (torch.Size([5, 10]), Loss('cross_entropy', reduction='per_sample'), 10)
    """
    own = as_task_data(data, GIVEN) if data is not None else load_task_data(spec.data)
    dtype = torch.float64 if spec.precision == "float64" else torch.float32
    own = own.to(dtype=dtype)
    if not len(own.train.y):
        raise SpecError(f"data: {own.name} has no training samples")
    loss = LOSSES[spec.loss or _usual_loss(own)]
    net = copy.deepcopy(unwrap(model)) if model is not None else built_model(spec, own, loss)
    net.to(dtype)
    prepare(net)
    task = Task(
        spec=spec, model=net, data=own, loss=loss, objective=_smoothed(loss, spec), forward=_forward(net, spec, own)
    )
    refuse_what_cannot_work(task)
    return task


def _usual_loss(data: TaskData) -> str:
    if data.classes:
        return "cross_entropy"
    return "dice" if data.kind == "reconstruction" else "mse"


def _smoothed(loss: Loss, spec: TrainingSpec) -> Loss:
    if not spec.label_smoothing:
        return loss
    if loss is not LOSSES["cross_entropy"]:
        raise SpecError(f"label_smoothing: is for cross_entropy; the loss of this data is {loss.name}")
    return resolve_loss(nn.CrossEntropyLoss(label_smoothing=spec.label_smoothing))


def built_model(spec: TrainingSpec, data: TaskData, loss: Loss) -> nn.Module:
    """The network of a spec, freshly initialised from its seed."""
    name, options = spec.model.name, {**_decided(spec.model, data, loss), **spec.model.options}
    if not is_import(name):
        return build(name, seed=spec.seed, **options)  # type: ignore[arg-type]
    with preserved_rng():
        torch.manual_seed(generator(spec.seed, "initialisation").initial_seed())
        model = call_imported(name, options)
    if not isinstance(model, nn.Module):
        raise SpecError(f"model: expected an nn.Module, and {name} returned a {type(model).__name__}")
    return model


def _decided(spec: ModelSpec, data: TaskData, loss: Loss) -> dict[str, object]:
    """Options that the data decides, where the network has them."""
    known = _parameters(spec.name) if is_import(spec.name) else MODELS[spec.name].options
    x, y = data.train
    graph = data.extra.get("features") if data.kind == "node classification" else None
    outputs = 1 if data.classes == 2 and loss is LOSSES["binary_cross_entropy"] else data.classes or y[0].numel()
    from_data: dict[str, object] = {
        "num_classes": outputs,
        "in_features": (graph if graph is not None else x)[0].numel(),
    }
    if x.dim() >= 4:
        from_data |= {"in_channels": x.shape[1], "image_size": x.shape[-1]}
    return {key: value for key, value in from_data.items() if key in known}


def _parameters(source: str) -> Mapping[str, object]:
    """The arguments of a function of the user's own, none where it does not say."""
    try:
        return inspect.signature(import_function(source)).parameters
    except ValueError:  # written in C
        return {}


def _forward(model: nn.Module, spec: TrainingSpec, data: TaskData) -> Forward:
    """Outputs in float32 at least: a CPU's autocast would sum the loss of a batch in the eight bits of bfloat16."""
    call = _call(model, spec, data)

    def forward(net: Callee, x: Tensor) -> Tensor:
        outputs = call(net, x)
        return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs

    return forward


def _call(model: nn.Module, spec: TrainingSpec, data: TaskData) -> Forward:
    if data.kind == "node classification":
        features, edges = data.extra["features"], data.extra["edge_index"]
        if _takes(model, "edge_index"):
            return lambda net, nodes: tensor_output(net(features, edges))[nodes]
        return lambda net, nodes: tensor_output(net(features[nodes]))
    x = data.train.x
    if x.dim() == 2 and not x.is_floating_point() and _takes(model, "attention_mask"):
        return lambda net, tokens: tensor_output(net(tokens, (tokens != 0).long()))
    if x.dim() > 2 and takes_vectors(model, spec.model.name):
        return lambda net, x: tensor_output(net(x.flatten(1)))
    return lambda net, x: tensor_output(net(x))


def _takes(model: nn.Module, argument: str) -> bool:
    return argument in inspect.signature(model.forward).parameters


# How images lie in memory: channels last where a spec asks for it, never where that is not safe.


def memory_format(spec: TrainingSpec, model: nn.Module, device: torch.device) -> torch.memory_format:
    """The layout of the model's weights and of its images; unchanged, if nothing speaks for another.

    With a convolution that overruns its workspace on a CPU it is the usual one, whatever is asked for and however the model
    were given: there none overruns, and but for rounding the numbers are the same.

    >>> from landscope.training.spec import ModelSpec
    >>> shortcut = nn.Conv2d(8, 16, 1, stride=2)
    >>> memory_format(TrainingSpec(model=ModelSpec(name="mlp"), channels_last=True), shortcut, torch.device("cpu"))
    torch.contiguous_format
    """
    if device.type == "cpu" and any(overruns(module) for module in model.modules()):
        return torch.contiguous_format
    return torch.channels_last if spec.channels_last else torch.preserve_format
