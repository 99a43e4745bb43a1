"""Losses whose reduction is known: a loss per sample, or a mean or a sum over samples.

Every number of Landscope is a mean over samples, so it must know what a loss function returns. Named losses are per
sample; a `torch.nn` criterion is read by its `reduction`; any other function returns one number per sample, or one
number for the batch, in which case parts of a batch show whether it is a mean or a sum over samples, or a mean over labels that
are not ignored. A loss that is none of these (a contrast within the batch) is refused: its value would depend on the batch size.

Where samples hold different numbers of labels (padded sequences) or classes have weights, torch's mean is one mean over all
labels, not a mean of the samples' means. The probe weighs the samples so that their mean is that: see `Loss.pooled`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from landscope.core.errors import LossError
from landscope.core.registry import Registry
from landscope.probe.loss.targets import IGNORED, class_dimension, kept_labels, require_labels

Likelihood = Literal["categorical", "bernoulli", "gaussian"]
Reduction = Literal["per_sample", "mean", "sum", "label_mean", "unknown"]
LIKELIHOODS = ("categorical", "bernoulli", "gaussian")
REDUCTIONS = ("per_sample", "mean", "sum", "label_mean", "unknown")

LOSSES = Registry["Loss"]("loss")


@dataclass(frozen=True)
class Loss:
    """A loss function with its reduction made explicit.

    `function(outputs, targets)`, or `function(outputs, batch)` with `takes="batch"`, returns one loss per sample
    (`reduction="per_sample"`), their mean or sum over the batch, or their mean over labels that are not −100
    (`"label_mean"`). `likelihood` names the distribution whose negative log density the loss is (up to constants, averaged over
    the predictions of a sample): the Fisher matrix needs it, and the probe checks it.

    >>> Loss(lambda z, y: (z - y).abs().mean(), reduction="mean")
    Loss('<lambda>', reduction='mean')
    """

    function: Callable[..., Tensor]
    reduction: Reduction = "unknown"
    takes: Literal["targets", "batch"] = "targets"
    likelihood: Likelihood | None = None
    name: str = ""
    structured: bool = False
    """Whether the function wants what the model returned (a tuple, a dict), not only its tensor of outputs."""
    known: Literal["", "name", "criterion", "model"] = ""
    """Whether the loss is one of ours: asked for by name, a criterion of torch, which means what torch computes, or found to be
    what the model computes."""
    mass: Callable[[object], Tensor | None] | None = None
    """What the targets of each sample count for in one mean over all labels (n,): see `pooled`."""
    weigh: Callable[[Tensor, object], Tensor] | None = None
    """By what the mean over a sample's predictions is multiplied (n,), given outputs and targets."""
    share: Callable[[object], Tensor] | None = None
    """What the targets of each sample count for where all labels are pooled (n,), 1 on average."""
    classes_last: bool = False
    """Whether the last dimension of the outputs holds the classes."""
    ignored: int = IGNORED
    """The label that counts for nothing; the probe turns it into −100."""
    unexplained: str = ""
    """Of a model's own loss that is not a likelihood of its outputs: what it is and what they would give, for messages."""
    scale: float = 1.0
    """Of a `label_mean`: samples over labels, so that the sum over all samples divided by their number is a mean over labels."""

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise LossError(f"reduction must be 'per_sample', 'mean', 'sum' or 'label_mean', got {self.reduction!r}")
        if self.likelihood not in (None, *LIKELIHOODS):
            raise LossError(
                f"likelihood must be 'categorical', 'bernoulli', 'gaussian' or None, got {self.likelihood!r}; the GGN exists for "
                f"any loss"
            )
        if self.takes not in ("targets", "batch"):
            raise LossError(f"takes must be 'targets' or 'batch', got {self.takes!r}")
        if self.reduction == "label_mean" and self.takes != "targets":
            raise LossError("reduction='label_mean' counts the labels of the targets: it needs takes='targets'")
        if not self.name:
            object.__setattr__(self, "name", getattr(self.function, "__name__", type(self.function).__name__))

    def __repr__(self) -> str:
        return f"Loss({self.name!r}, reduction={self.reduction!r})"

    def notices(self) -> Iterator[str]:
        """What a reader of the numbers should know."""
        if self.unexplained:
            yield self.unexplained
            if self.reduction == "sum":
                yield "the model adds its loss up over samples; their mean is measured"

    def sum(self, outputs: object, second: object, size: int, weights: Tensor | None = None) -> Tensor:
        """The sum of the loss over the `size` samples of a batch; `second` is what `takes` names.

        Where the samples have `weights` (n,), each is counted that many times; the weights are alike unless the loss is per
        sample.
        """
        value = self.function(outputs, second)
        if weights is not None:
            value = value * (weights if self.reduction == "per_sample" else weights[0])
        if self.reduction == "per_sample":
            return value.sum()
        if self.reduction == "label_mean":
            kept = kept_labels(second)
            size = 1 if kept is None else kept.sum().to(value)  # type: ignore[assignment]
            return value * size * self.scale
        return value * size if self.reduction == "mean" else value

    @property
    def of_classes(self) -> bool:
        """Whether the targets are labels of classes, or probabilities of them."""
        return self.mass is not None or self.likelihood == "categorical"

    @property
    def ignores(self) -> bool:
        """Whether labels of −100 count for nothing."""
        return self.of_classes or self.reduction == "label_mean"

    @property
    def pools(self) -> bool:
        """Whether the loss is one mean over the labels of all samples."""
        return self.reduction == "label_mean" or (self.mass is not None and self.weigh is None)

    def with_classes_last(self) -> Loss:
        """The same loss of classes for outputs whose last dimension holds them, whatever their shape."""
        function = (
            partial(self.function, last=True) if self.known else self.function
        )  # the user's own knows where they lie
        return replace(self, function=function, classes_last=True)

    def sample_weights(self, outputs: Tensor, targets: object) -> Tensor | None:
        """By what the mean over each sample's predictions is multiplied (n,); `None` for 1."""
        return None if self.weigh is None else self.weigh(outputs, targets)

    def pooled(self, samples: int, mass: float) -> Loss:
        """The loss with samples weighed by what their targets count for: Σ m_i ℓ_i / Σ m_i, as a mean over samples.

        >>> two = LOSSES["cross_entropy"].pooled(samples=2, mass=3.0)
        >>> z, y = torch.zeros(2, 4, 2), torch.tensor([[0, -100], [1, 2]])
        >>> bool(torch.isclose(two.function(z, y).mean(), F.cross_entropy(z, y)))
        True
        """
        if self.reduction == "label_mean":
            return replace(self, scale=samples / mass)
        assert self.mass is not None, "losses that count labels have a mass"
        inner, count, each = self.function, self.mass, samples / mass

        def share(targets: object) -> Tensor:
            held = count(targets)
            assert held is not None, "all targets are of one kind"
            return held * each

        def function(outputs: Tensor, targets: object) -> Tensor:
            values = inner(outputs, targets)
            return values * share(targets).to(values)

        return replace(self, function=function, weigh=lambda _, targets: share(targets), share=share)


