"""The corruptions of CIFAR-C: one contract for all, and independent truth for each step."""

from __future__ import annotations

import colorsys
import io
import math
from itertools import pairwise

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import torch

from landscope.core.errors import OperandError, UnknownNameError
from landscope.data import CORRUPTIONS, EXTRA_CORRUPTIONS, MAIN_CORRUPTIONS, corrupt
from landscope.data.corruptions.blur import defocus_blur, disc
from landscope.data.corruptions.digital import jpeg_levels
from landscope.data.corruptions.filters import Draws, box_resize, convolve, gaussian, motion, sample, zoom
from landscope.data.corruptions.weather import canny, distance_to, equalized, frost_textures, plasma

NAMES = [*MAIN_CORRUPTIONS, *EXTRA_CORRUPTIONS]
DETERMINISTIC = {
    "defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "gaussian_blur", "saturate",
}  # fmt: skip


def pictures(n: int, channels: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """Smooth fields with hard edges, on the byte grid: something like photographs."""
    rng = np.random.default_rng(seed)
    fields = scipy.ndimage.gaussian_filter(rng.standard_normal((n, channels, height, width)), (0, 0.7, 3, 3))
    fields = 0.5 + fields / (4 * fields.std())
    fields[:, :, height // 3 : height // 2, width // 4 : width // 2] = rng.random((n, channels, 1, 1))
    return torch.from_numpy(np.round(fields.clip(0, 1) * 255) / 255).float()


def test_nineteen_names() -> None:
    assert sorted(NAMES) == list(CORRUPTIONS)
    assert len(MAIN_CORRUPTIONS) == 15
    assert len(EXTRA_CORRUPTIONS) == 4


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 29, 36)])
@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str, shape: tuple[int, int, int]) -> None:
    x = pictures(5, *shape)
    before, state = x.clone(), torch.get_rng_state()
    for severity in range(1, 6):
        out = corrupt(x, name, severity, seed=1)
        assert out.shape == x.shape
        assert out.dtype == x.dtype
        assert bool(torch.isfinite(out).all())
        levels = out * 255
        assert float((levels - levels.round()).abs().max()) < 1e-3
        assert 0 <= float(out.min()) <= float(out.max()) <= 1
        assert torch.equal(out, corrupt(x, name, severity, seed=1))
        pieces = [corrupt(x[i : i + 2], name, severity, seed=1, first_index=i) for i in (0, 2, 4)]
        assert torch.equal(out, torch.cat(pieces))
        other = corrupt(x, name, severity, seed=2)
        if name in DETERMINISTIC:
            assert torch.equal(out, other)
        else:
            assert not torch.equal(out, other)
    assert not torch.equal(corrupt(x, name, 5), x)
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", NAMES)
def test_bytes_come_and_go(name: str) -> None:
    x = pictures(3, 3, 32, 32)
    as_bytes = corrupt((x * 255).round().byte(), name, 3)
    assert as_bytes.dtype == torch.uint8
    assert torch.equal(as_bytes, (corrupt(x, name, 3) * 255).round().byte())


@pytest.mark.parametrize(
    "name", sorted(set(NAMES) - {"saturate", "elastic_transform", "glass_blur", "spatter", "frost", "pixelate"})
)
def test_severities_grow(name: str) -> None:
    x = pictures(40, 3, 32, 32)
    change = [float((corrupt(x, name, s) - x).square().mean()) for s in range(1, 6)]
    assert all(later > 0.95 * earlier for earlier, later in pairwise(change))
    assert change[4] > 1.3 * change[0]


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    x = pictures(7, 3, 32, 32)
    whole = corrupt(x, "snow", 3)
    monkeypatch.setattr("landscope.data.corruptions._CHUNK", 2 * 3 * 32 * 32)
    assert torch.equal(corrupt(x, "snow", 3), whole)


