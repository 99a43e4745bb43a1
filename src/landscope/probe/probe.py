"""A frozen point to measure at: the function, its parameters as values, the loss, the data and the mode."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.func import functional_call

from landscope.core.distributed import processes, raise_together, sum_over_processes
from landscope.core.errors import LossError, NotApplicableError, UnknownNameError
from landscope.core.parameters import ParameterSpace, Selection, select_parameters
from landscope.probe import checks
from landscope.probe.batches import Batch, Layout, map_tensors, tensors_in
from landscope.probe.checks import refuse_unmeasurable
from landscope.probe.conditions import Precision, measuring
from landscope.probe.copying import copied_with
from landscope.probe.frozen import Mode, frozen_copy, is_recurrent, unwrap, working_dtype
from landscope.probe.guards import guarded
from landscope.probe.loss.criteria import resolve_loss
from landscope.probe.loss.losses import Loss
from landscope.probe.loss.settling import counted_labels, leave_out_ignored, settled
from landscope.probe.loss.targets import IGNORED, kept_labels
from landscope.probe.reading import DataLike, FixedData, held, read
from landscope.probe.totals import (
    FORWARD,
    Ledger,
    PieceFunction,
    PieceSize,
    added_up,
    bytes_of_gradient,
    in_pieces,
    samples_that_fit,
)

__all__ = ["Probe"]

Params = Mapping[str, Tensor]

CHECKED_SAMPLES = 32
"""How many samples the checks at construction evaluate at once: the first ones, and some from all over the data."""
FEW_SAMPLES = 4
"""How many samples derivatives are checked on."""


class Probe:
    """A model at its present parameters, with the data and the loss at which it is measured.

    The model is copied once and never touched: parameters, buffers, mode, hooks, gradients and random state stay as they
    are, whatever is measured and whatever fails. What would make numbers meaningless is refused here.

    Args:
        model: any `nn.Module`; half-precision weights are measured in float32.
        data: a DataLoader, a Dataset, (x, y) tensors, or any re-iterable of batches (tuples or dicts).
        loss: a name (`cross_entropy`, `mse`, `binary_cross_entropy`, `exponential`), a `landscope.Loss`, a `torch.nn`
            criterion, or a function of (outputs, targets), or of (outputs, batch) if its second parameter has that name.
        params: which parameters: all that require a gradient, or names, layers, patterns, modules.
        mode: `"eval"`, or `"batch_statistics"`: BatchNorm on the statistics of each batch, dropout off. Then the batches
            are part of the definition and are taken as they come.
        temperature: outputs are divided by it.
        batch_size: samples per batch for tensors and Datasets; memory is bounded without it.
        device, dtype: where and in which precision to measure; default: as the model is.
        seed: for what is random later on.

    >>> probe = Probe(nn.Linear(2, 3), (torch.randn(10, 2), torch.arange(10) % 3))
    >>> probe
    Probe(Linear, 9 parameters, 10 samples, cross_entropy, eval, float32 on cpu)
    >>> probe.gradient().shape
    torch.Size([9])
    """

    def __init__(
        self,
        model: nn.Module,
        data: DataLike,
        loss: str | Loss | nn.Module | Callable[..., Tensor] = "cross_entropy",
        *,
        params: Selection = None,
        mode: Mode = "eval",
        temperature: float = 1.0,
        batch_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        seed: int = 0,
    ) -> None:
        checks.check_options(model, mode, temperature, dtype)
        inner = unwrap(model)
        self.device = torch.device(device or next((p.device for p in inner.parameters()), "cpu"))
        self.mode: Mode = mode
        self.temperature = float(temperature)
        self.seed = int(seed)
        self.ledger = Ledger()
        self.results: dict[Hashable, object] = {}
        """What was computed at this point already; it stays true, and lives as long as the probe."""
        self.alike = WeakSet((self,))
        """The probes that differ from this one in temperature at most, itself among them."""
        self.notices: tuple[str, ...] = ()
        """What a reader of the numbers should know about this point."""
        error: Exception | None = None
        try:
            refuse_unmeasurable(inner, params)
            with measuring(self.device, dtype=dtype or working_dtype(inner)):
                self.loss = resolve_loss(loss)
                self._model, function = frozen_copy(inner, mode, dtype, self.device, self.loss.function)
                self.loss = replace(self.loss, function=function)
                self._recurrent = is_recurrent(inner)
                self._measure(select_parameters(inner, params))
                self._read(read(data, batch_size), batch_size)
                self.notices = (*guarded(self, inner, self._settle_loss), *self.layout.notices())
                counted = counted_labels(self)
                self._local_samples = int(counted[0])
        except Exception as caught:
            error = caught
        raise_together(error, self.device)
        samples, labels, squares = sum_over_processes(counted.to(self.device)).tolist()
        self.n_samples = int(samples)
        if samples * squares - labels**2 > 1e-12 * labels**2:  # samples hold different numbers of labels
            self.loss = self.loss.pooled(self.n_samples, labels)

    def _measure(self, names: tuple[str, ...]) -> None:
        held = dict(self._model.named_parameters())
        self._params = {name: held[name].detach() for name in names}
        self.space = ParameterSpace(names, tuple(p.shape for p in self._params.values()))
        self.dtype = next(iter(self._params.values())).dtype
        self._piece_sizes: dict[float, PieceSize] = {}

    def _read(self, data: FixedData, batch_size: int | None) -> None:
        if self.mode == "batch_statistics":
            checks.check_batches_are_fixed(data, batch_size)
        self._data = data
        self.layout = Layout.of(self._model, next(iter(data)))
        self._held: tuple[Batch, ...] | None = None
        if data.kept is not None:
            batches = (self.layout.batch(raw) for raw in data.kept)
            self._held = held(batches, self.mode == "eval", self.device, self.ready)
        self._take_few()

    def _settle_loss(self) -> None:
        """Refuse what cannot be measured, and find out how the loss is reduced."""
        with self.measuring(), torch.no_grad():
            self.loss = settled(self, CHECKED_SAMPLES)
            for batch in self._suspicious():
                checks.check_finite_loss(self.loss_sum(self._params, batch), "of samples with non-finite inputs")
        if self._held is not None:
            self._held = tuple(self._without_ignored(self._held))
        self._take_few()

    def _take_few(self) -> None:
        few = next(next(self.batches()).pieces(FEW_SAMPLES))
        self.few = Batch(self.ready(few.raw), few.size, few.divisible)
        """The first rows, ready; all of a batch that cannot be cut."""

    def _without_ignored(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches without samples all of whose labels are ignored."""
        for batch in batches:
            kept = leave_out_ignored(batch, self.targets(batch)) if self.loss.ignores else batch
            if kept is not None:
                yield kept

    def _suspicious(self) -> Iterator[Batch]:
        """Samples whose inputs hold NaN or infinity: their loss is looked at before anything else."""
        for batch in self._held or ():
            for piece in batch.pieces(1024):
                strided = [t for t in tensors_in(piece.raw) if t.layout == torch.strided]
                if any(not bool(torch.isfinite(t).all()) for t in strided if t.is_floating_point()):
                    yield Batch(self.ready(piece.raw), piece.size, piece.divisible)

    # The point

    def module(self, layer: str) -> nn.Module:
        """The named layer of the probe's own copy of the model; reading it is free, changing it is not allowed."""
        layers = dict(self._model.named_modules())
        if layer not in layers:
            raise UnknownNameError.among("layer", layer, [name for name in layers if name])
        return layers[layer]

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """Every layer of the probe's own copy of the model, by name."""
        return MappingProxyType(dict(self._model.named_modules()))

    @property
    def params(self) -> Mapping[str, Tensor]:
        """The measured parameters by name, in the order of a flat vector."""
        return MappingProxyType(self._params)

    @property
    def n_params(self) -> int:
        """P, the length of a parameter vector."""
        return self.space.size

    def vector(self) -> Tensor:
        """θ as one vector (P,)."""
        return self.space.flatten(self._params)

    def at_temperature(self, temperature: float) -> Probe:
        """The same point at another temperature; the data is not read again, and work that is the same (IGS's) done once."""
        checks.check_options(self._model, self.mode, temperature, None)
        twin = self._twin()
        twin.temperature = float(temperature)
        twin.alike = self.alike
        self.alike.add(twin)
        return twin

    def restrict(self, params: Selection) -> Probe:
        """The same point with other parameters measured and the rest constant.

        >>> net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        >>> Probe(net, (torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))).restrict("1").n_params
        8
        """
        twin = self._twin()
        twin._measure(select_parameters(self._model, params))
        return twin

    def _twin(self) -> Probe:
        """Another probe at the same model and data, with nothing computed yet; it shares the ledger."""
        twin = object.__new__(Probe)
        twin.__dict__.update(self.__dict__)
        twin.results = {}
        twin.alike = WeakSet((twin,))
        return twin

    def _copied_twin(self) -> Probe:
        """Another probe whose model is a copy, and whose loss refers to that."""
        twin = self._twin()
        twin._model, function = copied_with(self._model, self.loss.function)
        twin.loss = replace(self.loss, function=function)
        return twin

    def with_loss(self, loss: Loss) -> Probe:
        """The same model and data with another loss, whose reduction must be declared."""
        twin = self._twin()
        twin.loss = loss
        return twin

    def with_model(self, edit: Callable[[nn.Module], None]) -> Probe:
        """The same data at an edited copy of the model: `edit` changes the copy in place."""
        twin = self._copied_twin()
        with torch.no_grad():
            edit(twin._model)
        twin._measure(self.space.names)
        return twin

    def on_rows(self, rows: Tensor, weights: Tensor) -> Probe:
        """The same point on some rows, each counted `weights` times: means over them stand for means over all rows.

        `rows` are numbers of samples in held data (see `row_numbers`). Operators and losses know the weights; numbers per
        sample do not.
        """
        assert self._held is not None
        twin = self._twin()
        twin._held = (self._held[0].select(rows, weights.to(self.device, self.dtype)),)
        return twin

    @property
    def takes_rows(self) -> bool:
        """Whether single rows can be taken: data held as one batch that can be cut, in this process alone."""
        return self._held is not None and len(self._held) == 1 and self._held[0].divisible and processes() == 1

    def at_batch(self, batch: Batch, dtype: torch.dtype) -> Probe:
        """The same point on one batch, in another precision, for checks; with a ledger of its own."""
        twin = self._copied_twin()
        if dtype == torch.float64:
            twin._model.double()
        twin._measure(self.space.names)
        twin.few = Batch(twin.ready(batch.raw), batch.size, batch.divisible)
        twin._held = (twin.few,)
        twin._local_samples = twin.n_samples = batch.size
        twin.ledger = Ledger()
        return twin

    def layers(self) -> dict[str, tuple[str, ...]]:
        """The measured parameters by the layer that holds them."""
        out: dict[str, tuple[str, ...]] = {}
        for name in self.space.names:
            layer = name.rpartition(".")[0]
            out[layer] = (*out.get(layer, ()), name)
        return out

    def __repr__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return (
            f"Probe({type(self._model).__name__}, {self.n_params:,} parameters, {self.n_samples:,} samples, "
            f"{self.loss.name}, {self.mode}, {kind} on {self.device})"
        )

    # The function

    def call(self, params: Params, batch: Batch) -> object:
        """What the model returns at the given parameters; it may write into its inputs, which are copies."""
        args, kwargs = self.layout.arguments(batch.raw)
        args, kwargs = map_tensors(torch.clone, (args, kwargs))  # type: ignore[misc]
        return functional_call(self._model, dict(params), args, kwargs)

    def outputs(self, params: Params, batch: Batch) -> object:
        """What the loss compares with the targets: the model's outputs at the given parameters, over the temperature."""
        outputs = self.call(params, batch)
        if self.loss.structured and not isinstance(outputs, Tensor):
            if self.temperature != 1.0:
                raise LossError("a temperature needs a model that returns one tensor; wrap the model so that it does")
            return outputs
        tensor = checks.tensor_output(outputs)
        return tensor if self.temperature == 1.0 else tensor / self.temperature

    def targets(self, batch: Batch) -> object:
        """What the outputs for a batch are compared with; a label to ignore is −100, whatever the loss calls it."""
        targets = self.layout.targets(batch.raw)
        if not self.loss.of_classes or kept_labels(targets) is None:
            return targets
        assert isinstance(targets, Tensor), "labels are a tensor"
        labels = targets.long()  # in bytes −100 would be 156
        return labels if self.loss.ignored == IGNORED else labels.masked_fill(labels == self.loss.ignored, IGNORED)

    def second(self, batch: Batch) -> object:
        """What the loss takes besides the outputs; a loss of the user's may write into it, and gets a copy."""
        given = batch.raw if self.loss.takes == "batch" else self.targets(batch)
        return given if self.loss.known else map_tensors(torch.clone, given)

    def loss_of(self, outputs: object, batch: Batch) -> Tensor:
        """The sum of the loss over the samples of a batch, given their outputs; each counts for its weight."""
        return self.loss.sum(outputs, self.second(batch), batch.size, batch.weights)

    def losses(self, params: Params, batch: Batch) -> Tensor:
        """The loss of every sample of a batch (n,), where the loss function gives one per sample."""
        if self.loss.reduction != "per_sample":
            raise NotApplicableError(
                f"the loss {self.loss.name!r} returns one number per batch; this needs one per sample "
                f"(landscope.Loss(function, reduction='per_sample'))"
            )
        return self.loss.function(self.outputs(params, batch), self.second(batch))

    def loss_sum(self, params: Params, batch: Batch) -> Tensor:
        """The sum of the loss over the samples of a batch, at the given parameters."""
        return self.loss_of(self.outputs(params, batch), batch)

    def value(self) -> float:
        """L, the mean loss over all samples. One forward pass."""
        with torch.no_grad():
            (total,) = self.total(
                lambda batch: (self.loss_sum(self._params, batch).double(),), load=0.25, passes=FORWARD, grad=False
            )
        return checks.check_finite_loss(total / self.n_samples)

    def gradient(self) -> Tensor:
        """∇L, the gradient of the mean loss, as a vector (P,). One forward and one backward pass."""

        def piece(batch: Batch) -> tuple[Tensor, ...]:
            leaves = {name: p.clone().requires_grad_() for name, p in self._params.items()}
            loss = self.loss_sum(leaves, batch)
            grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
            return self.space.flatten(dict(zip(leaves, grads, strict=True))), loss.detach().double()

        total, loss = self.total(piece, load=1.0)
        checks.check_finite_loss(loss / self.n_samples)
        return total / self.n_samples

    # The data

    def measuring(self, precision: Precision = "highest") -> AbstractContextManager[None]:
        """The context in which the model is evaluated: see `landscope.probe.conditions`."""
        return measuring(self.device, precision, self._recurrent, self.dtype)

    @property
    def holds_data(self) -> bool:
        """Whether the data is kept in memory, so that a further pass over it costs no reading."""
        return self._held is not None

    def batches(self) -> Iterator[Batch]:
        """The data of this process, as it is held or read."""
        if self._held is not None:
            yield from self._held
            return
        whole = (self.layout.batch(raw) for raw in self._data)
        yield from self._without_ignored(
            batch if self.mode == "eval" else Batch(batch.raw, batch.size, False) for batch in whole
        )

    def rows(self, numbers: Tensor) -> Batch:
        """These samples of held data, by their numbers (see `takes_rows`)."""
        assert self._held is not None
        return self._held[0].select(numbers)

    def ready(self, raw: object) -> object:
        """A batch as the data gave it, on the device and in the probe's precision."""

        def move(tensor: Tensor) -> Tensor:
            tensor = tensor.clone() if tensor.is_inference() else tensor.detach()  # autograd saves no inference tensors
            return tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)

        return map_tensors(move, raw)

    def total(
        self,
        function: PieceFunction,
        *,
        load: float,
        passes: float = 1.0,
        precision: Precision = "highest",
        grad: bool = True,
    ) -> tuple[Tensor, ...]:
        """Σ of `function` over the samples of all processes, in pieces that fit into memory.

        `load` says how many times the activations of one gradient the function holds at once, `passes` how many gradients
        it costs: that goes into the ledger, whose budget ends the work between two pieces.
        """
        parts = self.each(function, load=load, passes=passes, precision=precision, grad=grad)
        sums = added_up(part for _, part in parts)
        assert sums is not None, "every process holds samples: checked at construction"
        return tuple(sum_over_processes(part) for part in sums)

    def each(
        self,
        function: PieceFunction,
        *,
        load: float,
        passes: float = 1.0,
        precision: Precision = "highest",
        grad: bool = True,
        batches: Iterable[Batch] | None = None,
    ) -> Iterator[tuple[Batch, tuple[Tensor, ...]]]:
        """The pieces of the data (or of `batches`) one after the other, ready, with the value of `function` (see `total`)."""
        size = self._piece_sizes.get(load)
        if size is None:
            with self.measuring(precision):
                size = self._piece_sizes[load] = PieceSize(self._fitting(load))
        share = passes / max(self._local_samples, 1)

        def metered(batch: Batch) -> tuple[Tensor, ...]:
            self.ledger.check()
            with self.measuring(precision), torch.set_grad_enabled(grad), self.ledger.timed(self.device):
                part = function(batch)
            self.ledger.add(share * batch.size)
            return part

        given = self.batches() if batches is None else batches
        yield from in_pieces(given, metered, size, self.device, self.ready, lambda: self.ledger.samples_in_time(share))

    def _fitting(self, load: float) -> int:
        """How many samples fit."""
        sample = next(next(self.batches()).pieces(2))
        if not sample.divisible:
            return sample.size
        own = map_tensors(torch.clone, self.ready(sample.raw))  # a view would count the storage of all the data
        sample = Batch(own, sample.size, sample.divisible)
        others = [*self._model.parameters(), *self._model.buffers()]
        taken = bytes_of_gradient(lambda leaves: self.loss_sum(leaves, sample), self._params, others)
        return samples_that_fit(taken / sample.size, load, self.device)
