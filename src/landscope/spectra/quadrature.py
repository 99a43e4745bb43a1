"""Spectral densities and log-determinants by stochastic Lanczos quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

from landscope.core import display
from landscope.core.errors import OutOfMemoryError
from landscope.core.estimate import TWO_SIGMA, Estimate, Status, student_factor
from landscope.core.json import Plain
from landscope.core.seeding import generator
from landscope.spectra.lanczos import LONG, lanczos_steps, recurrence_steps
from landscope.spectra.probes import sphere_rows
from landscope.spectra.protocol import MatrixLike, as_operator, plainly

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A smooth density from quadrature nodes and weights, with its standard error.


Array = NDArray[np.float64]


def smoothed(
    nodes: Array, weights: Array, size: int, grid: Array | None = None, sigma: float | None = None
) -> tuple[Array, Array, Array]:
    """Grid, mean over probes of Σⱼ wⱼ N(grid; θⱼ, σ²), and its standard error at each point.

    The bar is the larger of two: the law of sphere probes, 2/P · E Var_v(kernel) per probe, which holds for one probe
    too; and the scatter between probes, which also sees what too few steps for this σ do to the nodes.

    >>> grid, density, band = smoothed(np.array([[0.0]]), np.array([[1.0]]), 10, np.array([0.0]), sigma=1.0)
    >>> density.round(4), band
    (array([0.3989]), array([0.]))
    """
    low, high = float(nodes.min()), float(nodes.max())
    if sigma is None:
        sigma = 0.01 * (high - low) or 0.01 * max(abs(high), 1.0)
    if not sigma > 0:
        raise ValueError(f"sigma must be positive, got {sigma}")
    if grid is None:
        grid = np.linspace(low - 5 * sigma, high + 5 * sigma, 1001)
    probes = len(nodes)
    means, spreads, fourths = (np.empty((probes, len(grid))) for _ in range(3))
    for i in range(probes):
        kernel = np.exp(-0.5 * ((grid[:, None] - nodes[i]) / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))
        means[i] = kernel @ weights[i]
        centred = kernel - means[i][:, None]
        spreads[i], fourths[i] = centred**2 @ weights[i], centred**4 @ weights[i]
    spread, fourth = spreads.mean(0), fourths.mean(0)
    dimension = np.divide(size * spread**2, fourth, out=np.ones_like(spread), where=fourth > 0)
    widened = scipy.special.stdtrit(probes * np.maximum(1.0, dimension), TWO_SIGMA) / 2
    band = widened * np.sqrt(2 * spread / (size * probes))
    if probes > 1:
        band = np.maximum(band, means.std(0, ddof=1) / np.sqrt(probes))
    return grid, means.mean(0), band


# A picture of a spectrum: density with its band, Ritz values with their weights.


BLUE, GREY = "#1f5fa8", "#4d4d4d"
DECADES = 7
"""How far below its maximum the density is shown."""


def plot_spectrum(density: tuple[Array, Array, Array], ritz: tuple[Array, Array], ax: Axes | None = None) -> Figure:
    """Draw `(grid, density, band)` on a logarithmic axis, and in a figure of its own `(nodes, weights)` below.

    >>> grid = np.linspace(-3, 3, 50)
    >>> figure = plot_spectrum((grid, np.exp(-grid**2), 0.1 * np.exp(-grid**2)), (np.zeros(1), np.ones(1)))
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['density', 'weight']
    """
    lower: Axes | None = None
    if ax is None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 5.0), layout="constrained")
        ax, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    assert ax is not None
    grid, values, band = density
    floor = float(values.max()) * 10.0**-DECADES
    ax.fill_between(
        grid,
        np.maximum(values - 2 * band, floor),
        np.maximum(values + 2 * band, floor),
        color=BLUE,
        alpha=0.25,
        lw=0,
        label="± 2 standard errors",
    )
    ax.plot(grid, np.maximum(values, floor), color=BLUE, lw=1.4, label="smoothed density")
    ax.set(yscale="log", ylabel="density", ylim=(floor, 3 * float((values + 2 * band).max())))
    ax.legend(frameon=False, loc="upper right", fontsize="small")
    bottom = ax
    if lower is not None:
        nodes, weights = ritz
        shown = weights > 0
        smallest = float(weights[shown].min())
        base = max(smallest, float(weights.max()) * 1e-12) / 2
        lower.vlines(nodes[shown], base, np.maximum(weights[shown], base), color=GREY, lw=0.8)
        lower.plot(nodes[shown], np.maximum(weights[shown], base), "o", color=BLUE, ms=2.5)
        lower.set(yscale="log", ylabel="weight")
        bottom = lower
    bottom.set_xlabel("eigenvalue")
    for axes in {ax, bottom}:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, which="major", alpha=0.2, lw=0.6)
    return cast("Figure", ax.get_figure(root=True))


# Spectral measures by stochastic Lanczos quadrature.
#
# For a unit vector v the Lanczos matrix T of (A, v) holds the Gauss quadrature of v's spectral measure: nodes θⱼ are its
# eigenvalues, weights wⱼ the squared first components of its eigenvectors, and vᵀ f(A) v ≈ Σⱼ wⱼ f(θⱼ), exact for
# polynomials of degree < 2 · steps (Golub & Meurant 2010). Averaged over random v it gives tr f(A) / P (Ubaru, Chen &
# Saad 2017) and, with f a narrow Gaussian, the density of eigenvalues (Lin, Saad & Yang 2016; Ghorbani, Krishnan & Xiao
# 2019).
#
# Probes are uniform on the sphere, and by `landscope.spectra.probes` Var(P vᵀ f(A) v) = 2P · E Var_v(f), where Var_v(f)
# is the variance of f under v's own spectral measure: the same nodes and weights give the error bar, even of one probe.


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Lanczos matrices of random probes: what they know of all P eigenvalues.

    `diagonal` (probes, m) and `offdiagonal` (probes, m − 1) are the matrices T, `remainder` (probes,) the coupling to
    the step that was not taken (0: the quadrature is exact). `size` is P, `rounding` the relative error of a product.
    """

    diagonal: Array
    offdiagonal: Array
    remainder: Array
    size: int
    matvecs: int
    rounding: float = 0.0
    seed: int = 0

    @property
    def probes(self) -> int:
        """How many random vectors."""
        return int(self.diagonal.shape[0])

    @property
    def steps(self) -> int:
        """How many nodes each has."""
        return int(self.diagonal.shape[1])

    @cached_property
    def quadrature(self) -> tuple[Array, Array]:
        """Nodes (ascending) and weights of every probe, both (probes, m); the weights of a probe sum to 1."""
        return gauss(self.diagonal, self.offdiagonal)

    @cached_property
    def _pooled(self) -> tuple[Array, Array]:
        nodes, weights = self.quadrature
        order = np.argsort(nodes, axis=None, kind="stable")
        return nodes.ravel()[order], weights.ravel()[order] / self.probes

    @property
    def nodes(self) -> Array:
        """The Ritz values of all probes in ascending order (probes · m,)."""
        return self._pooled[0]

    @property
    def weights(self) -> Array:
        """Their weights, which sum to 1 (probes · m,)."""
        return self._pooled[1]

    def functional(self, f: Callable[[Array], Array], per_parameter: bool = False) -> Estimate:
        """Estimate tr f(A), or tr f(A) / P, for a vectorised `f`.

        The error bar adds in squares: the scatter of random probes; the error of the quadrature, taken as the change
        from three quarters of the steps; and the rounding of the products, taken to point in random directions: the
        change of f across rounding · ‖A‖, times √P. Status `budget spent` says that the second is the largest, so that
        more steps are needed, not more probes. A node where f is not finite fails the estimate.

        Two bars held the truth in 94.3 … 99.8 % of 600 to 2000 runs each: f = x, x², exp(−x), log(1 + |x|); 1, 2, 4, 10
        probes; five spectra, P = 150, 25 steps. One or two probes err on the wide side (Student's factor up to 7).

        >>> s = spectrum(np.diag([1.0, 2.0, 3.0, 4.0]), steps=4, probes=50)
        >>> s.functional(np.ones_like).value, s.functional(np.exp).status.value
        (4.0, 'converged')
        >>> bool(abs(s.functional(lambda x: x).value - 10) < 1)
        True
        """
        nodes, weights = self.quadrature
        with np.errstate(all="ignore"):
            at_nodes = np.asarray(f(nodes), dtype=np.float64)
        bad = ~np.isfinite(at_nodes) & (weights > 0)
        if bad.any():
            return Estimate.failed(f"the function is not finite at the Ritz value {nodes[bad][0]:.6g}")
        means = (weights * np.where(weights > 0, at_nodes, 0.0)).sum(1)
        centred = np.where(weights > 0, at_nodes - means[:, None], 0.0)
        spread, fourth = (weights * centred**2).sum(1).mean(), (weights * centred**4).sum(1).mean()
        dimension = self.size * spread**2 / fourth if fourth > 0 else 1.0
        sampling = student_factor(self.probes * max(1.0, dimension)) * math.sqrt(2 * spread / (self.size * self.probes))
        truncation, rounding = self._truncation_error(f, float(means.mean())), self._rounding_error(f, at_nodes)
        unit = 1.0 if per_parameter else float(self.size)
        short = truncation > max(sampling, rounding)
        return Estimate(
            unit * float(means.mean()),
            unit * math.sqrt(sampling**2 + truncation**2 + rounding**2),
            status=Status.BUDGET_SPENT if short else Status.CONVERGED,
            reason="the quadrature has not settled; take more steps" if short else "",
            settings={"steps": self.steps, "probes": self.probes, "seed": self.seed, "per_parameter": per_parameter},
            details={
                "matvecs": self.matvecs,
                "sampling_stderr": unit * sampling,
                "quadrature_error": unit * truncation,
                "rounding_error": unit * rounding,
            },
        )

    def _truncation_error(self, f: Callable[[Array], Array], mean: float) -> float:
        fewer = (3 * self.steps) // 4
        if fewer < 1 or not (self.remainder > 0).any():
            return 0.0
        nodes, weights = gauss(self.diagonal[:, :fewer], self.offdiagonal[:, : fewer - 1])
        with np.errstate(all="ignore"):
            return float(abs(np.nan_to_num((weights * f(nodes)).sum(1)).mean() - mean))

    def _rounding_error(self, f: Callable[[Array], Array], at_nodes: Array) -> float:
        nodes, weights = self.quadrature
        with np.errstate(all="ignore"):
            shifted = f(nodes + self.rounding * float(np.abs(nodes).max()))
            change = np.nan_to_num(weights * np.square(shifted - at_nodes), posinf=0.0).sum(1).mean()
        return math.sqrt(change / self.size)

    def density(self, grid: Array | None = None, sigma: float | None = None) -> tuple[Array, Array, Array]:
        """Grid, density of eigenvalues (integral 1) smoothed by a Gaussian of width `sigma`, and its standard error.

        `sigma` is 1 % of the range of the nodes unless given, the grid 1001 points that cover them.

        >>> grid, density, band = spectrum(np.diag(np.linspace(0, 1, 50)), steps=20, probes=3).density()
        >>> round(float(np.trapezoid(density, grid)), 2), bool((band > 0).all())
        (1.0, True)
        """
        return smoothed(*self.quadrature, self.size, grid, sigma)

    def plot(self, ax: Axes | None = None, sigma: float | None = None) -> Figure:
        """Draw the density with its band above the Ritz values and weights; on a given `ax` the density alone."""
        return plot_spectrum(self.density(sigma=sigma), (self.nodes, self.weights), ax)

    def _repr_html_(self) -> str:
        return display.picture(self.plot(), f"Spectrum of {self.size:,} eigenvalues")

    def to_dict(self) -> dict[str, Plain]:
        """Plain values only.

        >>> s = spectrum(np.diag([1.0, 2.0]), steps=2, probes=2)
        >>> bool((Spectrum.from_dict(s.to_dict()).nodes == s.nodes).all())
        True
        """
        return {
            "diagonal": self.diagonal.tolist(),
            "offdiagonal": self.offdiagonal.tolist(),
            "remainder": self.remainder.tolist(),
            "size": self.size,
            "matvecs": self.matvecs,
            "rounding": self.rounding,
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Plain]) -> Spectrum:
        """Undo `to_dict`."""
        fields = dict(plain)
        diagonal = np.asarray(fields.pop("diagonal"), dtype=np.float64)
        offdiagonal = np.asarray(fields.pop("offdiagonal"), dtype=np.float64).reshape(len(diagonal), -1)
        remainder = np.asarray(fields.pop("remainder"), dtype=np.float64)
        return cls(diagonal, offdiagonal, remainder, **fields)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        low, high = float(self.nodes.min()), float(self.nodes.max())
        return f"Spectrum(P={self.size}, Ritz values {low:.4g} … {high:.4g}, {self.probes} probes × {self.steps} steps)"


