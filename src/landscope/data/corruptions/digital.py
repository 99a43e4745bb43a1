"""Digital: contrast, saturation, elastic deformation, pixelation."""

from __future__ import annotations

import torch
from torch import Tensor

from landscope.data.corruptions.draws import Draws
from landscope.data.corruptions.filters import box_resize, gaussian, sample

__all__ = ["contrast", "elastic_transform", "pixelate", "saturate"]


def contrast(x: Tensor, factor: float, draws: Draws) -> Tensor:
    """Distance from the mean colour, times a factor."""
    del draws  # nothing is drawn
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * factor + mean


def saturate(x: Tensor, settings: tuple[float, float], draws: Draws) -> Tensor:
    """Saturation times a factor plus an amount; grey pixels count as red of saturation 0."""
    del draws  # nothing is drawn
    factor, amount = settings
    value, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    saturation = (value - low) / value.clamp(min=1e-12)
    wanted = (saturation * factor + amount).clamp(0, 1)
    away = (value - x) / (value - low).clamp(min=1e-12)
    red = torch.tensor([0.0, 1.0, 1.0], device=x.device, dtype=x.dtype)[:, None, None]
    return value * (1 - wanted * torch.where(value > low, away, red))


def pixelate(x: Tensor, factor: float, draws: Draws) -> Tensor:
    """Shrunk and enlarged again with Pillow's BOX filter."""
    del draws  # nothing is drawn
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