def aligned(outputs: Tensor, targets: object, loss: str) -> Tensor:
    """Targets in the shape and type of the outputs; (n,) and (n, 1) are the same, anything else must match.

    Broadcasting (n, 1) against (n,) would compare every sample with every other one.
    """
    if not isinstance(targets, Tensor):
        raise LossError(f"{loss} needs a tensor of targets, got {type(targets).__name__}")
    if targets.shape != outputs.shape:
        if not _same_but_for_ones(outputs.shape, targets.shape):
            raise LossError(
                f"{loss} compares outputs and targets of one shape; got outputs {tuple(outputs.shape)} and targets "
                f"{tuple(targets.shape)}"
            )
        targets = targets.reshape(outputs.shape)
    return targets.to(outputs.dtype)


def _same_but_for_ones(a: torch.Size, b: torch.Size) -> bool:
    """Whether two shapes differ in dimensions of size 1 only, or in that one is flat.

    >>> [_same_but_for_ones(torch.Size((4, 3, 2)), torch.Size(b)) for b in ((4, 3, 1, 2), (4, 6), (4, 2, 3))]
    [True, True, False]
    """
    if a[:1] != b[:1] or a.numel() != b.numel():
        return False
    rest = [[size for size in shape[1:] if size != 1] for shape in (a, b)]
    return rest[0] == rest[1] or min(map(len, rest)) <= 1


