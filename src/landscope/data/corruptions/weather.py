"""Weather: snow, frost, fog, brightness."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from landscope.core.seeding import generator
from landscope.data.corruptions.draws import Draws
from landscope.data.corruptions.filters import motion, zoom

__all__ = ["brightness", "fog", "frost", "frost_textures", "luma", "snow"]


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


def brightness(x: Tensor, amount: float, draws: Draws) -> Tensor:
    """Value (of hue, saturation, value) raised by `amount`."""
    del draws  # nothing is drawn
    value = x.amax(1, keepdim=True)
    raised = (value + amount).clamp(max=1)
    return torch.where(value > 0, x * raised / value.clamp(min=1e-12), raised)
