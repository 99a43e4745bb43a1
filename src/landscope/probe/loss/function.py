"""The function that everything is a derivative of: a private copy of a model and a loss, as functions of the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType

import torch
from torch import Tensor, nn

from landscope.core import display
from landscope.core.errors import LossError, NotApplicableError, UnknownNameError
from landscope.core.parameters import ParameterSpace, Vectors
from landscope.core.shared_state import Precision
from landscope.core.torch_fixes.put_in import functional_call
from landscope.probe.batches import Batch, Layout, map_tensors
from landscope.probe.conditions import measuring
from landscope.probe.loss.head import Head
from landscope.probe.loss.losses import Loss
from landscope.probe.loss.readings import Reading
from landscope.probe.loss.targets import IGNORED, kept_labels
from landscope.probe.loss.widening import transformed, widening

Params = Mapping[str, Tensor]


class LossFunction:
    """What a model returns for a batch, and what the loss makes of it, at any values of the measured parameters.

    The half of a `Probe` that knows no data: how a batch becomes arguments (`layout`), and what of the outputs the loss
    compares (`reading`).
    """

    device: torch.device
    dtype: torch.dtype
    """What everything is computed in."""
    stored: torch.dtype
    """What weights and vectors are held in: the same, or half precision (`landscope.probe.loss.widening`)."""
    temperature: float
    space: ParameterSpace
    vectors: Vectors
    loss: Loss
    layout: Layout
    reading: Reading
    head: Head | None = None
    """The last layer, where its outputs are too many to be held along with the loss."""
    _model: nn.Module
    _params: dict[str, Tensor]
    _recurrent: bool
    _allowed: tuple[int, int] | None

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
        """P, the number of measured parameters, wherever they lie."""
        return self.vectors.size

    def vector(self) -> Tensor:
        """θ as one vector (P,)."""
        return self.space.flatten(self._params)

    def layers(self) -> dict[str, tuple[str, ...]]:
        """The measured parameters by the layer that holds them."""
        out: dict[str, tuple[str, ...]] = {}
        for name in self.space.names:
            layer = name.rpartition(".")[0]
            out[layer] = (*out.get(layer, ()), name)
        return out

    def _repr_html_(self) -> str:
        sizes = {layer: sum(self._params[name].numel() for name in names) for layer, names in self.layers().items()}
        return display.table(
            ["layer", "parameters"], [(layer, f"{size:,}") for layer, size in sizes.items()], repr(self)
        )

    def call(self, params: Params, batch: Batch) -> object:
        """What the model returns at the given parameters; it may write into its inputs, which are copies."""
        args, kwargs = self.layout.arguments(batch.raw)
        return self.run(params, *map_tensors(torch.clone, (args, kwargs)))  # type: ignore[misc]

    def run(self, params: Params, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """What the model returns for arguments at the given parameters."""
        with widening() if self.narrow else nullcontext():
            return functional_call(self._model, params, args, kwargs)

    @property
    def narrow(self) -> bool:
        """Whether weights and vectors are held in half precision."""
        return self.stored != self.dtype

    def outputs(self, params: Params, batch: Batch) -> object:
        """What the loss compares with the targets: the model's outputs at the given parameters, over the temperature."""
        return self.compared(self.call(params, batch))

    def compared(self, outputs: object) -> object:
        """What the loss compares with the targets, of what the model returned."""
        if self.loss.structured and not isinstance(outputs, Tensor):
            if self.temperature != 1.0:
                raise LossError("a temperature needs a model that returns one tensor; wrap the model so that it does")
            return outputs
        tensor = self.reading.predictions(outputs)
        if self.loss.known and tensor.dtype == torch.float32:
            tensor = tensor.to(self.dtype)  # some models return float32 whatever their weights are in
        return tensor if self.temperature == 1.0 else tensor / self.temperature

    def targets(self, batch: Batch) -> object:
        """What the outputs for a batch are compared with; a label to ignore is −100, whatever the loss calls it."""
        targets = self.reading.labels(self.layout.targets(batch.raw), batch.raw)
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

    def shares(self, batch: Batch) -> Tensor:
        """What each sample of a batch counts for in the loss (n,), in float64: 1 on average over all data.

        Where labels are pooled, a mean over samples of s_i q_i is Σ m_i q_i / Σ m_i: with other samples both sums would be
        others, so that its error over the data is that of s_i (q_i − mean).
        """
        if self.loss.share is None:
            return torch.ones(batch.size, dtype=torch.float64, device=self.device)
        return self.loss.share(self.targets(batch)).to(self.device, torch.float64)

    def losses(self, params: Params, batch: Batch) -> Tensor:
        """The loss of every sample of a batch (n,), where the loss function gives one per sample."""
        if self.loss.reduction != "per_sample":
            if self.loss.unexplained:
                raise NotApplicableError(f"one loss per sample is needed; {self.loss.unexplained}")
            raise NotApplicableError(
                f"the loss {self.loss.name!r} returns one number per batch; this needs one per sample "
                f"(landscope.Loss(function, reduction='per_sample'))"
            )
        return self.loss.function(self.outputs(params, batch), self.second(batch))

    def loss_sum(self, params: Params, batch: Batch) -> Tensor:
        """The sum of the loss over the samples of a batch, at the given parameters."""
        if self.head is not None and self.temperature == 1.0 and not transformed() and self.head.is_bare(self._model):
            return self.head.loss_sum(self, params, batch)
        return self.loss_of(self.outputs(params, batch), batch)

    def measuring(self, precision: Precision = "highest") -> AbstractContextManager[None]:
        """The context in which the model is evaluated: see `landscope.probe.conditions`."""
        return measuring(self.device, precision, self._recurrent, self.dtype, self._allowed)

    def ready(self, raw: object) -> object:
        """A batch as the data gave it, on the device and in the probe's precision."""

        def move(tensor: Tensor) -> Tensor:
            tensor = tensor.clone() if tensor.is_inference() else tensor.detach()  # autograd saves no inference tensors
            return tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)

        return map_tensors(move, raw)