def gauss(diagonal: Array, offdiagonal: Array) -> tuple[Array, Array]:
    """Nodes and weights of the Gauss quadratures behind tridiagonal matrices."""
    off = torch.diag_embed(torch.from_numpy(np.ascontiguousarray(offdiagonal)), 1)
    matrices = torch.diag_embed(torch.from_numpy(np.ascontiguousarray(diagonal))) + off + off.mT
    nodes, vectors = torch.linalg.eigh(matrices)
    weights = vectors[:, 0].square()
    return nodes.numpy(), (weights / weights.sum(1, keepdim=True)).numpy()


def spectrum(op: MatrixLike, steps: int = 64, probes: int = 4, seed: int = 0, max_bytes: int | None = None) -> Spectrum:
    """Find the spectral measures of `probes` random vectors by `steps` Lanczos steps each.

    Costs probes · steps products, issued as blocks of all probes, and holds probes · (steps + 7) vectors of length P
    for full reorthogonalisation; three, and a probe at a time, where vectors have 67 million entries and more. `max_bytes`
    bounds that memory: probes then run in groups, with the same result.

    >>> spectrum(np.diag([1.0, 2.0, 4.0]), steps=10, probes=2)
    Spectrum(P=3, Ritz values 1 … 4, 2 probes × 3 steps)
    """
    with plainly(op):
        *_, found = spectrum_steps(op, steps, probes, seed, max_bytes)
    assert isinstance(found, Spectrum)
    return found


