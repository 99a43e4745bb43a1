"""Our corruptions beside the published generator, run with the constants of CIFAR-C.

The package `imagecorruptions` carries the generator with the constants of ImageNet-C; its functions are run here with ours in
their place. What draws nothing must agree to a fraction of a level; what draws must change images as much, and leave edges as
sharp. Elastic transforms are written for one image size there and are left out.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from landscope.core.seeding import generator
from landscope.data import CORRUPTIONS, corrupt

Bytes = NDArray[np.uint8]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    published = pytest.importorskip("imagecorruptions.corruptions", reason="needs imagecorruptions")

DRAWS_NOTHING = (
    *(
        "brightness",
        "contrast",
        "defocus_blur",
        "gaussian_blur",
        "jpeg_compression",
        "pixelate",
        "saturate",
        "zoom_blur",
    ),
)
CONSTANTS: dict[str, Callable[[Sequence[Any]], list[object]]] = {
    "zoom_blur": lambda largest: [np.arange(1, value, 0.01) for value in largest],
    "glass_blur": lambda settings: [(sigma, 1, rounds) for sigma, rounds in settings],
}
"""How the published code writes them, where that is not how we do."""


def images(count: int = 60) -> Bytes:
    """Coarse structure in colour with fine detail on it."""
    rng = generator(0, "images")
    coarse = torch.nn.functional.interpolate(torch.rand(count, 3, 6, 6, generator=rng), size=(32, 32), mode="bicubic")
    fine = torch.rand(count, 1, 32, 32, generator=rng)
    return (255 * (0.8 * coarse + 0.2 * fine).clamp(0, 1)).byte().permute(0, 2, 3, 1).numpy()


def theirs(name: str, severity: int, rows: Bytes, monkeypatch: pytest.MonkeyPatch) -> NDArray[np.float64]:
    monkeypatch.setattr(np, "float_", np.float64, raising=False)  # the package is older than numpy 2
    source = inspect.getsource(getattr(published, name)).replace("multichannel=True", "channel_axis=-1")
    source, replaced = re.subn(r"c = \[.*?\]\[\s*severity - 1\]", "c = OURS[severity - 1]", source, count=1, flags=re.S)
    assert replaced == 1
    ours = list(CORRUPTIONS[name].settings)
    names = {**vars(published), "OURS": CONSTANTS.get(name, list)(ours)}
    exec(source, names)
    picture = pytest.importorskip("PIL.Image")
    np.random.seed(severity)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = [np.array(names[name](picture.fromarray(row), severity)) for row in rows]
    return np.floor(np.clip(np.stack(made), 0, 255)).astype(np.float64)


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name != "elastic_transform"])
def test_the_published_generator_does_the_same(name: str, severity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = images()
    expected = theirs(name, severity, rows, monkeypatch)
    x = torch.from_numpy(rows).permute(0, 3, 1, 2).contiguous()
    found = corrupt(x, name, severity, seed=0).permute(0, 2, 3, 1).numpy().astype(np.float64)
    if name in DRAWS_NOTHING:
        assert np.abs(found - expected).mean() < 0.15
        return
    for what, seen in {"change": _changes(rows), "edges": _edges, "brightness": _brightness}.items():
        ours, published_ones = seen(found), seen(expected)
        # both are means over images whose noise was drawn apart; the textures of frost are our own
        chance = 4 * np.hypot(ours.std(), published_ones.std()) / len(rows) ** 0.5
        own = 0.15 if name == "frost" and what == "edges" else 0.01
        assert ours.mean() == pytest.approx(published_ones.mean(), abs=chance, rel=own), what


def _changes(rows: Bytes) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    return lambda made: np.abs(made - rows).mean((1, 2, 3))


def _edges(made: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.abs(np.diff(made, axis=2)).mean((1, 2, 3))


def _brightness(made: NDArray[np.float64]) -> NDArray[np.float64]:
    return made.mean((1, 2, 3))
