"""Sharpness-aware minimisation (Foret et al. 2021; adaptive: Kwon et al. 2021) around any optimizer.

    g = ∇L(w);   ε = ρ T² g / ‖T g‖;   g' = ∇L(w + ε);   back to w exactly;   one step of the base optimizer with g'

Two gradients a step, and one copy of the weights while they are perturbed.

    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, rho=0.05)

With a closure, as any optimizer of torch that looks twice:

    def closure():
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        return loss
    loss = optimizer.step(closure, max_norm=1.0)

The closure is called at w and at w + ε and need not clear gradients. A backward pass on the same batch before `step`, as other
implementations want it, costs time and changes nothing. Other gradients that the closure would add to are refused: those of
other micro-batches would be needed at w + ε too, and a pass that was clipped since looks like them.

By hand. Gradients may be accumulated over micro-batches, the same ones before each of the two steps; what must happen to the
gradient that the base optimizer sees (clipping, noise) happens just before `second_step`:

    for x, y in micro_batches:
        (criterion(model(x), y) / len(micro_batches)).backward()
    optimizer.first_step(zero_grad=True)
    for x, y in micro_batches:
        (criterion(model(x), y) / len(micro_batches)).backward()
    optimizer.second_step(zero_grad=True)

BatchNorm's running statistics move at w only. Layers are found as they are called; `model` names them, where that misses one.

With a `GradScaler`, `scaled_step`; by hand, backward through `scaler.scale(loss)` both times, then `second_step(scaler=scaler)`
and `scaler.update()`. ε does not depend on the scale, so the first gradients need no unscaling (`scaler.unscale_(optimizer)`
before `first_step` does no harm); the second are unscaled once, under the base optimizer's name, by `scaler.step`.

Under `DistributedDataParallel` gradients are averaged before each step, so ε is the same on every process. A perturbation of its
own for each micro-batch or process (m-SAM) is `micro_batch_step`. Layers that draw random numbers draw again in the second pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from landscope.core.errors import StepOrderError
from landscope.training.optimizers import passes
from landscope.training.optimizers.ascent import Adaptive, Neighbourhood, Perturbation, Tensors, ascent
from landscope.training.optimizers.statistics import (
    first_call,
    frozen_statistics,
    owners,
    repeated_statistics,
    runs_compiled,
)

LossT = TypeVar("LossT", Tensor, float)


class SAM(passes.Around):
    """Sharpness-aware minimisation around `base_optimizer`, a class of torch optimizers or a function that makes one.

    `base_options` go to the base optimizer. Parameter groups may have their own `rho`, `adaptive` and `eta` beside the base's
    options; `adaptive` is explained in `ascent`. Groups, state and defaults are the base's own objects, so learning rate
    schedulers attached here act on it, and `state_dict` holds its state; that of the base alone can be loaded too.

    >>> w = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    >>> optimizer = SAM([w], torch.optim.SGD, lr=0.1, rho=0.5)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = w.square().sum() / 2
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure).item(), w.detach()           # w − 0.1 (w + 0.5 w / ‖w‖)
    (12.5, tensor([2.6700, 3.5600], dtype=torch.float64))
    """

    _home: list[tuple[Tensors, Tensors]] | None = None
    """While the weights are perturbed: the parameters that moved and their values before."""
    _frozen: ExitStack | None = None
    """Between `first_step` and `second_step`: what keeps running statistics where they are."""
    _adding: passes.Adding | None = None
    """Between `first_step` and `second_step`, if the first did not clear: whether gradients at w are being added to."""
    _left: passes.Noted | None = None
    """The gradients that the last step left behind."""
    _owners: nn.ModuleList | None = None
    """Modules that have our parameters, where calls cannot be watched; looked for once, empty where they can."""

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: Callable[..., Optimizer],
        rho: float = 0.05,
        adaptive: Adaptive = False,
        eta: float = 0.01,
        **base_options: object,
    ) -> None:
        super().__init__(params, base_optimizer, {"rho": rho, "adaptive": adaptive, "eta": eta}, base_options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with its own `rho`, `adaptive` and `eta` if it names them; the base has it too."""
        Neighbourhood(**self.settings(param_group))
        super().add_param_group(param_group)

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False, *, model: nn.Module | None = None) -> None:
        """From w to w + ε, by the gradients at w.

        Until `second_step` or `restore`, running statistics stay where they are: those of `model`, or of what is called
        and has parameters of this optimizer.
        """
        climb = self._ascent()
        self._first_norm = climb.norm
        self._climb(climb)
        self._frozen = ExitStack()
        self._frozen.enter_context(frozen_statistics(model, of=self._params() if model is None else None))
        if zero_grad:
            self.zero_grad()
        else:
            self._adding = passes.Adding(self._params())

    @torch.no_grad()
    def second_step(
        self, zero_grad: bool = False, *, scaler: GradScaler | None = None, max_norm: float | None = None
    ) -> None:
        """Back to w bit for bit, then a step of the base optimizer with the gradients at w + ε.

        Gradients of a scaled loss are unscaled, and the step is left out where they are not finite, if `scaler` is given;
        `scaler.update()` remains to be called. They are clipped to `max_norm` after that.
        """
        if self._home is None:
            raise StepOrderError(
                "second_step was called without first_step: call first_step after the first backward pass"
            )
        mixed = self._adding is not None and self._adding.added
        self.restore()
        if mixed:
            raise StepOrderError(
                "the gradients at the perturbed weights were added to those of the first backward pass, which had not been "
                "cleared. No step was taken, and the weights are back. Call first_step(zero_grad=True), or zero_grad() "
                "before the second backward pass."
            )
        if scaler is not None and passes.unscaled_since(scaler, self, self._first_norm):
            raise StepOrderError(
                "the gradients at the perturbed weights are unscaled already, and second_step(scaler=...) would unscale them "
                "again. No step was taken, and the weights are back. Call scaler.unscale_(optimizer.base_optimizer) instead "
                "of scaler.unscale_(optimizer), or leave clipping to second_step(scaler=..., max_norm=...)."
            )
        self._descend(scaler, max_norm)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def restore(self) -> None:
        """Back to w bit for bit, without a step; nothing happens where the weights are not perturbed."""
        for params, values in self._home or ():
            torch._foreach_copy_(params, values)
        self._home = None
        if self._frozen is not None:
            self._frozen.close()
        if self._adding is not None:
            self._adding.close()
        self._frozen = self._adding = None
        torch.clear_autocast_cache()

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(
        self, closure: Callable[[], LossT], *, model: nn.Module | None = None, max_norm: float | None = None
    ) -> LossT: ...
    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], LossT] | None = None,
        *,
        model: nn.Module | None = None,
        max_norm: float | None = None,
    ) -> LossT | None:
        """Both halves of a step; the loss at w is returned.

        `closure` evaluates the loss, calls `backward` and returns the loss; it is called at w and at w + ε, each time with
        cleared gradients, whether it clears them itself or not. Running statistics (of `model`, or of what it calls) move
        at w only; the gradients at w + ε are clipped to `max_norm`. If the closure raises, the weights are back at w.
        """
        if closure is None:
            raise StepOrderError(
                "a sharpness-aware step evaluates the loss twice and got no closure. Pass one that clears the gradients, "
                "evaluates the loss, calls backward and returns the loss; or call first_step and second_step; with a "
                "GradScaler, scaled_step."
            )
        self._refuse_perturbed("step")
        with self._looking_for_layers(model):
            loss = self._evaluate_here(closure, model)
        with self._perturbed(self._ascent(), model), passes.empty_slots(self._params()), torch.enable_grad():
            closure()
        self._descend(None, max_norm)
        return loss

    @torch.no_grad()
    def scaled_step(
        self,
        scaler: GradScaler,
        closure: Callable[[], Tensor],
        *,
        model: nn.Module | None = None,
        max_norm: float | None = None,
    ) -> Tensor:
        """Both halves of a step with a scaled loss; the unscaled loss at w is returned.

        `closure` evaluates and returns the loss (under autocast, if wanted) and leaves clearing, scaling and `backward` to this
        method. Where either gradient is not finite, the weights and the base optimizer's state stay as they are. The
        scaler is updated.
        """
        self.zero_grad()
        with self._looking_for_layers(model):
            loss = passes.accumulate_gradients(closure, self._params(), scaler)
        climb = self._ascent()
        if climb.norm.isfinite():  # otherwise the scaler has to see these gradients
            with self._perturbed(climb, model):
                self.zero_grad()
                passes.accumulate_gradients(closure, self._params(), scaler)
        self._descend(scaler, max_norm)
        scaler.update()
        return loss

    @torch.no_grad()
    def micro_batch_step(
        self,
        closures: Sequence[Callable[[], Tensor]],
        sizes: Sequence[float] | None = None,
        *,
        model: nn.Module | None = None,
        scaler: GradScaler | None = None,
        max_norm: float | None = None,
    ) -> Tensor:
        """m-SAM: every micro-batch i has an ε of its own; the step is by Σᵢ sᵢ ∇Lᵢ(w + εᵢ), and Σᵢ sᵢ Lᵢ(w) is returned.

        `closures` evaluate and return the mean loss of one micro-batch each, and `sizes` (equal, if not given) are the numbers of
        samples in them, from which sᵢ = sizeᵢ / Σ sizes. Clearing, scaling and `backward` are done here, and the scaler, if
        there is one, is updated. If `model` is a `DistributedDataParallel`, each process has its own micro-batches and
        perturbations, and gradients are averaged once, in the last backward pass.
        """
        params = self._params()
        losses: list[Tensor] = []
        weights = passes.shares(len(closures), sizes)
        self.zero_grad()
        for closure, share in zip(closures, weights, strict=True):
            sum_so_far = [param.grad for param in params]
            self.zero_grad()
            with passes.without_averaging(model), self._looking_for_layers(model):
                losses.append(share * passes.accumulate_gradients(closure, params, scaler, share))
            climb = self._ascent()
            with ExitStack() as stack:
                # gradients that are not finite are kept in the sum, where the scaler will find them
                if scaler is None or climb.norm.isfinite():
                    for param, grad in zip(params, sum_so_far, strict=True):
                        param.grad = grad
                    stack.enter_context(self._perturbed(climb, model))
                else:
                    stack.enter_context(self._still(model))
                if len(losses) < len(closures):
                    stack.enter_context(passes.without_averaging(model))
                passes.accumulate_gradients(closure, params, scaler, share)
        self._descend(scaler, max_norm)
        if scaler is not None:
            scaler.update()
        return torch.stack(losses).sum()

    def state_dict(self) -> dict[str, Any]:
        """The base optimizer's state and the groups; refused while the weights are perturbed."""
        self._refuse_perturbed("state_dict")
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict` of this optimizer, or of the base optimizer alone."""
        self._refuse_perturbed("load_state_dict")
        super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        self._refuse_perturbed("copying or pickling")
        return super().__getstate__()

    def _params(self) -> list[Tensor]:
        return [param for group in self.param_groups for param in group["params"]]

    def _evaluate_here(self, closure: Callable[[], LossT], model: nn.Module | None) -> LossT:
        """The closure at w, its gradients alone: not those of the last step, nor any computed since.

        The latter may be dropped if the closure clears all of them itself, or computes the same: that is a first backward pass
        on the same batch, which moved the running statistics too.
        """
        params, left = self._params(), self._left or passes.Noted()
        before = [None if left.holds(param.grad) else param.grad for param in params]
        if not passes.filled(before):
            with passes.empty_slots(param for param in params if left.holds(param.grad)), torch.enable_grad():
                return closure()
        if model is None and self._owners is None:
            self._owners = nn.ModuleList(owners(params))
        with repeated_statistics(self._known(model)) as put_back, passes.empty_slots(params):
            watched = [param for param, grad in zip(params, before, strict=True) if passes.filled([grad])]
            adding = passes.Adding(watched, empty=True)
            try:
                with torch.enable_grad():
                    loss = closure()
            finally:
                adding.close()
        if passes.same_gradients(before, [param.grad for param in params]):
            put_back()
        elif not adding.cleared:
            put_back()
            for param, grad in zip(params, before, strict=True):
                param.grad = grad
            raise StepOrderError(
                "step(closure) found gradients that were computed before it; the closure neither clears them nor computes the "
                "same ones. If they are those of other micro-batches (accumulation; accumulate_grad_batches in Lightning), "
                "they are needed at the perturbed weights as well: let the closure call zero_grad() and go through all "
                "micro-batches, or use micro_batch_step, or larger batches without accumulation. If they are those of a "
                "first backward pass on the same batch, with layers that draw random numbers: leave that pass out, for the "
                "closure is called at both points, or call first_step(zero_grad=True), closure() and second_step(). If "
                "that pass was clipped or unscaled: leave it out, and pass max_norm to step. If they are of no use, call "
                "zero_grad() before step."
            )
        return loss

    def _ascent(self) -> Perturbation:
        self._refuse_perturbed("another first step")
        return ascent(
            (group["params"], Neighbourhood(**self.settings(group), downhill=bool(group.get("maximize"))))
            for group in self.param_groups
        )

    def _climb(self, climb: Perturbation) -> None:
        home = [(params, [torch.empty_like(param) for param in params]) for params, _ in climb.moves]
        for params, values in home:
            torch._foreach_copy_(values, params)
        self._home = [*home]
        for params, steps in climb.moves:
            torch._foreach_add_(params, steps)
        torch.clear_autocast_cache()  # autocast around both passes would hand the second one the first one's weights

    @contextmanager
    def _perturbed(self, climb: Perturbation, model: nn.Module | None) -> Iterator[None]:
        try:
            self._climb(climb)
            with self._still(model):
                yield
        finally:
            self.restore()

    @contextmanager
    def _looking_for_layers(self, model: nn.Module | None) -> Iterator[None]:
        """Around a first pass: if modules run compiled in it, find those whose statistics the second must not move."""
        if model is not None or self._owners is not None:
            yield
            return
        with first_call() as met:
            yield
        if self._owners is None:
            self._owners = nn.ModuleList([] if met and not runs_compiled(met[0]) else owners(self._params()))

    def _known(self, model: nn.Module | None) -> nn.Module | None:
        return model if model is not None or not self._owners else self._owners

    @contextmanager
    def _still(self, model: nn.Module | None) -> Iterator[None]:
        """A second pass, in which no running statistics move."""
        with frozen_statistics(self._known(model)):
            yield

    def _descend(self, scaler: GradScaler | None, max_norm: float | None) -> None:
        if max_norm is not None:
            if scaler is not None:
                scaler.unscale_(self.base_optimizer)
            passes.clip_gradients(self._params(), max_norm)
        if scaler is None:
            self.base_optimizer.step()
        else:
            scaler.step(self.base_optimizer)
        self._left = passes.Noted(self._params())
        self._opt_called = True  # a scheduler that finds no such mark warns that no step was taken

    def _refuse_perturbed(self, what: str) -> None:
        if self._home is not None:
            raise StepOrderError(
                f"{what} was called between first_step and second_step, while the weights are perturbed. "
                f"Call second_step first, or restore() to give the step up."
            )
