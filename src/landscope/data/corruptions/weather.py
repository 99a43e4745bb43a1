"""Weather: snow, frost, fog, brightness."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from landscope.core.seeding import generator
from landscope.data.corruptions.filters import Draws, convolve, gaussian, motion, zoom


def luma(x: Tensor) -> Tensor:
    """Grey image (n, 1, H, W) of a colour or grey one."""
    if x.shape[1] == 1:
        return x
    return (x * torch.tensor([0.299, 0.587, 0.114], device=x.device, dtype=x.dtype)[:, None, None]).sum(1, keepdim=True)


def snow(x: Tensor, settings: tuple[float, float, float, float, int, float, float], draws: Draws) -> Tensor:
    """Blown flakes over a paler image.

    Settings: mean and deviation of the noise that becomes flakes, its enlargement, the threshold under which there is
    no flake, radius and σ of the motion, weight of the image.
    """
    mean, deviation, factor, threshold, radius, sigma, weight = settings
    layer = zoom(mean + deviation * draws.normal(0, 1, *x.shape[2:]), factor)
    layer = torch.where(layer < threshold, 0.0, layer).clamp(0, 1)
    flakes = motion(torch.floor(layer * 255) / 255, radius, sigma, draws.between(-135, -45, 1))
    paler = weight * x + (1 - weight) * torch.maximum(x, luma(x) * 1.5 + 0.5)
    return paler + flakes + flakes.flip(2, 3)


def fog(x: Tensor, settings: tuple[float, float], draws: Draws) -> Tensor:
    """Add strength · plasma, scaled back by the image's maximum; settings are (strength, decay of the plasma)."""
    strength, decay = settings
    height, width = x.shape[2:]
    brightest = x.amax((1, 2, 3), keepdim=True)
    cloud = plasma(max(height, width), decay, draws)[:, None, :height, :width]
    return (x + strength * cloud) * brightest / (brightest + strength)


def plasma(size: int, decay: float, draws: Draws) -> Tensor:
    """Diamond-square clouds (n, s, s) in [0, 1], s the power of 2 from `size` up, periodic."""
    side = 1 << (size - 1).bit_length()
    cloud = torch.zeros(len(draws.keys), side, side, device=draws.keys.device)
    step, wobble, stream = side, 100.0, 0

    def mean(total: Tensor) -> Tensor:
        nonlocal stream
        stream += 1
        return total / 4 + wobble * wobble * (2 * draws.uniform(stream, *total.shape[1:]) - 1)

    while step >= 2:
        half = step // 2
        corners = cloud[:, ::step, ::step]
        edges = corners + corners.roll(-1, 1)
        cloud[:, half::step, half::step] = mean(edges + edges.roll(-1, 2))
        middles = cloud[:, half::step, half::step]
        cloud[:, ::step, half::step] = mean(middles + middles.roll(1, 1) + corners + corners.roll(-1, 2))
        cloud[:, half::step, ::step] = mean(middles + middles.roll(1, 2) + corners + corners.roll(-1, 1))
        step, wobble = half, wobble / decay
    cloud -= cloud.amin((1, 2), keepdim=True)
    return cloud / cloud.amax((1, 2), keepdim=True)


# Mean colour and contrast of the five pictures of frosted panes that CIFAR-C is made with, shrunk as it shrinks them.
_PANES = (
    ((0.30, 0.58, 0.65), 0.06),
    ((0.79, 0.81, 0.84), 0.07),
    ((0.79, 0.81, 0.84), 0.07),
    ((0.54, 0.60, 0.65), 0.08),
    ((0.44, 0.48, 0.53), 0.14),
)


@functools.lru_cache
def frost_textures(size: int) -> Tensor:
    """Five textures (5, 3, s, s) of ice needles, s ≥ size + 96, made up: white noise drawn out along random directions.

    CIFAR-C cuts pieces out of photographs; these have the photographs' colours and contrast, not their pixels.
    """
    side, angles = size + 96, 12
    rng = generator(0, "frost textures")
    frequency = torch.fft.fftfreq(side, dtype=torch.float64)
    v, u = frequency[:, None], frequency[None, :]
    textures = []
    for colour, contrast in _PANES:
        needles = []
        for turn in range(angles):
            angle = math.pi * turn / angles
            along, across = u * math.cos(angle) + v * math.sin(angle), v * math.cos(angle) - u * math.sin(angle)
            drawn_out = torch.exp(-2 * math.pi**2 * ((5.0 * along) ** 2 + (0.6 * across) ** 2))
            region = torch.exp(-2 * math.pi**2 * (6.0**2) * (u**2 + v**2))
            noise = torch.fft.fft2(torch.randn(2, side, side, generator=rng, dtype=torch.float64))
            needle, presence = torch.fft.ifft2(noise * torch.stack([drawn_out, region])).real
            needles.append(needle / needle.std() + 0.7 * presence / presence.std())
        ice = torch.stack(needles).amax(0)
        ice = contrast * ((ice - ice.mean()) / ice.std()).clamp(-2.5, 3.5)
        textures.append(torch.tensor(colour, dtype=torch.float64)[:, None, None] + ice)
    return torch.stack(textures).clamp(0, 1).float()


def frost(x: Tensor, settings: tuple[float, float], draws: Draws) -> Tensor:
    """Image and a random piece of an ice texture, added with two weights."""
    channels, height, width = x.shape[1:]
    textures = frost_textures(max(height, width)).to(x.device)
    pane = draws.below(len(textures), 0)
    top, left = (draws.below(textures.shape[-1] - extent, k) for k, extent in ((1, height), (2, width)))
    rows = (top[:, None] + torch.arange(height, device=x.device))[:, None, :, None]
    columns = (left[:, None] + torch.arange(width, device=x.device))[:, None, None, :]
    colour = torch.arange(3, device=x.device)[:, None, None]
    ice = textures[pane[:, None, None, None], colour, rows, columns]
    return settings[0] * x + settings[1] * (ice if channels == 3 else luma(ice))


def brightness(x: Tensor, amount: float, _: Draws) -> Tensor:
    """Value (of hue, saturation, value) raised by `amount`."""
    value = x.amax(1, keepdim=True)
    raised = (value + amount).clamp(max=1)
    return torch.where(value > 0, x * raised / value.clamp(min=1e-12), raised)


# Spatter: drops of water with lit edges (severities 1–3), splashes of mud (4, 5).
#
# The water follows the published chain of OpenCV steps on bytes: edges of the drops (Canny), distance from them,
# histogram equalisation, an emboss filter. Distances here are exactly Euclidean; OpenCV's are within 2 % of that.


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
