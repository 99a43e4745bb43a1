"""Spatter: drops of water with lit edges (severities 1–3), splashes of mud (4, 5).

The water follows the published chain of OpenCV steps on bytes: edges of the drops (Canny), distance from them,
histogram equalisation, an emboss filter. Distances here are exactly Euclidean; OpenCV's are within 2 % of that.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from landscope.data.corruptions.draws import Draws
from landscope.data.corruptions.filters import convolve, gaussian

__all__ = ["canny", "distance_to", "equalized", "spatter"]

_WATER, _MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)
_EMBOSS = torch.tensor([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])
_MEAN = torch.full((3, 3), 1 / 9)
_FAR = 20


def canny(levels: Tensor, low: float, high: float) -> Tensor:
    """Edge pixels of byte levels (n, H, W), as OpenCV's Canny (3×3 Sobel, sum of absolute derivatives)."""
    smooth, derive = torch.tensor([1.0, 2, 1]), torch.tensor([-1.0, 0, 1])
    dx = convolve(levels, smooth[:, None] * derive, "nearest")
    dy = convolve(levels, derive[:, None] * smooth, "nearest")
    strength = dx.abs() + dy.abs()
    around = pad(strength, (1, 1, 1, 1))

    def neighbour(down: int, right: int) -> Tensor:
        return around[:, 1 + down : 1 + down + levels.shape[1], 1 + right : 1 + right + levels.shape[2]]

    flat, steep = dy.abs() < 0.41421356 * dx.abs(), dy.abs() > 2.41421356 * dx.abs()
    falling = dx * dy >= 0
    diagonal = torch.where(
        falling,
        (strength > neighbour(-1, -1)) & (strength > neighbour(1, 1)),
        (strength > neighbour(-1, 1)) & (strength > neighbour(1, -1)),
    )
    across = (strength > neighbour(0, -1)) & (strength >= neighbour(0, 1))
    upright = (strength > neighbour(-1, 0)) & (strength >= neighbour(1, 0))
    candidates = torch.where(flat, across, torch.where(steep, upright, diagonal)) & (strength > low)
    edges = candidates & (strength > high)
    while True:  # weak candidates join the strong ones they touch
        grown = candidates & (max_pool2d(edges.float(), 3, 1, 1) > 0)
        if torch.equal(grown, edges):
            return edges
        edges = grown


def distance_to(mask: Tensor) -> Tensor:
    """Euclidean distance (n, H, W) to the nearest pixel of `mask`, at most 20.

    >>> distance_to(torch.tensor([[[True, False, False]]]))
    tensor([[[0., 1., 2.]]])
    """
    squared = torch.where(mask, 0.0, float(_FAR**2))
    for dim in (2, 1):
        size = squared.shape[dim]
        result = squared
        for step in range(1, min(_FAR, size)):
            ahead, behind = squared.narrow(dim, step, size - step), squared.narrow(dim, 0, size - step)
            margin = (0, step) if dim == 2 else (0, 0, 0, step)
            result = torch.minimum(result, pad(ahead, margin, value=float(_FAR**2)) + step**2)
            result = torch.minimum(result, pad(behind, margin[:-2] + margin[-2:][::-1], value=float(_FAR**2)) + step**2)
        squared = result
    return squared.clamp(max=float(_FAR**2)).sqrt()


def equalized(levels: Tensor) -> Tensor:
    """Histogram equalisation of byte levels (n, H, W), as OpenCV's equalizeHist; an image of one level stays."""
    flat = levels.flatten(1).long()
    counts = torch.zeros(len(flat), 256, device=levels.device).scatter_add_(
        1, flat, torch.ones_like(flat, dtype=torch.float32)
    )
    cumulative = counts.cumsum(1)
    first = counts.gather(1, (counts > 0).float().argmax(1, keepdim=True))
    total = float(flat.shape[1])
    table = ((cumulative - first) * 255 / (total - first).clamp(min=1)).round()
    table = torch.where(first == total, torch.arange(256.0, device=levels.device), table)
    return table.gather(1, flat).reshape(levels.shape)


def spatter(x: Tensor, settings: tuple[float, float, float, float, float, bool], draws: Draws) -> Tensor:
    """Lay drops over the image.

    Settings: mean, deviation and blur of the noise that becomes drops, the threshold under which there is none,
    strength (water) or blur (mud) of the drops, whether they are mud.
    """
    mean, deviation, blur, threshold, strength, mud = settings
    liquid = gaussian(mean + deviation * draws.normal(0, *x.shape[2:]), blur)
    liquid = torch.where(liquid < threshold, 0.0, liquid)
    colour = torch.tensor(_MUD if mud else _WATER, device=x.device, dtype=x.dtype)[:, None, None]
    if mud:
        cover = gaussian((liquid > threshold).float(), strength)
        cover = torch.where(cover < 0.8, 0.0, cover)[:, None]
        return x * (1 - cover) + colour * cover
    drops = torch.floor(liquid * 255 + 1e-3).clamp(0, 255)
    relief = torch.floor(convolve(distance_to(canny(drops, 50, 150)), _MEAN) + 1e-3)
    relief = convolve(equalized(relief), _EMBOSS).clamp(0, 255)
    light = drops * torch.round(convolve(relief, _MEAN))
    light = light / light.amax((1, 2), keepdim=True).clamp(min=1e-12) * strength
    return x + light[:, None] * colour