@pytest.mark.parametrize(
    ("images", "severity", "words"),
    [
        (torch.zeros(2, 3, 27, 32), 1, "at least 28"),
        (torch.zeros(2, 2, 32, 32), 1, "1 or 3"),
        (torch.zeros(3, 32, 32), 1, "expected"),
        (torch.full((2, 3, 32, 32), 1.1), 1, r"\[0, 1\]"),
        (torch.full((2, 3, 32, 32), math.nan), 1, r"\[0, 1\]"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.int64), 1, "int64"),
        (torch.zeros(2, 3, 32, 32), 0, "severity"),
        (torch.zeros(2, 3, 32, 32), 6, "severity"),
        (torch.zeros(2, 3, 32, 32), True, "severity"),
    ],
)
def test_bad_calls(images: torch.Tensor, severity: int, words: str) -> None:
    with pytest.raises(OperandError, match=words):
        corrupt(images, "fog", severity)


def test_unknown_corruption() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'fog'"):
        corrupt(torch.zeros(1, 3, 32, 32), "fogg", 1)


def test_empty_batch() -> None:
    assert corrupt(torch.zeros(0, 3, 32, 32), "fog", 1).shape == (0, 3, 32, 32)


# ------------------------------------------------------------------------------------------------ random numbers


def test_draws_are_uniform_and_independent() -> None:
    draws = Draws.of(0, "test", torch.arange(300))
    u = draws.uniform(0, 400).double()
    assert 0 < float(u.min()) < float(u.max()) < 1
    assert scipy.stats.kstest(u.flatten().numpy(), "uniform").pvalue > 1e-3
    assert scipy.stats.kstest(draws.normal(1, 400).flatten().numpy(), "norm").pvalue > 1e-3
    n = u.numel()
    for a, b in (
        (u[:, 1:], u[:, :-1]),
        (u[1:], u[:-1]),
        (u, draws.uniform(1, 400).double()),
        (u, Draws.of(1, "test", torch.arange(300)).uniform(0, 400).double()),
        (u, Draws.of(0, "other", torch.arange(300)).uniform(0, 400).double()),
    ):
        correlation = float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])
        assert abs(correlation) < 4.5 / math.sqrt(n)


def test_whole_numbers_are_even() -> None:
    counts = torch.bincount(Draws.of(0, "test", torch.arange(100)).below(5, 0, 1000).flatten(), minlength=5)
    assert float(((counts - 20_000) ** 2 / 20_000).sum()) < 18.5  # 0.999 quantile with 4 degrees of freedom


@pytest.mark.parametrize("severity", [1, 5])
def test_noise_has_the_published_size(severity: int) -> None:
    """Far from black and white nothing is clipped; cutting to bytes moves the mean by half a level."""
    n, level = 200, 128 / 255
    x = torch.full((n, 3, 32, 32), level)
    pixels = x.numel()
    for name, deviation in (
        ("gaussian_noise", (0.04, 0.10)[severity > 1]),
        ("speckle_noise", level * (0.06, 0.2)[severity > 1]),
        ("shot_noise", math.sqrt(level / (500, 50)[severity > 1])),
    ):
        out = corrupt(x, name, severity).double()
        variance = deviation**2 + (1 / 255) ** 2 / 12
        assert float(out.mean()) == pytest.approx(level - 0.5 / 255, abs=5 * deviation / math.sqrt(pixels) + 1e-3)
        assert float(out.std()) == pytest.approx(math.sqrt(variance), rel=0.02)
    out = corrupt(x, "impulse_noise", severity)
    share = (0.01, 0.07)[severity > 1]
    for value in (0.0, 1.0):
        got, error = float((out == value).float().mean()), math.sqrt(share / 2 / pixels)
        assert got == pytest.approx(share / 2, abs=5 * error)


def test_shot_noise_is_poisson() -> None:
    x = torch.full((100, 1, 32, 32), 51 / 255)
    from landscope.data.corruptions.noise import shot_noise

    counts = (shot_noise(x, 50.0, Draws.of(0, "test", torch.arange(100))) * 50).round().long().flatten()
    observed = torch.bincount(counts, minlength=31)[:31].double()
    expected = scipy.stats.poisson.pmf(np.arange(31), 10.0) * len(counts)
    busy = expected > 5
    chi2 = float((((observed.numpy() - expected) ** 2 / expected)[busy]).sum())
    assert chi2 < scipy.stats.chi2.ppf(0.999, busy.sum())


