"""Calibration and generalisation at a probe: the logits are collected in one forward pass and shared by all.

The value is exact for the probe's data; the bootstrap gives the error over samples of that size (`data_stderr`). The probe
decides which split is measured, train, validation or test; a gap is the difference of two.
A single yes/no output z counts as the two logits 0 and z.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from landscope.core.distributed import processes, sum_over_processes
from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.core.json import Plain
from landscope.measures.base import Measure, register
from landscope.measures.calibration.errors import accuracy, ace, brier, classwise_ece, ece, error, mce, nll
from landscope.measures.calibration.scores import Logits, check_bins
from landscope.measures.calibration.tokens import TokenScores
from landscope.measures.facts import Better, Family
from landscope.measures.row_measure import is_sample, output_looks
from landscope.probe.loss.answers import LabelScores, predictions_in
from landscope.probe.probe import Probe
from landscope.probe.rows.means import WIDE, RowMean, row_mean
from landscope.probe.rows.order import RowOrder
from landscope.probe.rows.outputs import Outputs, outputs_of
from landscope.probe.shared import loss_value, mean_and_error, once_per_probe, sums

FEW_RESAMPLES = 100
"""Of the bootstrap while rows are still being read."""
NOTHING_SEEN = 1.5
"""Standard error, over the number of rows, of a share that was never seen: twice it is the rule of three."""

OF_THE_FUNCTION = frozenset({"layer_rescaling", "neuron_rescaling", "batchnorm_scaling", "permutation", "logit_shift"})


@once_per_probe
def labelled_logits(probe: Probe) -> tuple[Logits, Tensor]:
    """Logits (n, C), over the probe's temperature, and labels (n,) of all samples of all processes. One forward pass.

    Where samples have several labels each (tokens), the scores of those that count, and the labels (k,).

    >>> probe = Probe(torch.nn.Linear(2, 3), (torch.randn(10, 2), torch.arange(10) % 3))
    >>> [tuple(t.shape) for t in labelled_logits(probe)]
    [(10, 3), (10,)]
    """
    outputs = outputs_of(probe)
    while outputs.advance():
        _labelled(probe, outputs)  # what does not apply is reported after the first rows
    if outputs.scores is not None:
        return _of_tokens(probe, LabelScores(*_gathered((s := outputs.scores).counts, s.labels, s.values)))
    return _gathered(*_labelled(probe, outputs))  # type: ignore[return-value,arg-type]


def _gathered(*mine: Tensor) -> tuple[Tensor, ...]:
    """Tensors of all processes, one after the other."""
    if processes() == 1:
        return mine
    parts = [mine] * processes()
    dist.all_gather_object(parts, mine)
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))


def _of_tokens(probe: Probe, scores: LabelScores) -> tuple[TokenScores, Tensor]:
    tokens = TokenScores.of(scores, by_sequence=probe.per == "sequence")
    return tokens, tokens.labels


def _labelled(probe: Probe, outputs: Outputs) -> tuple[Logits, Tensor]:
    """Logits and labels of the rows read so far, or scores of tokens and their labels."""
    if probe.loss.unexplained:
        raise NotApplicableError(f"logits that the loss is a likelihood of are needed; {probe.loss.unexplained}")
    if outputs.scores is not None:
        return _of_tokens(probe, outputs.scores)
    if probe.loss.likelihood == "gaussian":
        raise NotApplicableError(f"the loss {probe.loss.name!r} is a regression loss: there are no classes to predict")
    if not outputs.one_tensor:
        predictions_in(outputs.example)
    if outputs.outputs is None:
        raise NotApplicableError(f"logits (n, C) and labels (n,) are needed; the model gives {outputs.described}")
    logits, labels = _classes(probe, outputs.outputs, outputs.targets)
    if labels.is_floating_point():
        if not bool(((labels == 0) | (labels == 1)).all()):
            raise NotApplicableError("one class label per sample is needed; the targets are probabilities")
        labels = labels.long()
    return logits, labels


def _classes(probe: Probe, z: Tensor, y: object) -> tuple[Tensor, Tensor]:
    """One row of logits and one label per sample; refused with a reason, from shapes and types alone, where there are none."""
    if not isinstance(y, Tensor):
        raise NotApplicableError("there are no labels to compare predictions with")
    if y.dtype == torch.bool:
        y = y.long()
    if probe.loss.likelihood == "bernoulli" and z.numel() == len(y) == y.numel():
        z = z.reshape(-1, 1)
        return torch.cat([torch.zeros_like(z), z], 1), y.reshape(-1)
    if y.is_floating_point():
        kinds = {
            "categorical": "label distributions (see the human_… functions)",
            "bernoulli": f"{y[0].numel()} yes/no answers for each row",
        }
        what = kinds.get(str(probe.loss.likelihood), "") if y.shape == z.shape else ""
        what = what or f"real numbers ({y.dtype})"
        raise NotApplicableError(
            f"these measures are for classes, and one class label per sample is needed; the targets are {what}"
        )
    if z.dim() != 2 or z.shape[1] < 2 or y.shape != z.shape[:1]:
        raise NotApplicableError(
            f"logits (n, C) and labels (n,) are needed; the model gives {tuple(z.shape)} for targets {tuple(y.shape)}"
        )
    return z, y


@dataclass(frozen=True, kw_only=True)
class FromLogits(Measure):
    """Base of the measures of logits and labels; one forward pass, shared."""

    turn = 0
    on_shards = True
    unit = ""
    better: ClassVar[Better] = "lower"
    cost = "one forward pass, shared by all measures of predictions"
    invariant_to: ClassVar[frozenset[str]] = OF_THE_FUNCTION

    most: ClassVar[float] = 1.0
    """What it is at most; at least it is 0."""
    function: ClassVar[Callable[..., Estimate]]
    """The function of logits and labels whose value is measured."""

    def _options(self, resamples: int | None = None) -> dict[str, Plain]:
        """The function's arguments besides logits and labels: the settings, without the seed where nothing is random."""
        return {name: value for name, value in self.settings.items() if name != "seed"}

    def at_once(self, probe: Probe) -> Estimate | None:
        """What other measures have read so far."""
        outputs = outputs_of(probe)
        return self._early(probe, outputs) if is_sample(outputs) else None

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """The rows read so far, then all of them."""
        for outputs in output_looks(probe):
            yield self._early(probe, outputs)
        yield replace(type(self).function(*labelled_logits(probe), **self._options()), stderr=0.0)

    def _early(self, probe: Probe, outputs: Outputs) -> Estimate | None:
        """From a random part of the rows: the error bar covers the missing ones, the bracket also the bias of a small sample."""
        logits, labels = _labelled(probe, outputs)
        found = type(self).function(logits, labels, **self._options(FEW_RESAMPLES))
        if outputs.order is None or not found.status.has_value:
            return None
        rows, missing = outputs.rows, 1 - outputs.rows / probe.n_samples
        error = math.sqrt(missing) * math.hypot(found.data_stderr or 0.0, NOTHING_SEEN / rows)
        low, high = found.value - 2 * error - missing * self._bias(rows), found.value + 2 * error
        low, high = max(low, 0.0), min(high, self.most)
        reason = f"{rows:,} of {probe.n_samples:,} rows"
        if (high - low) / 2 > WIDE * found.value:
            below = low > 0 and (high == self.most or found.value / low <= high / found.value)
            value, side = (low, Status.LOWER_BOUND) if below else (high, Status.UPPER_BOUND)
            return Estimate(value, status=side, reason=reason, details=found.details)
        return replace(found, stderr=error, status=Status.RUNNING, reason=reason, bracket=(low, high))

    def _bias(self, rows: int) -> float:
        """How far the value on few rows may lie above that on all of them."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Binned(FromLogits):
    """Base of the binned errors."""

    family = Family.CALIBRATION

    n_bins: int = 15
    resamples: int = 1000

    def __post_init__(self) -> None:
        check_bins(self.n_bins)
        if self.resamples < 0 or self.resamples == 1:
            raise ValueError(f"resamples must be 0 (no error bar) or at least 2, got {self.resamples}")

    def _options(self, resamples: int | None = None) -> dict[str, Plain]:
        return self.settings if resamples is None else {**self.settings, "resamples": resamples}

    def _bias(self, rows: int) -> float:
        """|accuracy − confidence| of a bin with few rows is above zero by chance: at most about ½ √(bins/rows) in all."""
        return 0.5 * math.sqrt(self.n_bins / rows)


@register("accuracy")
@dataclass(frozen=True, kw_only=True)
class Accuracy(FromLogits):
    """The share of samples, or of tokens, whose most likely class is their label."""

    function = staticmethod(accuracy)
    title = "accuracy"
    family = Family.FIT
    better = "higher"


@register("error")
@dataclass(frozen=True, kw_only=True)
class Error(FromLogits):
    """The share of samples, or of tokens, whose most likely class is not their label."""

    function = staticmethod(error)
    title = "error"
    family = Family.FIT


@register("nll")
@dataclass(frozen=True, kw_only=True)
class NLL(FromLogits):
    """How surprised the model is by the labels: −log p, averaged; the same as `loss` where that is plain cross-entropy."""

    function = staticmethod(nll)
    most = math.inf
    title = "NLL"
    family = Family.FIT
    unit = "nats"


@register("brier")
@dataclass(frozen=True, kw_only=True)
class Brier(FromLogits):
    """The squared error of the probabilities, Σ_c (p_c − [c = y])², averaged.

    Its reliability, resolution and uncertainty are in the details.
    """

    function = staticmethod(brier)
    most = 2.0
    title = "Brier score"
    family = Family.CALIBRATION
    reference = "Brier 1950; Murphy 1973"

    n_bins: int = 15

    def __post_init__(self) -> None:
        check_bins(self.n_bins)


@register("ece")
@dataclass(frozen=True, kw_only=True)
class ECE(Binned):
    """Expected calibration error: |accuracy − confidence| over bins of equal width (Naeini et al. 2015).

    >>> probe = Probe(torch.nn.Linear(2, 3), (torch.randn(10, 2), torch.arange(10) % 3))
    >>> ECE()(probe).status.value
    'exact'
    """

    function = staticmethod(ece)
    title = "ECE"
    reference = "Naeini et al. 2015; Guo et al. 2017"


@register("mce")
@dataclass(frozen=True, kw_only=True)
class MCE(Binned):
    """The largest gap |accuracy − confidence| among bins of equal width; a rough guide."""

    function = staticmethod(mce)
    title = "MCE"
    reference = "Naeini et al. 2015"


@register("ace")
@dataclass(frozen=True, kw_only=True)
class ACE(Binned):
    """How far confidence is off: |accuracy − confidence| over bins of equal numbers of samples.

    Nixon et al. 2019 with `classwise`.
    """

    function = staticmethod(ace)
    title = "ACE"
    reference = "Nguyen and O'Connor 2015; Nixon et al. 2019"

    classwise: bool = False


@register("classwise_ece")
@dataclass(frozen=True, kw_only=True)
class ClasswiseECE(Binned):
    """The calibration error of every class's own probability, averaged over classes."""

    function = staticmethod(classwise_ece)
    title = "classwise ECE"
    reference = "Kull et al. 2019; Nixon et al. 2019"