def spectrum_steps(
    op: MatrixLike, steps: int = 64, probes: int = 4, seed: int = 0, max_bytes: int | None = None
) -> Iterator[float | Spectrum]:
    """`spectrum` step by step: the largest Ritz value so far, below the largest eigenvalue, and the spectrum at the end."""
    if steps < 1 or probes < 1:
        raise ValueError(f"steps and probes must be at least 1, got {steps} and {probes}")
    counted, rng = as_operator(op), generator(seed, "spectrum")
    steps = min(steps, counted.size)
    long = counted.size >= LONG or counted.narrow
    group = 1 if long else probes
    if max_bytes is not None:
        each = (steps + 7) * counted.size * torch.finfo(counted.dtype).bits // 8
        group = min(probes, max_bytes // each)
        if group < 1:
            raise OutOfMemoryError(
                f"one probe of {steps} steps needs {each} bytes, {max_bytes} are allowed; lower steps"
            )
    nothing = counted.empty(0)
    diagonal, offdiagonal, remainder = np.zeros((probes, steps)), np.zeros((probes, steps - 1)), np.zeros(probes)
    reached = 0
    for at in range(0, probes, group):
        part = slice(at, min(at + group, probes))
        start = sphere_rows(part.stop - at, nothing, rng, counted.vectors)
        one = counted, start[0], steps
        runs = recurrence_steps(*one) if long else lanczos_steps(counted, start.T, steps, seed=seed)
        del one
        del start  # as long as every other
        for result in runs:
            highest = float(torch.linalg.eigvalsh(result.tridiagonal()).max())
            yield highest - counted.rounding * abs(highest)
        depth = result.diagonal.shape[1]
        reached = max(reached, depth)
        # A group that spans an invariant subspace early is padded by nodes without weight, inside its own range.
        diagonal[part] = result.diagonal[:, :1].numpy()
        diagonal[part, :depth] = result.diagonal.numpy()
        offdiagonal[part, : depth - 1] = result.offdiagonal.numpy()
        left = counted.vectors.norms(result.residual).double().cpu()
        top = result.tridiagonal().abs().amax((1, 2))
        remainder[part] = left.masked_fill(left <= counted.rounding * top, 0.0).numpy()
    yield Spectrum(
        diagonal[:, :reached],
        offdiagonal[:, : reached - 1],
        remainder,
        size=counted.size,
        matvecs=counted.matvecs,
        rounding=counted.rounding,
        seed=seed,
    )


# The log-determinant of A + shift · I by quadrature.


def log_det(
    op: MatrixLike, shift: float = 0.0, steps: int = 64, probes: int = 4, seed: int = 0, max_bytes: int | None = None
) -> Estimate:
    """Estimate log det(A + shift · I) = tr log(A + shift · I) (Ubaru, Chen & Saad 2017); probes · steps products.

    Not applicable where a Ritz value shows that A + shift · I is not positive definite. From a `Spectrum` that is there
    already use `spectrum.functional(lambda x: np.log(x + shift))`, which needs no further product.

    >>> log_det(np.diag([1.0, 2.0, 4.0]), probes=200).details["matvecs"]
    600
    >>> log_det(np.diag([1.0, -2.0]), shift=1.0)
    Estimate(– (not applicable: A + 1·I is not positive definite: it has the Ritz value -1))
    """
    measured = spectrum(op, steps, probes, seed, max_bytes)
    lowest = float(measured.nodes[measured.weights > 0].min()) + shift
    if lowest <= 0:
        return Estimate.not_applicable(
            f"A + {shift:.4g}·I is not positive definite: it has the Ritz value {lowest:.4g}",
            details={"matvecs": measured.matvecs},
        )
    return measured.functional(lambda x: np.log(x + shift))