# ------------------------------------------------------------------------------------------------ filters


@pytest.mark.parametrize(("edge", "theirs"), [("nearest", "nearest"), ("reflect", "reflect"), ("mirror", "mirror")])
@pytest.mark.parametrize("sigma", [0.4, 1.0, 5.6])
def test_gaussian_is_scipys(sigma: float, edge: str, theirs: str) -> None:
    x = pictures(2, 3, 28, 33).double()
    expected = scipy.ndimage.gaussian_filter(x.numpy(), (0, 0, sigma, sigma), mode=theirs, truncate=4.0)
    assert np.abs(gaussian(x, sigma, edge).numpy() - expected).max() < 1e-12


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.13, 1.25, 1.75, 2.25])
@pytest.mark.parametrize("size", [28, 32])
def test_zoom_is_scipys(factor: float, size: int) -> None:
    x = pictures(1, 1, size, size).double()[0, 0]
    crop = math.ceil(size / factor)
    top = (size - crop) // 2
    grown = scipy.ndimage.zoom(x.numpy()[top : top + crop, top : top + crop], factor, order=1)
    trim = (grown.shape[0] - size) // 2
    assert np.abs(zoom(x, factor).numpy() - grown[trim : trim + size, trim : trim + size]).max() < 1e-9


@pytest.mark.parametrize(("edge", "theirs"), [("reflect", "reflect"), ("mirror", "mirror"), ("nearest", "nearest")])
def test_sample_is_scipys(edge: str, theirs: str) -> None:
    x = pictures(1, 1, 28, 30).double()
    rng = np.random.default_rng(0)
    rows = np.arange(28)[:, None] + rng.uniform(-9, 9, (28, 30))
    columns = np.arange(30) + rng.uniform(-9, 9, (28, 30))
    expected = scipy.ndimage.map_coordinates(x[0, 0].numpy(), [rows, columns], order=1, mode=theirs)
    got = sample(x, torch.from_numpy(rows)[None], torch.from_numpy(columns)[None], edge)
    assert np.abs(got[0, 0].numpy() - expected).max() < 1e-9


def test_convolve_is_scipys() -> None:
    x, kernel = pictures(1, 1, 28, 30).double(), torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).double()
    expected = scipy.ndimage.correlate(x[0, 0].numpy(), kernel.numpy(), mode="mirror")
    assert np.abs(convolve(x, kernel)[0, 0].numpy() - expected).max() < 1e-9


def test_disc_and_defocus() -> None:
    plus = disc(1.0, 1e-3)
    middle = len(plus) // 2
    assert float(plus[middle, middle]) == pytest.approx(0.2)
    assert int((plus > 0.1).sum()) == 5
    x = torch.full((1, 3, 32, 32), 0.4)
    assert float((defocus_blur(x, (1.5, 0.1), Draws.of(0, "t", torch.arange(1))) - x).abs().max()) < 1e-6


