"""FAM: relative flatness aware minimisation (Adilova et al. 2023), L + λ κ of one layer, for any loss and any training loop.

    κ = Σ_{s,s'} ⟨w_s, w_s'⟩ tr H_{s,s'}        neuronwise        κ = ‖W‖² tr H        layerwise

A hook on the layer sees the user's own forward pass; when the loss is there, only what lies between the layer and the loss
is differentiated twice (`curvature.layer`). The sum is differentiated as a whole: third derivatives, the features that the front
of the network makes, and the weight. (The code of the paper held the Hessian constant: `gradient="weights_only"`.)

On a small convolutional network (a layer of 64 units, batch 64, CPU) one step took 1.13 times a plain one with the exact value
(1.5 with tanh behind the layer instead of ReLU) and 1.05 to 1.08 times with one probe, where two gradients, as SAM takes them,
took 2.0 (`benchmarks/fam.py`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from landscope.core.distributed import processes
from landscope.core.errors import DifferentiationError, NotApplicableError, OperandError
from landscope.core.seeding import generator, rademacher
from landscope.core.torch_fixes.convolutions import plain_derivatives
from landscope.curvature.layer.behind import Behind, behind, pulled_back, samples_mix
from landscope.curvature.layer.forms import (
    directions,
    exact_flatness,
    factor_of,
    has_separate_samples,
    sampled_flatness,
    sign_shapes,
)
from landscope.curvature.layer.geometry import Linear, as_matrix, is_faithful, nearly_equal
from landscope.probe.frozen import unwrap
from landscope.training.objectives.recording import (
    RecordedCall,
    Recorder,
    between,
    find_layer,
    is_straight,
    normalises_batches,
)

# Whether the formulas of `curvature.layer.forms` hold for a layer as a network uses it, checked on the first batch.
#
# They look at the layer's input and output only: the output must be W φ + b. Where the loss sees the weight in another way, too
# (it is an embedding as well, or has a penalty), κ is of the layer as it is called, as in `relative_flatness`; a warning says so.


APART = 0.02
"""Relative difference of two ways to compute the same; TF32 and half precision stay below."""


def check_loss(loss: Tensor) -> None:
    """A loss is one number with a graph."""
    if loss.numel() != 1:
        raise OperandError(
            f"FAM expects the loss as one number, a mean over the batch; this one has shape {tuple(loss.shape)}. Leave out "
            f"`reduction='none'`, or take the mean first."
        )
    if not loss.requires_grad or not torch.is_grad_enabled():
        raise OperandError(
            "FAM expects a loss with its graph; this one has none. Was the forward pass, or this call, inside `torch.no_grad()`? "
            "Evaluate with the plain loss."
        )


def check_call(call: RecordedCall, at: Behind, loss: Tensor, name: str) -> None:
    """Refuse a layer that does something other than its type says; say so where its weight is used elsewhere, too."""
    batched = 2 if isinstance(call.layer, Linear) else call.weight.dim()
    if call.inputs.dim() < batched:
        raise NotApplicableError(f"FAM expects a batch; {name!r} was called with {tuple(call.inputs.shape)}")
    if not is_faithful(call.layer, call.inputs, call.outputs, atol=APART, rtol=0.0):
        raise NotApplicableError(
            f"the output of {name!r} is not its weight times its input plus its bias: another hook, a subclass or a random "
            f"parametrisation (spectral norm) changes it. Choose another layer."
        )
    if call.outputs.dtype != at.dtype or not (call.weight.is_leaf and call.weight.requires_grad):
        return  # half precision has too few digits to decide; a computed weight is a new tensor each time
    weight = call.matrix.detach().to(at.dtype).requires_grad_()
    plain = call.geometry.apply(weight, call.inputs.detach().to(at.dtype))
    (through,) = torch.autograd.grad(plain, weight, at.slope.detach())
    (whole,) = torch.autograd.grad(loss, call.weight, retain_graph=True)
    if not nearly_equal(as_matrix(call.layer, whole), through, APART, 0.0):
        warnings.warn(
            f"the loss depends on the weight of {name!r} in another way than through the layer's output (a tied weight, or a "
            f"penalty on it): κ is that of its use in this layer, the others held constant, as `relative_flatness` measures it",
            stacklevel=6,
        )


# Relative flatness through the outputs of a network that is piecewise linear behind the layer.
#
# There the outputs z carry all curvature, ∂²L/∂a_i² = J_iᵀ Λ_i J_i with Λ_i = ∂²L/∂z_i² and J_i = ∂z_i/∂a_i, so that
#
#     κ = Σ_i Σ_{c,c'} Λ_i^{cc'} Σ_{s,t} G_i^{st} ⟨J_ics, W Wᵀ J_ic't⟩,        G_i^{st} = ⟨u_is, u_it⟩
#
# takes C pulled-back outputs, however wide the layer and however many its positions: 10 instead of 64 products for a layer of
# 64 units under ten classes. Exact, and so is its gradient.


def has_straight_outputs(loss: Tensor, call: RecordedCall, fewer_than: int) -> bool:
    """Whether the model's output is known and small, piecewise linear in the layer's, and all that the loss sees of that."""
    a, z = call.outputs, call.results
    return (
        z is not None
        and z.requires_grad
        and z.grad_fn is call.made_by  # else the loss has worked on it in place
        and z.dim() > 1
        and z.shape[0] == a.shape[0]
        and z[0].numel() < fewer_than
        and z.dtype == a.dtype == torch.promote_types(a.dtype, torch.float32)
        and bool(between(z, a))
        and not between(loss, a, without=z)
        and is_straight(z, a)
    )


def flatness_through_outputs(loss: Tensor, call: RecordedCall, factor: Tensor, differentiable: bool) -> Tensor:
    """κ, where `has_straight_outputs` and samples do not mix."""
    a, z = call.outputs, call.results
    assert z is not None
    n, classes, places, d = len(z), z[0].numel(), call.positions, len(factor)
    units = torch.eye(classes, dtype=z.dtype, device=z.device)
    seeds = units.view(classes, 1, *z.shape[1:]).expand(classes, *z.shape)
    curvature = behind(loss, z, differentiable).products(seeds).reshape(classes, n, classes).transpose(0, 1)
    pulled = pulled_back(z, a, seeds, differentiable)
    jacobian = (
        pulled.reshape(classes, n, places, d)
        if isinstance(call.layer, Linear)
        else pulled.reshape(classes, n, d, places).mT
    ).transpose(0, 1)
    patches = call.geometry.patches(call.inputs)[:, 0]
    left = (jacobian @ (factor @ factor.T)).flatten(2)
    right = ((patches.mT @ patches)[:, None] @ jacobian).flatten(2)
    return (curvature * (left @ right.mT)).sum()


Form = Literal["neuronwise", "layerwise", "unsquared"]


class FAM:
    """Adds λ κ of one layer to a loss, with its whole gradient.

    Args:
        model: the network that is trained; also wrapped in `DistributedDataParallel`.
        layer: the name of a linear or convolutional layer; default: the last linear one of `model.named_modules()`.
        strength: λ; an attribute that may be changed between steps, also a tensor of one number. 0 returns the loss untouched;
            below 0 κ is rewarded.
        form: `"neuronwise"`, the published measure; `"layerwise"`, ‖W‖² tr H; `"unsquared"`, ‖W‖ tr H, as in the paper's code.
        probes: `None` for the exact value: C products where the network is piecewise linear from the layer to its C outputs,
            else d for a layer of d units, times positions for sequences and convolutions. A number for an unbiased estimate
            from this many random products per batch.
        seed: of the random signs; each step and each process draws its own, and `state_dict` says how far it has come.
        gradient: `"whole"`, or `"weights_only"`: second derivatives and features held constant, as the paper's code did.
        max_directions: products at most for the exact value; memory grows with them.

    `loss` is any scalar that can be differentiated three times; κ is that of its own Hessian. Of a tied weight it is that of the
    use in this layer, as in `relative_flatness`; a warning says so. Samples that mix behind
    the layer (BatchNorm in training, contrastive losses) are detected on the first call, and again when a module changes
    between `train()` and `eval()`; κ then takes d·m products, or probes. κ is never negative for a classifier under cross-entropy
    or where the network behind the layer is piecewise linear and the loss convex; elsewhere it can be, without bound, and a
    large `strength` then runs away: watch `value`. κ also grows with the inputs of the layer: with 512 of them and a
    rate of 0.03, λ = 0.1 threw ResNet-18 back to chance for ten epochs (one run), or to NaN in the first (two); the paper's code
    divides by them.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> x, y = torch.randn(32, 4), torch.arange(32) % 3
    >>> with FAM(net, layer="2", strength=0.1) as fam:
    ...     loss = nn.functional.cross_entropy(net(x), y)
    ...     total = fam(loss)
    >>> bool(torch.isclose(total, loss + 0.1 * fam.value))
    True
    """

    def __init__(
        self,
        model: nn.Module,
        layer: str | None = None,
        *,
        strength: float = 0.1,
        form: Form = "neuronwise",
        probes: int | None = None,
        seed: int = 0,
        gradient: Literal["whole", "weights_only"] = "whole",
        max_directions: int = 1024,
    ) -> None:
        if form not in get_args(Form):
            raise ValueError(f"form must be 'neuronwise', 'layerwise' or 'unsquared', got {form!r}")
        if gradient not in ("whole", "weights_only"):
            raise ValueError(f"gradient must be 'whole' or 'weights_only', got {gradient!r}")
        if not math.isfinite(strength):
            raise ValueError(f"strength is a factor of κ and must be finite, got {strength}")
        if probes is not None and probes < 1:
            raise ValueError(f"probes must be None (exact) or at least 1, got {probes}")
        self.strength: float | Tensor = strength
        self.form, self.probes, self.gradient = form, probes, gradient
        self.max_directions = max_directions
        self.value: Tensor | None = None
        """κ of the last batch, detached."""
        own = unwrap(model)
        self.layer, module = find_layer(own, layer)
        self._modules = list(own.modules())
        self._mixed: dict[tuple[bool, ...], bool] = {}
        self._seed, self._draws = seed, 0
        self._recorded_signs: list[list[Tensor]] = []
        self._recorder = Recorder()
        self._handles = [module.register_forward_hook(self._recorder.after_layer, with_kwargs=True)]
        if module is not own:
            self._handles.append(own.register_forward_hook(self._recorder.after_model))

    def __call__(self, loss: Tensor) -> Tensor:
        """`loss` + λ κ; call it once for each forward pass, before `backward()`."""
        if not isinstance(self.strength, Tensor) and self.strength == 0:
            self._recorder.taken()
            return loss
        return loss + self.penalty(loss)

    def penalty(self, loss: Tensor) -> Tensor:
        """λ κ alone: for penalties on several layers of one loss."""
        check_loss(loss)
        with torch.autocast(loss.device.type, enabled=False):
            try:
                kappa = self._flatness(loss)
            except DifferentiationError as error:
                raise DifferentiationError(
                    f"{error}. FAM expects the loss before `backward()`, and a model that is not compiled: leave out "
                    f"`torch.compile`. Where attention or recurrent layers follow the layer, run the forward pass inside "
                    f"`with fam.ready():`."
                ) from error
        self.value = kappa.detach()
        return self.strength * kappa

    def _flatness(self, loss: Tensor) -> Tensor:
        call = self._call(loss)
        mixed = self._samples_mix(loss, call)
        factor = factor_of(call.matrix, self.form != "neuronwise")
        if self.form == "unsquared":
            factor = factor / torch.linalg.matrix_norm(call.matrix.to(factor.dtype)).sqrt()  # F Fᵀ = ‖W‖ I
        return (self._exact if self.probes is None else self._sampled)(loss, call, factor, mixed)

    def _call(self, loss: Tensor) -> RecordedCall:
        """The one call of the layer that the loss depends on."""
        calls = self._recorder.taken()
        used = [call for call in calls if between(loss, call.outputs)]
        if len(used) > 1:
            raise NotApplicableError(
                f"the loss depends on several calls of {self.layer!r}: a layer that runs more than once in a forward pass, or "
                f"two forward passes in one loss. FAM is defined for a layer that runs once; choose another layer."
            )
        if not used:
            seen = "another forward pass ran last" if calls else "it has not run with gradients since the last call"
            raise OperandError(
                f"the loss does not depend on the output of {self.layer!r} as last seen: {seen}. Call `fam(loss)` once for each "
                f"forward pass of the model, right after it; choose another layer if the model uses its weight without "
                f"calling it."
            )
        if used[0].inputs._version != used[0].version:
            raise NotApplicableError(
                f"the input of {self.layer!r} was changed in place after the layer had used it. Leave out `inplace=True` there."
            )
        return used[0] if self._whole else replace(used[0], inputs=used[0].inputs.detach())

    @property
    def _whole(self) -> bool:
        return self.gradient == "whole"

    def _samples_mix(self, loss: Tensor, call: RecordedCall) -> bool:
        """Whether samples act on each other behind the layer; tested once for each state of `train()` and `eval()`."""
        key = tuple(module.training for module in self._modules)
        if key not in self._mixed and bool(loss.isfinite()):
            at = behind(loss, call.outputs, differentiable=False)
            check_call(call, at, loss, self.layer)
            mixed = samples_mix(at)
            if mixed is not None:
                self._mixed[key] = mixed
        return self._mixed.get(key, False) or normalises_batches(loss, call.outputs)

    def _exact(self, loss: Tensor, call: RecordedCall, factor: Tensor, mixed: bool) -> Tensor:
        count = directions(call.geometry, factor, call.positions, mixed)
        separate = has_separate_samples(call.geometry, call.positions, mixed)
        if separate and has_straight_outputs(loss, call, fewer_than=count):
            return flatness_through_outputs(loss, call, factor, self._whole)
        if count > self.max_directions:
            why = " (samples act on each other behind it: BatchNorm in training, or such a loss)" if mixed else ""
            raise NotApplicableError(
                f"the exact relative flatness of {self.layer!r} takes {count} products{why}, max_directions allows "
                f"{self.max_directions}. Set `probes=1`, which is unbiased, or raise max_directions."
            )
        return exact_flatness(behind(loss, call.outputs, self._whole), call, factor, mixed)

    def _sampled(self, loss: Tensor, call: RecordedCall, factor: Tensor, mixed: bool) -> Tensor:
        at = behind(loss, call.outputs, self._whole)
        shapes = [(self.probes or 1, *shape) for shape in sign_shapes(call, factor, mixed)]
        signs = [torch.empty(shape, dtype=factor.dtype, device=factor.device) for shape in shapes]
        if factor.is_cuda and torch.cuda.is_current_stream_capturing():
            self._recorded_signs.append(signs)  # nothing is computed now, and `redraw` fills them before each replay
        else:
            self._draw(signs)
        return sampled_flatness(at, call, factor, signs)

    def _draw(self, signs: list[Tensor]) -> None:
        """The next draw, into tensors that are there."""
        rng = generator(self._seed, "fam", self._draws, dist.get_rank() if processes() > 1 else 0)
        self._draws += 1
        for own in signs:
            own.copy_(rademacher(tuple(own.shape), rng, own.dtype, own.device))

    def redraw(self) -> None:
        """New signs for a step that was recorded as a CUDA graph; to be called before each replay.

        They are those that the step would draw if it ran as it is.
        """
        for signs in self._recorded_signs:
            self._draw(signs)

    def state_dict(self) -> dict[str, int]:
        """What a resumed training needs to draw the same signs; the model's own state is not here."""
        return {"seed": self._seed, "draws": self._draws}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from where `state_dict` was taken."""
        if set(state) != {"seed", "draws"}:
            raise OperandError(f"the state of a FAM has the keys seed and draws, got {', '.join(state) or 'none'}")
        self._seed, self._draws = state["seed"], state["draws"]

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Run forward passes in here if attention, or recurrent layers on CUDA, follow the layer; convolutions gain by it.

        The fused kernels of attention have no second derivatives; slower ones take their place. Convolutions get those of
        `convolutions`, where `probes` are asked for.

        >>> layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        >>> fam = FAM(layer, layer="linear1")
        >>> with fam.ready():
        ...     out = layer(torch.randn(2, 3, 4))
        """
        cudnn = torch.backends.cudnn
        before = cudnn.enabled
        try:
            if any(isinstance(module, nn.RNNBase) for module in self._modules):
                cudnn.enabled = False
            with sdpa_kernel(SDPBackend.MATH), plain_derivatives() if self.probes else nullcontext():
                yield
        finally:
            cudnn.enabled = before

    def remove(self) -> None:
        """Take the hook off the model; losses cannot be passed in any more."""
        for handle in self._handles:
            handle.remove()
        self._recorder.taken()

    def __enter__(self) -> FAM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()
