"""Batches: what goes into the model, what the outputs are compared with, and how a batch is cut into pieces.

A batch is a tuple (inputs …, targets …), a dict with a target under one of the usual keys, a bare tensor (for losses
that take the whole batch), or an object with the attribute `y` (a graph). The layout is worked out once, from the first
batch and the signature of the model's `forward`.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from landscope.core.errors import DataError, MissingTargetsError
from landscope.core.seeding import generator

TOKENS = 256
"""How many tokens of texts are looked at at once where a few samples are enough."""
TARGET_KEYS = ("labels", "label", "targets", "target", "y")


def as_tensors(raw: object) -> object:
    """NumPy arrays become tensors, any mapping a dict, any list a tuple; other things stay as they are."""
    if isinstance(raw, PackedSequence):
        return raw
    if isinstance(raw, np.ndarray) and raw.dtype != object:
        if raw.dtype.kind not in "biufc":
            raise DataError(
                f"a batch holds an array of {raw.dtype}; expected numbers. Map words to class indices first."
            )
        return torch.from_numpy(raw)
    if isinstance(raw, Mapping):
        return {str(key): as_tensors(value) for key, value in raw.items()}
    if isinstance(raw, tuple) and hasattr(raw, "_fields"):
        return tuple(as_tensors(value) for value in raw)
    if isinstance(raw, (tuple, list)):
        return tuple(as_tensors(value) for value in raw)
    return raw


def map_tensors(function: Callable[[Tensor], Tensor], raw: object) -> object:
    """The same structure with `function` applied to every tensor in it, graph objects included."""

    def leaf(value: object) -> object:
        if isinstance(value, Tensor):
            return function(value)
        if hasattr(value, "to_dict") and hasattr(value, "apply"):  # a torch_geometric graph
            return copy.copy(value).apply(function)
        return value

    return pytree.tree_map(leaf, raw)


def tensors_in(raw: object) -> list[Tensor]:
    """Every tensor of a batch, in a fixed order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(note, raw)
    return found