@register("loss")
@dataclass(frozen=True, kw_only=True)
class MeanLoss(Measure):
    """L, the mean loss over the probe's samples, whatever the loss. One forward pass.

    >>> probe = Probe(torch.nn.Linear(2, 1), (torch.randn(10, 2), torch.randn(10)), "mse")
    >>> abs(MeanLoss()(probe).value - probe.value()) < 1e-6
    True
    """

    title = "loss"
    family = Family.FIT
    unit = "loss"
    better = "lower"
    cost = "one forward pass"
    turn = 0
    on_shards = True
    invariant_to: ClassVar[frozenset[str]] = OF_THE_FUNCTION

    def at_once(self, probe: Probe) -> Estimate | None:
        """What other measures have read so far."""
        outputs = outputs_of(probe)
        return self._of(outputs).estimate() if is_sample(outputs) and outputs.losses is not None else None

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """The rows read so far, then all of them."""
        if probe.loss.reduction != "per_sample":
            yield Estimate(loss_value(probe), details={"samples": probe.n_samples})
            return
        for outputs in output_looks(probe):
            yield self._of(outputs).estimate()
        outputs = outputs_of(probe)
        if processes() > 1:
            assert outputs.losses is not None
            assert outputs.counts is not None
            mean = loss_value(probe)
            apart = sums(outputs.losses - mean * outputs.counts)
            total, squares = (sum_over_processes(part.to(probe.device)) for part in apart)
            error_of_mean = mean_and_error(total, squares, probe.n_samples)[1]
            yield Estimate(mean, data_stderr=error_of_mean, details={"samples": probe.n_samples})
        else:
            yield replace(self._of(outputs).estimate(), details={"samples": probe.n_samples})

    def _of(self, outputs: Outputs) -> RowMean:
        assert outputs.losses is not None
        assert outputs.counts is not None
        order = outputs.order or RowOrder(torch.arange(outputs.rows), None)
        counts = outputs.read_values(outputs.counts)[:, 0]
        return row_mean(outputs.read_values(outputs.losses), order, counts=counts)
