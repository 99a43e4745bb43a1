"""How predictions are read off what a model returns, and their labels off a batch, so that the two lie position by position.

A language model's output at one position is about the label of the next; a soft prompt puts positions before the first label;
a model that marks an answer in a text returns two rows of logits, for where it starts and where it ends. Once lined up, all of
these are classes with labels like any other, and −100 marks what counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from landscope.probe.checks import tensor_output
from landscope.probe.loss.targets import IGNORED

SPANS = ("start", "end")
"""Where an answer lies in a text: `start_logits` and `end_logits`, `start_positions` and `end_positions`."""
_TEXTS = ("input_ids", "inputs_embeds")


@dataclass(frozen=True)
class Reading:
    """Which outputs go with which labels; as they are, unless one of the fields says otherwise.

    >>> Reading(lead=1, shift=True).labels(torch.tensor([[5, 6, 7]]), {})
    tensor([[   5,    6,    7, -100]])
    """

    shift: bool = False
    """Whether each position predicts the label of the next one."""
    lead: int = 0
    """Positions of the outputs before that of the first label."""
    spans: bool = False
    """Whether the predictions are where an answer starts and where it ends."""

    def predictions(self, outputs: object) -> Tensor:
        """The tensor of predictions in what the model returned."""
        if not self.spans:
            return tensor_output(outputs)
        start, end = (part(outputs, f"{name}_logits") for name in SPANS)
        assert isinstance(start, Tensor), "recognised by them"
        assert isinstance(end, Tensor), "recognised by them"
        return torch.stack([start, end], 1)

    def labels(self, targets: object, raw: object) -> object:
        """The targets in the positions of the predictions; `raw` is the batch that holds them."""
        if self.spans and isinstance(raw, Mapping):
            length = next((raw[key].shape[1] for key in _TEXTS if key in raw), None)
            places = torch.stack([raw[f"{name}_positions"].reshape(-1) for name in SPANS], 1).clamp(min=0)
            return places if length is None else places.masked_fill(places >= length + self.lead, IGNORED)
        if not isinstance(targets, Tensor):
            return targets
        if self.lead:
            targets = F.pad(targets, (self.lead, 0), value=IGNORED)
        return F.pad(targets[:, 1:], (0, 1), value=IGNORED) if self.shift else targets

    def __str__(self) -> str:
        """What is predicted, in words that follow the name of a loss."""
        return " of start and end" if self.spans else " of the next token" if self.shift else ""


def part(outputs: object, name: str) -> object:
    """A part of what a model returned, by its name; `None` where there is none."""
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
