"""A frozen point to measure at: the function, its parameters as values, the loss, the data and the mode."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Literal
from weakref import WeakSet

import torch
from torch import Tensor, nn

from landscope.core.distributed import processes, raise_together, sum_over_processes
from landscope.core.errors import EmptyDataError
from landscope.core.memory import allowance
from landscope.core.parameters import ParameterSpace, Selection, Vectors, select_parameters
from landscope.probe import checks
from landscope.probe.batches import Batch, Layout, diverse_sample, with_non_finite_inputs
from landscope.probe.conditions import measuring, usable_device
from landscope.probe.copying import copied_with
from landscope.probe.frozen import (
    Mode,
    frozen_copy,
    is_recurrent,
    stays_narrow,
    unset_statistics,
    unwrap,
    working_dtype,
)
from landscope.probe.guards import guarded
from landscope.probe.loss.criteria import LossLike, resolve_loss
from landscope.probe.loss.head import find_head
from landscope.probe.loss.losses import Loss
from landscope.probe.loss.own import recognised
from landscope.probe.loss.readings import Reading
from landscope.probe.loss.settling import counted_labels, leave_out_ignored, settled
from landscope.probe.reading import DataLike, FixedData, held, read
from landscope.probe.rows.sums import Sums
from landscope.probe.sharding.in_step import alone, of_every_process
from landscope.probe.sharding.parts import Sharding, sharding_of
from landscope.probe.totals import Ledger, PieceSize

Per = Literal["token", "sequence"]
Effort = Literal["auto", "highest"]

CHECKED_SAMPLES = 32
"""How many samples the checks at construction evaluate at once: the first ones, and some from all over the data."""
FEW_SAMPLES = 4
"""How many samples derivatives are checked on."""
LARGE = 2**20
"""Parameters from which on fewer samples are checked, so that their number times that of the parameters stays the same."""


class Probe(Sums):
    """A model at its present parameters, with the data and the loss at which it is measured.

    The model is copied once and never touched: parameters, buffers, mode, hooks, gradients and random state stay as they
    are, whatever is measured and whatever fails. What would make numbers meaningless is refused here.

    Args:
        model: any `nn.Module`; half-precision weights are measured in float32. Those in bfloat16 stay so where float32 copies do
            not fit into memory, or with `dtype=torch.bfloat16`: all that is rounded then is vectors.
        data: a DataLoader, a Dataset, (x, y) tensors, or any re-iterable of batches (tuples or dicts).
        loss: `"model"`: the labels go into the model, and the loss is what it returns (`docs/transformers.md`); that is the
            default where a model computes one, and cross-entropy elsewhere. A name (`cross_entropy`, `mse`,
            `binary_cross_entropy`, `exponential`), a `landscope.Loss`, a `torch.nn` criterion, or a function of (outputs,
            targets), or of (outputs, batch) if its second parameter has that name.
        params: which parameters: all that require a gradient, or names, layers, patterns, modules.
        mode: `"eval"`, or `"batch_statistics"`: BatchNorm on the statistics of each batch, dropout off. Then the batches
            are part of the definition and are taken as they come.
        per: where samples are sequences with a label for each token, `"token"` is one mean over all tokens, the loss that is
            trained with (default); `"sequence"` the mean over sequences of their means.
        temperature: outputs are divided by it.
        batch_size: samples per batch for tensors and Datasets; memory is bounded without it.
        device, dtype: where and in which precision to measure; default: as the model is.
        precision: `"auto"` finds eigenvectors with TF32 products on GPUs and certifies them in float32; `"highest"` does not.
        max_bytes: memory that work at this point takes at most where it can choose; by default what is free.
        seed: for what is random later on.

    >>> probe = Probe(nn.Linear(2, 3), (torch.randn(10, 2), torch.arange(10) % 3))
    >>> probe
    Probe(Linear, 9 parameters, 10 samples, cross_entropy, eval, float32 on cpu)
    """

    def __init__(  # noqa: PLR0913 (options of a public function, by keyword)
        self,
        model: nn.Module,
        data: DataLike,
        loss: LossLike = None,
        *,
        params: Selection = None,
        mode: Mode = "eval",
        per: Per | None = None,
        temperature: float = 1.0,
        batch_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        precision: Effort = "auto",
        max_bytes: float | None = None,
        seed: int = 0,
    ) -> None:
        checks.check_options(model, mode, temperature, dtype, per, precision)
        inner = unwrap(model)
        devices = list(dict.fromkeys(p.device for p in inner.parameters()))
        self.device = usable_device(device) if device else next(iter(devices), torch.device("cpu"))
        kept = None if device is None and len(devices) > 1 else self.device  # what lies on several devices stays there
        self.mode: Mode = mode
        self.temperature, self.seed = float(temperature), int(seed)
        self.precision: Effort = precision
        self._allowed = allowance(max_bytes, self.device)
        self.ledger = Ledger()
        self.results: dict[Hashable, object] = {}
        """What was computed at this point already; it stays true, and lives as long as the probe."""
        self.alike = WeakSet((self,))
        """The probes that differ from this one in temperature at most, itself among them."""
        self.notices: tuple[str, ...] = ()
        """What a reader of the numbers should know about this point."""
        self._shown: tuple[Batch, ...] = ()
        """While a sharded model is looked at: rows that all processes look at."""
        self.sharding: Sharding | None = None
        """How the parameters are shared out over processes; `None` where each has all of them."""
        error: Exception | None = None
        try:
            self.sharding = sharding_of(inner)
            with alone(lambda: self.sharding is not None):
                checks.refuse_unmeasurable(inner, params)
            with measuring(self.device, dtype=working_dtype(inner, dtype), allowed=self._allowed):
                with alone(lambda: self.sharding is not None):
                    self.loss = resolve_loss(loss)
                    narrow = self.sharding is None and stays_narrow(inner, dtype, self.device)
                    self._model, function = frozen_copy(
                        inner, mode, dtype, kept, self.loss.function, self.sharding, narrow
                    )
                    self.loss = replace(self.loss, function=function)
                    self._recurrent = is_recurrent(inner)
                    self._measure(select_parameters(inner, params))
                    self._whole = mode == "batch_statistics"
                    self._read(read(data, batch_size), batch_size)
                self._show()
                self._recognise_loss(loss, batch_size)
                self.notices = (*guarded(self, inner, self._settle_loss), *self._known_notices())
                self._shown = ()
                counted = counted_labels(self)
                self._local_samples = int(counted[0])
                if self.sharding is not None and not self._local_samples:
                    raise EmptyDataError(
                        "this process has no samples whose labels count; each needs some of a sharded model's"
                    )
        except Exception as caught:
            error = caught
        raise_together(error, lost=self.sharding is not None)
        samples, labels, squares, tokens = sum_over_processes(counted.to(self.device)).tolist()
        self.n_samples, self.n_tokens = int(samples), int(tokens) or None
        self.per: Per | None = per or "token" if tokens else None
        """What has the same weight in the loss where samples are sequences of tokens."""
        uneven = samples * squares - labels**2 > 1e-12 * labels**2  # samples hold different numbers of labels
        if uneven and self.per == "sequence":
            checks.check_loss_of_sequences(self.loss)
        elif uneven or self.loss.reduction == "label_mean":
            self.loss = self.loss.pooled(self.n_samples, labels)
        self.head = find_head(self) if self.sharding is None else None  # whose weights would be gathered as a whole

    def _show(self) -> None:
        """Some rows of every process for all of them: whatever is decided about a sharded model, they decide together."""
        if self.sharding is None:
            return
        own = diverse_sample(self.batches(), lambda batch: self.layout.targets(batch.raw), CHECKED_SAMPLES)
        self._shown = of_every_process(own or next(self.batches()))
        self._take_few()

    def _measure(self, names: tuple[str, ...]) -> None:
        held = dict(self._model.named_parameters())
        self._params = {name: held[name].detach() for name in names}
        devices = tuple(p.device for p in self._params.values())
        spread = devices if len({*devices, self.device}) > 1 else ()
        self.space = ParameterSpace(names, tuple(p.shape for p in self._params.values()), spread)
        self.vectors = Vectors(self.space.size) if self.sharding is None else self.sharding.vectors(self.space)
        self.stored = next(iter(self._params.values())).dtype
        self.dtype = torch.promote_types(self.stored, torch.float32)
        self._piece_sizes: dict[float, PieceSize] = {}
        self._bytes_each: list[float] = []  # one number, once it is known

    def _read(self, data: FixedData, batch_size: int | None) -> None:
        if self._whole:
            checks.check_batches_are_fixed(data, batch_size)
        self._data = data
        self.layout = Layout.of(self._model, next(iter(data)), keep_all=self.loss.takes == "batch")
        self.reading = Reading()
        self._held: tuple[Batch, ...] | None = None
        if data.kept is not None:
            batches = (self.layout.batch(raw) for raw in data.kept)
            self._held = held(batches, not self._whole, self.device, self.ready)
        self._take_few()

    def _recognise_loss(self, asked: LossLike, batch_size: int | None) -> None:
        """Find out what the loss is where it is the model's own, and where the labels go."""
        with self.measuring():
            found = recognised(self, asked)
        if found.whole and not self._whole:
            self._whole = True
            self._read(self._data, batch_size)
        self.loss, self.layout, self.reading = found.loss, found.layout, found.reading

    def _known_notices(self) -> Iterator[str]:
        yield from self.layout.notices()
        if self.narrow:
            yield (
                "weights and vectors stay in bfloat16, and everything is computed in float32: the point is the model's own, and "
                "the rounding of vectors is in every error bar (dtype=torch.float32 makes copies in float32)"
            )
        yield from self._data.notices()
        yield from self.loss.notices()
        yield from unset_statistics(self._model)
        if self._whole and self.mode == "eval":
            yield "the model's loss depends on which samples share a batch: your batches are part of what is measured"

    def _settle_loss(self) -> None:
        """Refuse what cannot be measured, and find out how the loss is reduced."""
        with self.measuring(), torch.no_grad():
            self.loss = settled(self, max(2, CHECKED_SAMPLES * LARGE // max(LARGE, self.n_params)))
            for piece in with_non_finite_inputs(self._shown or self._held or ()):
                found = self.loss_sum(self._params, Batch(self.ready(piece.raw), piece.size, piece.divisible))
                checks.check_finite_loss(found, "of samples with non-finite inputs")
        if self._held is not None:
            self._held = tuple(self._without_ignored(self._held))
        self._shown = tuple(self._without_ignored(self._shown))
        self._take_few()

    def _take_few(self) -> None:
        few = next(self.batches()).first(FEW_SAMPLES if self.n_params <= LARGE else 2)
        self.few = Batch(self.ready(few.raw), few.size, few.divisible)
        """The first rows, ready; all of a batch that cannot be cut."""

    def _without_ignored(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches without samples all of whose labels are ignored."""
        for batch in batches:
            kept = leave_out_ignored(batch, self.targets(batch)) if self.loss.ignores else batch
            if kept is not None:
                yield kept

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

    def with_data(self, data: DataLike) -> Probe:
        """The same model and loss on other data, read and checked as at construction; it shares the ledger."""
        other = Probe(
            self._model,
            data,
            self.loss,
            params=self.space.names,
            mode=self.mode,
            temperature=self.temperature,
            device=self.device,
            dtype=self.stored,
            seed=self.seed,
        )
        other.ledger = self.ledger
        return other

    def with_loss(self, loss: Loss) -> Probe:
        """The same model and data with another loss, whose reduction must be declared."""
        twin = self._twin()
        twin.loss, twin.head = loss, None
        return twin

    def reading_as(self, loss: Loss, layout: Layout, reading: Reading) -> Probe:
        """The same model and data with another loss, for which batches and outputs are read in another way."""
        twin = self.with_loss(loss)
        twin.layout, twin.reading = layout, reading
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
        """The same point on one batch, for checks: a copy in float64, or as it is; with a ledger of its own."""
        twin = self._copied_twin() if dtype == torch.float64 else self._twin()
        if dtype == torch.float64:
            twin._model.double()
        twin._measure(self.space.names)
        twin.few = Batch(twin.ready(batch.raw), batch.size, batch.divisible)
        twin._held, twin._shown = (twin.few,), ()
        twin._local_samples = twin.n_samples = batch.size
        twin.ledger = Ledger()
        return twin

    @property
    def amount(self) -> str:
        """How much data there is, in words: samples, or sequences and the tokens of theirs that count."""
        if self.n_tokens is None:
            return f"{self.n_samples:,} samples"
        return f"{self.n_samples:,} sequences, {self.n_tokens:,} tokens"

    def __repr__(self) -> str:
        kind = str(self.stored).removeprefix("torch.")
        return (
            f"Probe({type(self._model).__name__}, {self.n_params:,} parameters, {self.amount}, "
            f"{self.loss.name}, {self.mode}, {kind} on {self.device})"
        )

    @property
    def holds_data(self) -> bool:
        """Whether the data is kept in memory, so that a further pass over it costs no reading."""
        return self._held is not None

    def batches(self) -> Iterator[Batch]:
        """The data of this process, as it is held or read."""
        if self._shown or self._held is not None:
            yield from self._shown or self._held or ()
            return
        whole = (self.layout.batch(raw) for raw in self._data)
        yield from self._without_ignored(
            Batch(batch.raw, batch.size, False) if self._whole else batch for batch in whole
        )

    def rows(self, numbers: Tensor) -> Batch:
        """These samples of held data, by their numbers (see `takes_rows`)."""
        assert self._held is not None
        return self._held[0].select(numbers)
