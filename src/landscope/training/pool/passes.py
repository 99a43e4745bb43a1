"""n models of one kind as one program: losses, gradients and statistics of all of them in one forward and backward pass.

Parameters and buffers of the members are stacked, (n, …), and the forward pass of one member is mapped over them by
`torch.func.vmap`. The gradient of the sum of the n losses with respect to the stacked parameters holds every member's own
gradient; so autograd works outside of `vmap`, on plain stacked tensors, which is the faster of the two orders.

BatchNorm in training mode normalises each member by its own batch. Its running statistics are stacked buffers, which the layers
update in place inside of the program. Dropout and other random operations draw separately for each member, all from one stream:
the statistics of training alone, not the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from landscope.core.torch_fixes.put_in import functional_call
from landscope.data import Split
from landscope.training.evaluate import ELEMENTS, SAMPLES, SplitScore, autocast, mistakes
from landscope.training.loop.state import some
from landscope.training.task import Task


@dataclass
class Stack:
    """Parameters and buffers of n models by name, each (n, …); what is not trained counts as a buffer."""

    params: dict[str, Tensor]
    buffers: dict[str, Tensor]

    def __len__(self) -> int:
        return len(next(iter(self.params.values())))

    def take(self, places: Sequence[int]) -> Stack:
        """Copies of some members, in that order."""
        params, buffers = some(self.params, places), some(self.buffers, places)
        return Stack({name: value.requires_grad_() for name, value in params.items()}, buffers)

    def weights(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in {**self.params, **self.buffers}.items()}


def stacked(models: Sequence[nn.Module], device: torch.device) -> Stack:
    """The tensors of models that are alike, stacked on a device.

    >>> stack = stacked([nn.Linear(2, 3), nn.Linear(2, 3)], torch.device("cpu"))
    >>> {name: tuple(value.shape) for name, value in stack.params.items()}
    {'weight': (2, 3, 2), 'bias': (2, 3)}
    """
    trained = {name for name, param in models[0].named_parameters() if param.requires_grad}
    states = [{**dict(model.named_parameters()), **dict(model.named_buffers())} for model in models]
    whole = {name: torch.stack([state[name].detach() for state in states]).to(device) for name in states[0]}
    return Stack(
        {name: value.requires_grad_() for name, value in whole.items() if name in trained},
        {name: value for name, value in whole.items() if name not in trained},
    )


class Passes:
    """The passes of one member, mapped over all of them. `task.model` lends its structure; its own weights play no part."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def objectives(self, stack: Stack, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The objective of each member, summed over its own batch, (n,); and the sums of the loss and of mistakes, (n, 2).

        In training mode: statistics among the buffers move in place.
        """
        task = self.task
        task.model.train()

        def member(
            params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], x: Tensor, y: Tensor
        ) -> tuple[Tensor, Tensor]:
            outputs = self._forward({**params, **buffers}, x)
            objective = task.objective.sum(outputs, y, len(y))
            loss = objective if task.objective is task.loss else task.loss.sum(outputs, y, len(y))
            wrong = mistakes(outputs, y) if task.classes else torch.zeros_like(loss)
            return objective, torch.stack([loss.detach().double(), wrong.double()])

        with autocast(task, x.device):
            sums: tuple[Tensor, Tensor] = vmap(member, randomness="different")(stack.params, stack.buffers, x, y)
        return sums

    @torch.no_grad()
    def outputs(self, stack: Stack, x: Tensor) -> Tensor:
        """Outputs (n, b, …) of all members for the same inputs (b, …), in evaluation mode."""
        self.task.model.eval()

        def member(params: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> Tensor:
            return self._forward({**params, **buffers}, x)

        with autocast(self.task, x.device):
            outputs: Tensor = vmap(member)(stack.params, stack.buffers)
        return outputs

    @torch.no_grad()
    def scores(self, stack: Stack, split: Split) -> list[SplitScore] | None:
        """Every member's score on the same samples; `None` where there are none."""
        task, (x, y) = self.task, split
        if not len(y):
            return None
        size = max(1, min(SAMPLES, ELEMENTS // max(1, x[0].numel() * len(stack))))
        sums = torch.zeros(len(stack), 2, dtype=torch.float64, device=y.device)
        for part, targets in zip(x.split(size), y.split(size), strict=True):

            def one(outputs: Tensor, targets: Tensor = targets) -> Tensor:
                loss = task.loss.sum(outputs, targets, len(targets))
                wrong = mistakes(outputs, targets) if task.classes else torch.zeros_like(loss)
                return torch.stack([loss.double(), wrong.double()])

            outputs = self.outputs(stack, part)
            with autocast(task, y.device):
                sums += vmap(one)(outputs)
        means = (sums / len(y)).tolist()
        return [SplitScore(loss, wrong if task.classes else None) for loss, wrong in means]

    def _forward(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        def net(*args: object) -> object:
            return functional_call(self.task.model, tensors, args)

        return self.task.forward(net, x)