def test_motion_follows_its_angle() -> None:
    """One bright pixel leaves half a Gaussian behind, pointing against the motion."""
    x = torch.zeros(4, 1, 31, 31)
    x[:, :, 15, 15] = 1
    out = motion(x, 3, 1.5, torch.tensor([0.0, 90.0, -90.0, 45.0]))[:, 0]
    weights = torch.exp(-(torch.arange(7.0) ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    assert torch.allclose(out[0, 15, 9:16].flip(0), weights)
    assert torch.allclose(out[1, 9:16, 15].flip(0), weights)
    assert torch.allclose(out[2, 15:22, 15], weights)
    assert torch.allclose(out.sum((1, 2)), torch.ones(4))
    assert float(out[3, 14, 14]) > 0
    assert float(out[3].triu(1).sum()) == 0


def test_glass_is_the_published_loop() -> None:
    """The loop of the authors, with its assignment through views, on the same random numbers."""
    x = (pictures(2, 3, 28, 28) * 255).round()
    draws = Draws.of(7, "glass_blur 4", torch.arange(2))
    up, left = (draws.below(2, k, 28, 28).numpy() for k in (0, 1))
    from landscope.data.corruptions.blur import glass_blur

    ours = (glass_blur(x / 255, (1e-9, 1), draws) * 255).round()
    for i in range(2):
        image = x[i].permute(1, 2, 0).numpy().copy()
        for h in range(27, 1, -1):
            for w in range(27, 1, -1):
                h2, w2 = h - up[i, h, w], w - left[i, h, w]
                image[h, w], image[h2, w2] = image[h2, w2], image[h, w]
        assert np.array_equal(ours[i].permute(1, 2, 0).numpy(), image)


@pytest.mark.parametrize("shape", [(32, 32), (28, 45)])
@pytest.mark.parametrize("severity", range(1, 6))
def test_pixelate_is_pillows(severity: int, shape: tuple[int, int]) -> None:
    Image = pytest.importorskip("PIL.Image")
    x = pictures(4, 3, *shape)
    ours = (corrupt(x, "pixelate", severity) * 255).round().byte()
    factor = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    for before, after in zip((x * 255).round().byte(), ours, strict=True):
        image = Image.fromarray(before.permute(1, 2, 0).numpy())
        small = image.resize((int(shape[1] * factor), int(shape[0] * factor)), Image.Resampling.BOX)
        theirs = np.asarray(small.resize((shape[1], shape[0]), Image.Resampling.BOX))
        assert np.array_equal(after.permute(1, 2, 0).numpy(), theirs)
    assert box_resize(torch.full((1, 9, 9), 255.0), 3, 3).tolist() == torch.full((1, 3, 3), 255.0).tolist()


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 28, 33), (1, 28, 28)])
@pytest.mark.parametrize("quality", [80, 65, 58, 50, 40, 10])
def test_jpeg_is_pillows(quality: int, shape: tuple[int, int, int]) -> None:
    """Whole-number arithmetic differs in the last digit: nearly every pixel agrees to a level."""
    Image = pytest.importorskip("PIL.Image")
    levels = (pictures(12, *shape, seed=quality) * 255).round()
    ours = jpeg_levels(levels, quality).numpy()
    theirs = []
    for image in levels.byte():
        buffer = io.BytesIO()
        pixels = image.permute(1, 2, 0).numpy() if shape[0] == 3 else image[0].numpy()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
        array = np.asarray(Image.open(buffer))
        theirs.append(array.transpose(2, 0, 1) if shape[0] == 3 else array[None])
    difference = np.abs(ours - np.stack(theirs))
    assert (difference <= 1).mean() > 0.97
    assert difference.mean() < 0.15
    loss = np.abs(levels.numpy() - np.stack(theirs)).mean()
    assert difference.mean() < 0.15 * loss


# ------------------------------------------------------------------------------------------------ colours


@pytest.mark.parametrize("severity", range(1, 6))
def test_brightness_and_saturation_by_hue_saturation_value(severity: int) -> None:
    x = pictures(1, 3, 28, 28)
    x[0, :, :2, :2] = 0.0
    x[0, :, 2:4, :2] = 100 / 255
    bright = corrupt(x, "brightness", severity)
    vivid = corrupt(x, "saturate", severity)
    amount = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    factor, more = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    for i in range(28):
        for j in range(28):
            h, s, v = colorsys.rgb_to_hsv(*x[0, :, i, j].double().tolist())
            for got, expected in (
                (bright, colorsys.hsv_to_rgb(h, s, min(1, v + amount))),
                (vivid, colorsys.hsv_to_rgb(h, min(1, s * factor + more), v)),
            ):
                floor = np.floor(np.array(expected) * 255 + 1e-3)
                assert np.abs(got[0, :, i, j].numpy() * 255 - floor).max() <= 1.001


