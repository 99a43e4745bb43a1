"""Accuracy under corruption: every corruption at every severity, in one call (Hendrycks and Dietterich 2019).

The images are corrupted in batches where the model is and never stored: memory does not grow with the number of corruptions.
Corrupting is the caller's function, for instance `landscope.data.corruptions.corrupt`: an image's noise must depend on the
seed and its number, which `first_index` carries, not on its batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from landscope.core.estimate import Estimate
from landscope.measures.robustness.classifier import Classifier, checked_inputs
from landscope.probe.probe import Probe

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[int, int, str], None]
"""Called with (how many are done, of how many, what is next)."""


class Corrupt(Protocol):
    """Corrupts images (n, channels, height, width), the first of which has the number `first_index`."""

    def __call__(self, images: Tensor, name: str, severity: int, seed: int, *, first_index: int) -> Tensor:
        """The corrupted images, of the same shape and kind."""


@dataclass(frozen=True, eq=False)
class CorruptionAccuracy:
    """Accuracy (corruptions, severities) on the same n images, and on the clean ones."""

    names: tuple[str, ...]
    severities: tuple[int, ...]
    accuracy: NDArray[np.float64]
    clean: float
    mean_stderr: float | None
    """Standard error over images of the mean over all corruptions. These share the images, so their accuracies are not
    independent."""
    samples: int

    @property
    def stderr(self) -> NDArray[np.float64]:
        """Binomial standard error of each accuracy."""
        return np.sqrt(self.accuracy * (1 - self.accuracy) / max(self.samples - 1, 1))

    @property
    def mean(self) -> Estimate:
        """The mean over all corruptions and severities, with its error over images."""
        details = {"clean": self.clean, "corruptions": len(self.names), "severities": len(self.severities)}
        mean = float(self.accuracy.mean())
        return Estimate(mean, self.mean_stderr or 0.0, self.mean_stderr, details={**details, "samples": self.samples})

    def to_frame(self) -> pd.DataFrame:
        """One row per corruption, one column per severity, and the mean of each row."""
        import pandas as pd

        frame = pd.DataFrame(self.accuracy, index=list(self.names), columns=list(self.severities))
        frame["mean"] = self.accuracy.mean(1)
        return frame.rename_axis("corruption").rename_axis("severity", axis=1)

    def to_long_frame(self) -> pd.DataFrame:
        """One row per corruption and severity: accuracy and its standard error; severity 0 is clean."""
        import pandas as pd

        rows = [("clean", 0, self.clean, math.sqrt(self.clean * (1 - self.clean) / max(self.samples - 1, 1)))]
        for i, name in enumerate(self.names):
            for j, severity in enumerate(self.severities):
                rows.append((name, severity, float(self.accuracy[i, j]), float(self.stderr[i, j])))
        return pd.DataFrame(rows, columns=["corruption", "severity", "accuracy", "stderr"])


def corruption_accuracy(
    model: nn.Module | Probe | Classifier,
    images: Tensor,
    labels: Tensor,
    corrupt: Corrupt,
    names: Iterable[str],
    severities: Iterable[int] = (1, 2, 3, 4, 5),
    *,
    prepare: Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> CorruptionAccuracy:
    """The accuracy of a model on corrupted images; one forward pass for each corruption and severity, and a clean one.

    Args:
        model: a module, which is copied and frozen, or a probe, whose frozen model is used; pass `Classifier.of(model, device,
            precision, batch_size)` to choose where and how to compute.
        images, labels: pixels in [0, 1] or bytes, before normalisation, and classes.
        corrupt: see `Corrupt`.
        names, severities: which corruptions.
        prepare: from corrupted images to what the model takes (normalisation); bytes become [0, 1] without it.
        seed: of the noise.
        progress: called before each corruption.

    >>> def darker(images, name, severity, seed, *, first_index): return images / (1 + severity)
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> table = corruption_accuracy(net, torch.rand(6, 1, 2, 2), torch.arange(6) % 2, darker, ["darker"], [1, 2])
    >>> list(table.to_frame().columns)
    [1, 2, 'mean']
    """
    images, labels = checked_inputs(images, labels)
    chosen, levels = tuple(names), tuple(severities)
    if not chosen or not levels:
        raise ValueError("names and severities must not be empty")
    classifier = Classifier.of(model)
    images, labels = classifier.held(images), labels.to(classifier.device)
    usual = 2_000 if classifier.device.type == "cuda" else 500
    wanted = [("clean", 0), *((name, severity) for name in chosen for severity in levels)]
    counts, of_image = [], torch.zeros(len(images), dtype=torch.float64, device=classifier.device)
    with classifier.evaluating(), torch.no_grad():
        for done, (name, severity) in enumerate(wanted):
            if progress is not None:
                progress(done, len(wanted), f"{name} {severity}" if severity else name)
            right = torch.zeros(len(images), dtype=torch.float64, device=classifier.device)
            for part in classifier.parts(len(images), usual):
                x = images[part].to(classifier.device)
                if severity:
                    x = corrupt(x, name, severity, seed, first_index=part.start)
                x = prepare(x) if prepare is not None else x / 255 if x.dtype == torch.uint8 else x
                right[part] = (classifier.logits(classifier.ready(x)).argmax(1) == labels[part]).double()
            counts.append(right.mean())  # read at the end, so as not to wait for the device
            if severity:
                of_image += right
    clean, *accuracies = torch.stack(counts).tolist()
    of_image /= len(wanted) - 1
    error = float(of_image.std()) / math.sqrt(len(images)) if len(images) > 1 else None
    table = np.array(accuracies).reshape(len(chosen), len(levels))
    return CorruptionAccuracy(chosen, levels, table, clean, error, len(images))
