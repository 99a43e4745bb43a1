"""Digital: contrast, saturation, elastic deformation, pixelation."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from landscope.data.corruptions.filters import Draws, box_resize, gaussian, sample


def contrast(x: Tensor, factor: float, _: Draws) -> Tensor:
    """Distance from the mean colour, times a factor."""
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * factor + mean


def saturate(x: Tensor, settings: tuple[float, float], _: Draws) -> Tensor:
    """Saturation times a factor plus an amount; grey pixels count as red of saturation 0."""
    factor, amount = settings
    value, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    saturation = (value - low) / value.clamp(min=1e-12)
    wanted = (saturation * factor + amount).clamp(0, 1)
    away = (value - x) / (value - low).clamp(min=1e-12)
    red = torch.tensor([0.0, 1.0, 1.0], device=x.device, dtype=x.dtype)[:, None, None]
    return value * (1 - wanted * torch.where(value > low, away, red))


def pixelate(x: Tensor, factor: float, _: Draws) -> Tensor:
    """Shrunk and enlarged again with Pillow's BOX filter."""
    height, width = x.shape[2:]
    small = box_resize((x * 255).round(), int(height * factor), int(width * factor))
    return box_resize(small, height, width) / 255


def elastic_transform(x: Tensor, settings: tuple[float, float, float], draws: Draws) -> Tensor:
    """Apply a random affine map, then a smooth random displacement.

    Settings are shares of the image's smaller side: amplitude and smoothness of the displacement, and how far the three
    points that fix the affine map may move.
    """
    n, _, height, width = x.shape
    size = min(height, width)
    amplitude, smoothness, shift = (share * size for share in settings)
    centre, reach = torch.tensor([width // 2, height // 2], dtype=torch.float64), size // 3
    before = centre + reach * torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=torch.float64)
    before = before.to(x.device).expand(n, 3, 2)
    after = before + draws.between(-shift, shift, 0, 3, 2).double()
    # The image at a place is read where the inverse map sends it: the map from the moved points to the old ones.
    ones = torch.ones(n, 3, 1, dtype=torch.float64, device=x.device)
    inverse = torch.linalg.solve(torch.cat([after, ones], 2), before)
    rows = torch.arange(height, device=x.device, dtype=torch.float64)[:, None].expand(height, width)
    columns = torch.arange(width, device=x.device, dtype=torch.float64).expand(height, width)
    places = torch.stack([columns, rows, torch.ones_like(rows)], -1) @ inverse[:, None]
    x = sample(x, places[..., 1].float(), places[..., 0].float(), "mirror")
    if amplitude == 0:
        return x
    push = [amplitude * gaussian(draws.between(-1, 1, k, height, width), smoothness, "reflect", 3.0) for k in (1, 2)]
    return sample(x, rows.float() + push[1], columns.float() + push[0], "reflect")


# JPEG compression without a codec: what is lost is computed, nothing is encoded.
#
# Colours to luma and chroma, chroma halved in both directions (4:2:0), 8×8 cosine transform, quantisation by the
# standard's tables (ITU T.81, annex K) scaled to a quality as the Independent JPEG Group does, and all the way back, with
# the rounding and the chroma interpolation of libjpeg. Entropy coding loses nothing and is left out.


_LUMA = """
16 11 10 16 24 40 51 61  12 12 14 19 26 58 60 55  14 13 16 24 40 57 69 56  14 17 22 29 51 87 80 62
18 22 37 56 68 109 103 77  24 35 55 64 81 104 113 92  49 64 78 87 103 121 120 101  72 92 95 98 112 100 103 99
"""
_CHROMA = """
17 18 24 47 99 99 99 99  18 21 26 66 99 99 99 99  24 26 56 99 99 99 99 99  47 66 99 99 99 99 99 99
99 99 99 99 99 99 99 99  99 99 99 99 99 99 99 99  99 99 99 99 99 99 99 99  99 99 99 99 99 99 99 99
"""

_ROOT8 = math.sqrt(8)


def _table(text: str, quality: int) -> Tensor:
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    entries = [min(max((int(entry) * scale + 50) // 100, 1), 255) for entry in text.split()]
    return torch.tensor(entries, dtype=torch.float32).reshape(8, 8)


def _cosines() -> Tensor:
    k, i = torch.arange(8, dtype=torch.float64)[:, None], torch.arange(8, dtype=torch.float64)
    rows = 0.5 * torch.cos((2 * i + 1) * k * math.pi / 16)
    rows[0] /= math.sqrt(2)
    return rows.float()


def _extended(plane: Tensor, rows: int, columns: int) -> Tensor:
    """Repeat the last row and column up to a multiple of `rows` and `columns`."""
    down, right = -plane.shape[1] % rows, -plane.shape[2] % columns
    return pad(plane.unsqueeze(1), (0, right, 0, down), mode="replicate").squeeze(1)


def _requantized(plane: Tensor, table: Tensor) -> Tensor:
    """Byte levels (n, H, W), both a multiple of 8, through transform, quantisation and back."""
    n, height, width = plane.shape
    cosines, table = _cosines().to(plane.device), table.to(plane.device)
    blocks = (plane - 128).reshape(n, height // 8, 8, width // 8, 8).transpose(2, 3)
    # The transform and its inverse round twice, as the whole-number arithmetic of libjpeg does: after rows (columns on
    # the way back) to quarters, and at the end, both in units of √8 per dimension.
    rows = torch.floor(4 * _ROOT8 * (blocks @ cosines.T) + 0.5)
    transformed = torch.floor(_ROOT8 / 4 * (cosines @ rows) + 0.5)
    coefficients = torch.sign(transformed) * torch.floor(transformed.abs() / (8 * table) + 0.5) * table
    columns = torch.floor(4 * _ROOT8 * (cosines.T @ coefficients) + 0.5)
    back = torch.floor(_ROOT8 / 32 * (columns @ cosines) + 0.5)
    return (back.transpose(2, 3).reshape(n, height, width) + 128).clamp(0, 255)


def _halved(plane: Tensor) -> Tensor:
    """Means of 2×2 pixels, rounded with the alternating bias of libjpeg."""
    total = plane[:, ::2, ::2] + plane[:, 1::2, ::2] + plane[:, ::2, 1::2] + plane[:, 1::2, 1::2]
    bias = 1 + torch.arange(total.shape[2], device=plane.device) % 2
    return torch.floor((total + bias) / 4)


def _doubled(plane: Tensor) -> Tensor:
    """Twice the size by the weights 9, 3, 3, 1 of libjpeg's "fancy" upsampling, edges repeated."""
    around = pad(plane.unsqueeze(1), (1, 1, 1, 1), mode="replicate").squeeze(1)
    middle, above, below = around[:, 1:-1], around[:, :-2], around[:, 2:]
    n, height, width = plane.shape
    out = torch.empty(n, 2 * height, 2 * width, device=plane.device)
    for row, other in ((0, above), (1, below)):
        column = 3 * middle + other
        out[:, row::2, ::2] = torch.floor((3 * column[:, :, 1:-1] + column[:, :, :-2] + 8) / 16)
        out[:, row::2, 1::2] = torch.floor((3 * column[:, :, 1:-1] + column[:, :, 2:] + 7) / 16)
    return out


def jpeg_levels(levels: Tensor, quality: int) -> Tensor:
    """Byte levels (n, 1 or 3, H, W), as float32, after JPEG compression at `quality` (1 … 100).

    >>> grey = torch.full((1, 3, 32, 32), 128.0)
    >>> bool(torch.equal(jpeg_levels(grey, 40), grey))
    True
    """
    height, width = levels.shape[2:]
    luma, chroma = _table(_LUMA, quality), _table(_CHROMA, quality)
    if levels.shape[1] == 1:
        return _requantized(_extended(levels[:, 0], 8, 8), luma)[:, None, :height, :width]
    red, green, blue = levels.unbind(1)
    y = torch.floor(0.299 * red + 0.587 * green + 0.114 * blue + 0.5)
    cb = torch.floor(-0.168735892 * red - 0.331264108 * green + 0.5 * blue + 128.4999)
    cr = torch.floor(0.5 * red - 0.418687589 * green - 0.081312411 * blue + 128.4999)
    y = _requantized(_extended(y, 8, 8), luma)[:, :height, :width]

    def lossy(plane: Tensor) -> Tensor:
        # As in libjpeg, columns are repeated before they are halved, rows after.
        half = _requantized(_extended(_halved(_extended(plane, 2, 16)), 8, 8), chroma)
        return _doubled(half[:, : (height + 1) // 2, : (width + 1) // 2])[:, :height, :width] - 128

    cb, cr = lossy(cb), lossy(cr)
    rgb = [
        y + torch.floor(1.402 * cr + 0.5),
        y + torch.floor(-0.344136286 * cb - 0.714136286 * cr + 0.5),
        y + torch.floor(1.772 * cb + 0.5),
    ]
    return torch.stack(rgb, 1).clamp(0, 255)


def jpeg_compression(x: Tensor, quality: int, _: Draws) -> Tensor:
    """Images in [0, 1] through JPEG."""
    return jpeg_levels((x * 255).round(), quality) / 255