def test_contrast_shrinks_towards_the_mean() -> None:
    x = pictures(3, 3, 32, 32)
    out = corrupt(x, "contrast", 5)
    expected = (
        torch.floor(255 * ((x - x.mean((2, 3), keepdim=True)) * 0.15 + x.mean((2, 3), keepdim=True)) + 1e-3) / 255
    )
    assert float((out - expected).abs().max()) <= 1.01 / 255
    assert float((out == expected).float().mean()) > 0.99


# ------------------------------------------------------------------------------------------------ weather, liquids


def test_plasma_fills_the_unit_range() -> None:
    clouds = plasma(28, 2.0, Draws.of(0, "t", torch.arange(20)))
    assert clouds.shape == (20, 32, 32)
    assert torch.equal(clouds.amin((1, 2)), torch.zeros(20))
    assert torch.allclose(clouds.amax((1, 2)), torch.ones(20))
    smooth = plasma(28, 3.0, Draws.of(0, "t", torch.arange(20)))
    assert float(smooth.diff(dim=1).abs().mean()) < float(clouds.diff(dim=1).abs().mean())


def test_fog_keeps_black_and_white_within_range() -> None:
    white = torch.ones(4, 3, 32, 32)
    out = corrupt(white, "fog", 5)
    assert float(out.max()) == 1.0
    assert float(out.mean()) > 0.4


def test_frost_textures_look_like_the_panes() -> None:
    textures = frost_textures(32)
    assert textures.shape == (5, 3, 128, 128)
    assert torch.equal(textures, frost_textures.__wrapped__(32))
    assert textures[0].mean((1, 2)).tolist() == pytest.approx([0.30, 0.58, 0.65], abs=0.02)
    assert float(textures[4].mean(0).std()) == pytest.approx(0.14, abs=0.02)


def test_snow_whitens() -> None:
    x = torch.full((20, 3, 32, 32), 0.3)
    means = [float(corrupt(x, "snow", s).mean()) for s in (1, 3, 5)]
    assert means == sorted(means)
    assert means[0] > 0.3


def test_distance_is_scipys() -> None:
    rng = np.random.default_rng(0)
    mask = rng.random((3, 30, 33)) < 0.01
    mask[1] = False
    ours = distance_to(torch.from_numpy(mask)).numpy()
    for i in (0, 2):
        assert np.abs(ours[i] - np.minimum(20, scipy.ndimage.distance_transform_edt(~mask[i]))).max() < 1e-5
    assert (ours[1] == 20).all()


def test_canny_outlines_a_square() -> None:
    levels = torch.zeros(1, 20, 20)
    levels[:, 6:14, 6:14] = 200.0
    edges = canny(levels, 50, 150)[0]
    inside, outside = torch.zeros(20, 20, dtype=torch.bool), torch.zeros(20, 20, dtype=torch.bool)
    outside[5:15, 5:15] = True
    inside[7:13, 7:13] = True
    assert bool((edges & ~(outside & ~inside)).logical_not().all())
    assert int(edges.sum()) >= 24
    assert not bool(canny(torch.full((1, 20, 20), 90.0), 50, 150).any())


def test_equalized_spreads_levels() -> None:
    levels = torch.tensor([[[10.0, 10, 10, 20], [20, 30, 30, 40]], [[7.0] * 4] * 2])
    out = equalized(levels)
    # 3 of 10 (first, becomes 0), then cumulative 2, 4, 5 of the 5 others
    assert out[0].tolist() == [[0, 0, 0, 102], [102, 204, 204, 255]]
    assert torch.equal(out[1], levels[1])


def test_elastic_moves_but_keeps_the_colours() -> None:
    x = pictures(8, 3, 32, 32)
    for severity in (1, 5):
        out = corrupt(x, "elastic_transform", severity)
        assert float(out.max()) <= float(x.max()) + 1e-6
        assert float((out.mean() - x.mean()).abs()) < 0.05
    flat = torch.full((2, 3, 32, 32), 77 / 255)
    assert float((corrupt(flat, "elastic_transform", 5) - flat).abs().max()) < 1e-6
