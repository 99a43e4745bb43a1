"""What a training run is: data, model, optimizer, schedule, regularisers, seed. Nothing else decides its result.

Every field has a default but the model; a spec is written as keyword arguments, or in YAML or TOML under the same names:

    data: {name: cifar10, pixels: standard}
    model: {name: resnet18}
    epochs: 30
    optimizer: {name: sgd, lr: 0.1, momentum: 0.9, weight_decay: 5e-4}
    schedule: cosine
    sam: {rho: 0.05}
    seed: 1
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from torch import nn

from landscope.core.errors import SpecError
from landscope.data import Augmentation
from landscope.probe.loss.losses import LOSSES
from landscope.specs.documents import read_spec
from landscope.specs.schema import Fraction, Natural, NotNegative, Positive, Probability, Range, parse


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """A data set: a name from `landscope data list` or `package.module:function`, and options for `data.load` or the function.

    A function returns a `DataSplits`, or a mapping from "train", "validation", "test" to (x, y) or to a Dataset.
    """

    SHORTHAND: ClassVar[str] = "name"
    REST: ClassVar[str] = "options"

    name: str = "digits"
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A network: a name from `landscope models` or `package.module:function`, and its options.

    Options that the data decides (`num_classes`, `in_channels`, `in_features`, …) are filled in where they are left out.
    """

    SHORTHAND: ClassVar[str] = "name"
    REST: ClassVar[str] = "options"

    name: str
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """SGD, Adam or AdamW from torch.

    `weight_decay` is added to the gradient (coupled, L2) unless `decoupled`: then weights shrink by lr·weight_decay apart
    from the step (Loshchilov and Hutter 2019). AdamW is Adam with `decoupled`.
    """

    SHORTHAND: ClassVar[str] = "name"

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: NotNegative = 0.05
    momentum: Annotated[float, Range(0, 1)] = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    decoupled: bool = False

    def __post_init__(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise SpecError(f"betas must each be ≥ 0 and < 1, got {list(self.betas)}")
        if self.nesterov and (self.name != "sgd" or self.momentum == 0):
            raise SpecError("nesterov is for sgd with momentum")


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec:
    """How the learning rate changes from optimizer step to optimizer step (never by epoch or by batch).

    `cosine` falls to `final` × lr; `multistep` multiplies by `gamma` at `milestones` (shares of the run); `flat_linear_flat`
    stays until `flat` of the run, falls linearly to `final` × lr at `end`, and stays (the third paper: 0.5, 0.01, 0.9).
    `warmup` is the share of the run over which the rate first rises linearly from 0.
    """

    SHORTHAND: ClassVar[str] = "name"

    name: Literal["constant", "cosine", "multistep", "flat_linear_flat"] = "constant"
    warmup: Annotated[float, Range(0, 0.99)] = 0.0
    final: Annotated[float, Range(0, 1)] = 0.0
    milestones: tuple[Fraction, ...] = ()
    gamma: Fraction = 0.1
    flat: Fraction = 0.5
    end: Fraction = 0.9

    def __post_init__(self) -> None:
        if (self.name == "multistep") != bool(self.milestones):
            raise SpecError("milestones (shares of the run, such as [0.3, 0.6, 0.8]) belong to the multistep schedule")
        if list(self.milestones) != sorted(set(self.milestones)):
            raise SpecError(f"milestones must rise, got {list(self.milestones)}")
        if self.name == "flat_linear_flat" and not self.flat < self.end:
            raise SpecError(f"flat ({self.flat:g}) must come before end ({self.end:g})")


@dataclass(frozen=True, kw_only=True)
class SAMSpec:
    """Sharpness-aware minimisation (Foret et al. 2021); `adaptive` is ASAM (Kwon et al. 2021).

    `micro_batch` perturbs separately for each part of this many samples (m-SAM).
    """

    SHORTHAND: ClassVar[str] = "rho"

    rho: NotNegative = 0.05
    adaptive: bool = False
    eta: NotNegative = 0.01
    """Of ASAM: added to |w|, so that weights of 0 can move."""
    micro_batch: Natural | None = None


@dataclass(frozen=True, kw_only=True)
class FAMSpec:
    """Relative flatness aware minimisation: λκ of a layer is added to the loss; the classifier by default."""

    SHORTHAND: ClassVar[str] = "strength"

    strength: float = 0.1
    """λ. A negative one rewards sharpness instead of penalising it."""
    warmup: Annotated[float, Range(0, 1)] = 0.0
    """The share of the run over which λ first rises linearly from 0."""
    layer: str | tuple[str, ...] | None = None
    """Its name in the network, or the names of several whose κ are added up; by default the last linear layer."""
    form: Literal["neuronwise", "layerwise", "unsquared"] = "neuronwise"
    """Σ over pairs of neurons; or ‖W‖² times the trace of the layer's Hessian; or ‖W‖ times it, as the published code had it."""
    probes: Natural | None = None
    """Estimate the trace with this many random vectors; by default it is exact."""
    gradient: Literal["whole", "weights_only"] = "whole"
    """`weights_only` treats the curvature as a constant, as the published code did."""


@dataclass(frozen=True, kw_only=True)
class AveragingSpec:
    """An average of the iterates: `swa` (equal weights, once per epoch) or `ema` (decay per optimizer step).

    Averaging begins after the share `start` of the epochs. `lr` replaces the schedule from then on, as a share of the
    base rate (Gadam halves it: `{start: 0.54, lr: 0.5}` with Adam and decoupled decay). BatchNorm statistics of the
    average are computed afresh on the un-augmented training data.
    """

    SHORTHAND: ClassVar[str] = "kind"

    kind: Literal["swa", "ema"] = "swa"
    start: Annotated[float, Range(0, 1)] = 0.5
    decay: Annotated[float, Range(0, 1)] = 0.999
    lr: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class EarlyStoppingSpec:
    """Keep the weights that were best on the validation data; with `patience`, stop after this many epochs without a better one.

    Both happen where the history has a row: after every epoch, or every `evaluate_every` epochs.
    """

    SHORTHAND: ClassVar[str] = "patience"

    patience: Natural | None = None
    metric: Literal["loss", "error"] = "loss"
    """Which of the two chooses the best weights."""


@dataclass(frozen=True, kw_only=True)
class ConvergenceSpec:
    """Stop once the training loss has settled.

    `relative_change`: it changed by less than this share from one epoch to the next (the fifth paper: 0.05).
    `below`: it is smaller than this. `after`: never before this many epochs. The loss is that of a row of the history: with
    `evaluate_every`, the mean over that many epochs.
    """

    relative_change: Positive | None = None
    below: Positive | None = None
    after: Natural = 1

    def __post_init__(self) -> None:
        if self.relative_change is None and self.below is None:
            raise SpecError("set relative_change, below, or both")


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """One training run.

    >>> TrainingSpec(model=ModelSpec(name="mlp"), epochs=5).optimizer.lr
    0.05
    """

    model: ModelSpec
    data: DataSpec = field(default_factory=DataSpec)
    loss: str | None = None
    """`cross_entropy` for classes and `mse` for numbers where it is left out; `dice` for shapes."""
    epochs: Natural = 10
    evaluate_every: Natural = 1
    """Evaluate and write a row of the history every this many epochs, and after the last one."""
    batch_size: Natural | Literal["full"] = 128
    """`full`: all rows at once."""
    drop_last: bool = False
    """Drop the last batch of an epoch where it is not full."""
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    sam: SAMSpec | None = None
    fam: FAMSpec | None = None
    averaging: AveragingSpec | None = None
    augmentation: Augmentation | None = None
    label_smoothing: Probability = 0.0
    """Applies to the training loss; evaluation is without it."""
    clip_norm: Positive | None = None
    """Gradients longer than this norm are scaled down to it."""
    accumulate: Natural = 1
    """Each batch is processed in this many parts; the step is that of the whole batch."""
    early_stopping: EarlyStoppingSpec | None = None
    convergence: ConvergenceSpec | None = None
    snapshots: tuple[Annotated[int, Range(0)], ...] = ()
    """Keep the weights after these optimizer steps."""
    snapshots_below: tuple[Positive, ...] = ()
    """Keep the weights where the loss of all training rows, evaluated without augmentation or dropout, first falls to each of
    these values; it is evaluated for every row of the history until the last value is reached."""
    precision: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    """The lower two are autocast; weights stay in float32."""
    channels_last: bool = False
    """Store images with channels last, for speed; not on a CPU for networks with strided 1×1 convolutions."""
    compile: bool = False
    """On a GPU, let torch compile passes through the network: the first step takes half a minute or so, the others are faster."""
    seed: Annotated[int, Range(0)] = 0
    """Of the initial weights, the order of the data, augmentation and dropout."""

    def __post_init__(self) -> None:
        if self.loss is not None:
            LOSSES[self.loss]
        if self.label_smoothing and self.loss not in (None, "cross_entropy"):
            raise SpecError(f"label_smoothing is for cross_entropy, not for {self.loss}")
        if self.augmentation and min(self.augmentation.crop, self.augmentation.cutout) < 0:
            raise SpecError(
                f"augmentation: crop and cutout are pixels, ≥ 0, but are {self.augmentation.crop} and {self.augmentation.cutout}"
            )
        if self.batch_size != "full" and self.accumulate > self.batch_size:
            raise SpecError(f"a batch of {self.batch_size} has no {self.accumulate} parts")
        if self.sam and self.sam.micro_batch and self.accumulate > 1:
            raise SpecError("sam.micro_batch and accumulate both cut the batch: set one of them")
        self._check_rows()

    def _check_rows(self) -> None:
        """Anything that looks at rows of the history must find some in time."""
        every, stopping = self.evaluate_every, self.early_stopping
        if stopping and stopping.patience and stopping.patience < every:
            raise SpecError(
                f"early_stopping.patience of {stopping.patience} epochs is shorter than the {every} epochs between two "
                "evaluations: lower evaluate_every, or raise patience"
            )
        if (stopping or self.convergence) and every > 1 and every >= self.epochs:
            key = "early_stopping" if stopping else "convergence"
            raise SpecError(
                f"{key} reads the rows of the history, and with evaluate_every {every} a run of {self.epochs} epochs has only "
                "one, at its end: lower evaluate_every"
            )


SpecLike = TrainingSpec | Mapping[str, object] | str | os.PathLike[str]
"""A spec, the same as a mapping, or a YAML, TOML or JSON file."""


def training_spec(spec: SpecLike, model: nn.Module | None = None) -> TrainingSpec:
    """The spec, checked; a mapping need not name a model that is given.

    >>> training_spec({"epochs": 3}, nn.Linear(2, 2)).model.name
    'Linear'
    """
    if isinstance(spec, TrainingSpec):
        return spec
    if isinstance(spec, Mapping):
        own = {"model": type(model).__name__} if model is not None else {}
        return parse(TrainingSpec, {**own, **spec})
    return read_spec(TrainingSpec, spec)