@dataclass(frozen=True)
class Batch:
    """Some samples: the batch as the data gave it (`raw`), and how many samples it holds."""

    raw: object
    size: int
    divisible: bool
    weights: Tensor | None = None
    """What each sample counts for (n,) where they are a sample of more; `None`: one each."""

    def prepared(self, prepare: Callable[[object], object]) -> Batch:
        """The same samples with their contents prepared: moved to a device, say, or cloned."""
        return Batch(prepare(self.raw), self.size, self.divisible, self.weights)

    def select(self, rows: Tensor, weights: Tensor | None = None) -> Batch:
        """These rows of a divisible batch, in this order."""
        return Batch(map_tensors(lambda t: t[rows.to(t.device)], self.raw), len(rows), True, weights)

    def pieces(self, size: int) -> Iterator[Batch]:
        """The batch in pieces of at most `size` samples; an indivisible batch is one piece."""
        if not self.divisible or size >= self.size:
            yield self
            return
        for start in range(0, self.size, size):
            yield self._part(start, min(start + size, self.size))

    def first(self, most: int) -> Batch:
        """The first `most` samples, fewer of long texts: as many as have `TOKENS` tokens, and at least two.

        >>> [Batch((torch.zeros(40, length).long(),), 40, True).first(32).size for length in (1, 64, 512)]
        [32, 4, 2]
        """
        lengths = [t[0].numel() for t in tensors_in(self.raw) if t.dim() > 1 and not t.is_floating_point() and len(t)]
        return next(self.pieces(max(2, min(most, TOKENS // max(lengths, default=1)))))

    def split(self, size: int) -> tuple[Batch, Batch]:
        """The first `size` samples of a divisible batch, and the others."""
        return self._part(0, size), self._part(size, self.size)

    def _part(self, start: int, stop: int) -> Batch:
        weights = None if self.weights is None else self.weights[start:stop]
        return Batch(map_tensors(lambda t: t[start:stop], self.raw), stop - start, True, weights)


@dataclass(frozen=True)
class Layout:
    """How the batches of one data set become arguments of the model and targets of the loss."""

    target_key: str | None
    input_keys: tuple[str, ...] | None
    by_position: bool
    unpack: bool
    inputs: int = 1
    """How many of a tuple's first parts go into the model; the rest are targets."""
    unused: tuple[str, ...] = ()
    """Keys that are neither arguments of the model nor targets: they are left out."""
    fed: str | None = None
    """The argument of the model that takes the targets, where it needs them: for a decoder's inputs, or a loss of its own."""

    @classmethod
    def of(cls, model: nn.Module, raw: object, keep_all: bool = False) -> Layout:
        """The layout of a first batch for a model; with `keep_all`, nothing of a batch is left out."""
        if isinstance(raw, dict):
            layout = cls._of_dict(model, raw)
            return replace(layout, unused=()) if keep_all else layout
        if isinstance(raw, tuple):
            if not raw:
                raise DataError("a batch is an empty tuple; expected (inputs, targets)")
            count = int(max(1, min(len(raw) - 1, _positional(model))))
            nested = count == 1 and isinstance(raw[0], tuple)
            return cls(None, None, True, nested and _positional(model) >= len(raw[0]), count)
        if not isinstance(raw, Tensor) and not tensors_in(raw):
            raise DataError(
                f"a batch is a {type(raw).__name__} without tensors; expected (inputs, targets) tuples or dicts of tensors"
            )
        return cls(None, None, True, False)

    @classmethod
    def _of_dict(cls, model: nn.Module, raw: Mapping[str, object]) -> Layout:
        target = next((key for key in TARGET_KEYS if key in raw), None)
        rest = [key for key, value in raw.items() if key != target]
        accepted, any_keyword = _keywords(model)
        named = tuple(key for key in rest if key in accepted or (any_keyword and isinstance(raw[key], Tensor)))
        tensors = tuple(key for key in rest if isinstance(raw[key], Tensor))
        inputs = named or tensors
        for key in (*inputs, *([target] if target else [])):
            _refuse_lists(key, raw[key])
        if named or len(tensors) == 1:
            unused = tuple(key for key in rest if key not in inputs)
            return cls(target, inputs, not named, False, unused=unused)
        texts = [key for key in rest if _holds(raw[key], str)]
        remedy = (
            f"Turn the texts in {', '.join(texts)} into tokens first: dict(tokenizer(texts, padding=True, return_tensors='pt'))."
            if texts
            else "Rename the keys, or yield (inputs, targets) tuples."
        )
        raise DataError(
            f"none of the batch's keys ({', '.join(raw)}) is an argument of {type(model).__name__}.forward "
            f"({', '.join(sorted(accepted)) or 'none'}). {remedy}"
        )

    def arguments(self, raw: object) -> tuple[tuple[object, ...], dict[str, object]]:
        """Positional and keyword arguments for the model."""
        fed = {self.fed: self.targets(raw)} if self.fed else {}
        if self.input_keys is not None and isinstance(raw, dict):
            values = {key: raw[key] for key in self.input_keys}
            return (tuple(values.values()), fed) if self.by_position else ((), values | fed)
        if isinstance(raw, tuple):
            return (raw[0] if self.unpack else raw[: self.inputs]), fed
        return (raw,), fed

    def notices(self) -> tuple[str, ...]:
        """What a reader of the numbers should know: parts of the batches that go nowhere."""
        what = ", ".join(self.unused)
        return (f"not arguments of the model, and left out of the batches: {what}",) if what else ()

    def described(self, raw: object) -> str:
        """The arguments of the model in words, for messages."""
        args, kwargs = self.arguments(raw)
        named = {**{f"argument {i}": value for i, value in enumerate(args, 1)}, **kwargs}
        shapes = {key: tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for key, v in named.items()}
        return ", ".join(f"{key} {shape}" for key, shape in shapes.items())

    def remark(self, raw: object) -> str:
        """For messages: which parts of a batch went into the model, where that is not only the first."""
        if not isinstance(raw, tuple) or self.inputs < 2:
            return ""
        return (
            f" The first {self.inputs} of the {len(raw)} parts of a batch went into the model, whose forward takes as many; "
            f"targets that belong together are one part: (x, (y1, y2))."
        )

    def targets(self, raw: object) -> object:
        """What the outputs are compared with; `None` where the batch holds nothing for that."""
        if isinstance(raw, dict):
            return raw.get(self.target_key) if self.target_key else None
        if isinstance(raw, tuple):
            targets = raw[self.inputs :]
            return targets[0] if len(targets) == 1 else targets or None
        return None if isinstance(raw, Tensor) else getattr(raw, "y", None)

    def with_targets(self, raw: object, targets: Tensor) -> object:
        """A batch with one tensor of targets in the place of its own."""
        if isinstance(raw, dict):
            return {**raw, self.target_key: targets}
        return (*raw[: self.inputs], targets) if isinstance(raw, tuple) else raw

    def batch(self, raw: object) -> Batch:
        """The batch with its size: the length of its targets, or of its first tensor."""
        if self.unused and isinstance(raw, dict):
            raw = {key: value for key, value in raw.items() if key not in self.unused}
        targets = self.targets(raw)
        if isinstance(targets, (int, float)) or (isinstance(targets, Tensor) and targets.dim() == 0):
            raise DataError(
                "the targets of a batch are a single number: this looks like a list of samples, not of batches. "
                "Wrap it: torch.utils.data.DataLoader(samples, batch_size=…)."
            )
        tensors = tensors_in(raw)
        if not tensors:
            held = ", ".join(sorted({type(leaf).__name__ for leaf in pytree.tree_leaves(raw)})) or "nothing"
            raise MissingTargetsError(
                f"a batch holds no tensors (found: {held}). Data is (inputs, targets), both tensors, or batches of such; "
                f"classes are the integers 0 … C−1"
            )
        lead = targets if isinstance(targets, Tensor) else tensors[0]
        if lead.dim() == 0:
            raise DataError("a batch holds single numbers where tensors with a first (sample) dimension are expected")
        size = int(lead.shape[0])
        plain = isinstance(raw, (Tensor, tuple, dict))
        others = all(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(raw))
        divisible = (
            plain and others and all(t.layout == torch.strided and t.dim() > 0 and t.shape[0] == size for t in tensors)
        )
        return Batch(raw, size, divisible)


def _positional(model: nn.Module) -> float:
    """How many positional arguments the model's forward takes."""
    kinds = [p.kind for p in inspect.signature(model.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return math.inf
    return sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)


def _keywords(model: nn.Module) -> tuple[set[str], bool]:
    """The names that the model's forward accepts, and whether it accepts any.

    Models of Hugging Face's take any name and hand it to their kernels: what they read is what they name. Adapters around one
    name less than it does.
    """
    theirs = hasattr(type(model), "base_model_prefix")
    forward = type(model).forward if theirs else model.forward
    parameters = inspect.signature(forward).parameters.values()
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} - {"self"}
    anything = not theirs and any(p.kind is p.VAR_KEYWORD for p in parameters)
    inner = getattr(model, "get_base_model", None)
    if anything and callable(inner):
        further, anything = _keywords(inner())
        names |= further
    return names, anything


def _holds(value: object, kinds: type | tuple[type, ...]) -> bool:
    """Whether something is a tuple that begins with something of a kind."""
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], kinds)


def _refuse_lists(key: str, value: object) -> None:
    """Numbers, or one tensor per position, where a tensor is expected: what rows of a raw data set become."""
    columns = _holds(value, Tensor) and all(
        isinstance(t, Tensor) and t.dim() == 1 and not t.is_floating_point()
        for t in value  # type: ignore[attr-defined]
    )
    if columns or _holds(value, (int, float, str, tuple)):
        raise DataError(
            f"{key!r} of a batch is a list, not a tensor: these look like the rows of a raw data set. Give it a format and one "
            f"length (dataset.with_format('torch') of datasets), or pad rows in a loader: torch.utils.data.DataLoader(dataset, "
            f"batch_size=…, collate_fn=transformers.DataCollatorWithPadding(tokenizer)); texts become tokens first."
        )


def join(batches: list[Batch]) -> Batch | None:
    """All batches as one, where every tensor has the same shape and type per sample; otherwise `None`."""
    if not batches or not all(b.divisible for b in batches):
        return None
    if len(batches) == 1:
        return batches[0]
    leaves = [pytree.tree_flatten(b.raw) for b in batches]
    first, spec = leaves[0]
    alike = all(
        s == spec and all(a.shape[1:] == b.shape[1:] and a.dtype == b.dtype for a, b in zip(x, first, strict=True))
        for x, s in leaves
    )
    if not alike:
        return None
    raw = pytree.tree_unflatten([torch.cat(column) for column in zip(*(x for x, _ in leaves), strict=True)], spec)
    return Batch(raw, sum(b.size for b in batches), True)


def with_non_finite_inputs(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The pieces whose inputs hold NaN or infinity: their loss is looked at before anything else."""
    for batch in batches:
        for piece in batch.pieces(1024):
            strided = [t for t in tensors_in(piece.raw) if t.layout == torch.strided]
            if any(not bool(torch.isfinite(t).all()) for t in strided if t.is_floating_point()):
                yield piece


# A few samples from all over the data, of as many labels as possible.
#
# Data often comes sorted by class: its first samples then do not show what a loss does with classes of different weight.


def diverse_sample(batches: Iterable[Batch], targets: Callable[[Batch], object], count: int) -> Batch | None:
    """At most `count` samples as one batch: one of each label first, then random ones. One pass over the data.

    Only samples of one shape go into a batch: the shape that most of them have. `None` where batches cannot be cut.

    >>> x = torch.arange(100)
    >>> found = diverse_sample([Batch((x, x // 99), 100, True)], lambda batch: batch.raw[1], 4)
    >>> found.size, sorted(found.raw[1].tolist())
    (4, [0, 0, 0, 1])
    """
    draw = generator(0, "spread")
    seen: set[int] = set()
    best: list[tuple[float, Batch]] = []
    for batch in batches:
        if not batch.divisible:
            return None
        rank = torch.rand(batch.size, generator=draw)
        rank[_first_of_new_labels(targets(batch), seen)] += 1
        highest = rank.topk(min(count, batch.size))
        for value, row in zip(highest.values.tolist(), highest.indices.tolist(), strict=True):
            if len(best) < count or value > best[-1][0]:
                best.append((value, _row(batch, row)))
        best = sorted(best, key=lambda ranked: ranked[0], reverse=True)[:count]
    alike: dict[object, list[Batch]] = {}
    for _, one in best:
        alike.setdefault(tuple((t.shape, t.dtype) for t in tensors_in(one.raw)), []).append(one)
    return join(max(alike.values(), key=len, default=[]))


def _first_of_new_labels(labels: object, seen: set[int]) -> list[int]:
    """The rows at which labels occur for the first time; they are `seen` from then on."""
    if not isinstance(labels, Tensor) or labels.dim() != 1 or labels.is_floating_point():
        return []
    values, place = labels.cpu().unique(return_inverse=True)
    first = torch.full((len(values),), len(place)).scatter_reduce(0, place, torch.arange(len(place)), "amin")
    new = [row for value, row in zip(values.tolist(), first.tolist(), strict=True) if value not in seen]
    seen.update(values.tolist())
    return new


def _row(batch: Batch, row: int) -> Batch:
    return Batch(map_tensors(lambda t: t[row : row + 1].clone(), batch.raw), 1, True)