def cross_entropy(outputs: Tensor, targets: object, last: bool = False) -> Tensor:
    """−log softmax(z)_y per sample, averaged over the positions of a sample if it has several.

    Labels are class indices, or probabilities of the outputs' shape. Positions labelled −100 are ignored.

    >>> cross_entropy(torch.zeros(1, 2), torch.tensor([1]))
    tensor([0.6931])
    """
    targets = require_labels(targets)
    dim = class_dimension(outputs, targets, last)
    log_p = outputs.log_softmax(dim)
    if targets.is_floating_point():
        return mean_per_sample(-(log_p * targets.to(log_p.dtype)).sum(dim))
    labels = targets.long()
    return mean_over_kept(-log_p.gather(dim, labels.clamp(min=0).unsqueeze(dim)).squeeze(dim), labels)


def mean_per_sample(values: Tensor) -> Tensor:
    """One value for each sample: the mean over its labels."""
    return values if values.dim() == 1 else values.flatten(1).mean(1)


def mean_over_kept(values: Tensor, labels: Tensor) -> Tensor:
    """The mean over those positions of a sample that are not labelled −100; 0 where there are none."""
    kept = labels != IGNORED
    if values.dim() == 1:
        return torch.where(kept, values, 0.0)
    share = kept.to(values.dtype).flatten(1)
    return (values.flatten(1) * share).sum(1) / share.sum(1).clamp(min=1)


def mse(outputs: Tensor, targets: object) -> Tensor:
    """(z − y)², averaged over the outputs of a sample.

    >>> mse(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0]))
    tensor([0., 4.])
    """
    return mean_per_sample((outputs - aligned(outputs, targets, "mse")).square())


def binary_cross_entropy(outputs: Tensor, targets: object) -> Tensor:
    """Log-loss of independent yes/no outputs given as logits, averaged over the outputs of a sample.

    >>> binary_cross_entropy(torch.zeros(1, 1), torch.tensor([1]))
    tensor([0.6931])
    """
    y = aligned(outputs, targets, "binary_cross_entropy")
    # softplus(z) − zy, which cancels where a network is right and sure: torch has softplus(z) = z from z = 20 on
    return mean_per_sample(y * F.softplus(-outputs) + (1 - y) * F.softplus(outputs))


def exponential(outputs: Tensor, targets: object) -> Tensor:
    """exp(−y z) with y = ±1, averaged over the outputs of a sample (the loss of Granziol 2020's deep linear example).

    >>> exponential(torch.zeros(1, 1), torch.tensor([1.0]))
    tensor([1.])
    """
    return mean_per_sample((-outputs * aligned(outputs, targets, "exponential")).exp())


def dice(outputs: Tensor, targets: object) -> Tensor:
    """1 − 2 Σ p y / (Σ p + Σ y) per sample, for occupancies p in [0, 1] (the soft Dice loss of Milletari et al. 2016).

    Two empty shapes agree: their loss is 0.

    >>> dice(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor([0.0000, 0.3333])
    """
    y = aligned(outputs, targets, "dice").flatten(1)
    p = outputs.flatten(1)
    tiny = 1e-6
    return 1 - (2 * (p * y).sum(1) + tiny) / (p.sum(1) + y.sum(1) + tiny)


for _function, _likelihood, _mass in (
    (cross_entropy, "categorical", kept_labels),
    (binary_cross_entropy, "bernoulli", None),
    (mse, "gaussian", None),
    (exponential, None, None),
    (dice, None, None),
):
    LOSSES.register(_function.__name__)(
        Loss(_function, "per_sample", likelihood=_likelihood, known="name", mass=_mass)  # type: ignore[arg-type]
    )


def predictions(loss: Loss, outputs: Tensor, targets: object) -> int:
    """How many predictions a sample has: numbers, or positions with one distribution over classes each.

    >>> predictions(LOSSES["mse"], torch.zeros(2, 5), torch.zeros(2, 5))
    5
    >>> predictions(LOSSES["cross_entropy"], torch.zeros(2, 5), torch.tensor([0, 4]))
    1
    """
    classes = 1
    if loss.likelihood == "categorical" or loss.mass is not None:
        classes = outputs.shape[class_dimension(outputs, require_labels(targets), loss.classes_last)]
    return outputs.numel() // (outputs.shape[0] * classes)
