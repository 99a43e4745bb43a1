"""Every line of the comparison. To add one, add one `Row`.

A tool of a row is a function of `ours`, `peers` or `by_hand`: it prepares outside of the clock and returns what is timed. The
first tool is the one that the others' times are divided by. Settings are handed to all tools and to the truth alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from . import by_hand, ours, peers, truth
from .answers import Tool, between_spectra, of_the_move, of_the_range, relative, shortfall
from .networks import NETWORKS, Network, Size
from .truth import Truth

EVERY = ("mlp", "transformer", "resnet20", "resnet18")
SMALL = ("mlp", "transformer", "resnet18")
"""Networks of rows that take minutes on a CPU: a large one on a GPU only."""


@dataclass(frozen=True)
class Case:
    """A row on one network."""

    row: str
    label: str
    network: Network
    settings: Mapping[str, float]
    at: float | None = None
    """Of a growth, the number that grows."""


@dataclass(frozen=True)
class Row:
    """What is timed, by which tools, and how wrong each answer is."""

    name: str
    title: str
    tools: Mapping[str, Tool]
    truth: Truth
    error: Callable[[Tensor, Tensor], float] = relative
    settings: Mapping[str, float] = field(default_factory=dict)
    tiny: Mapping[str, float] = field(default_factory=dict)
    """Settings of the tiny size that differ."""
    networks: tuple[str, ...] = EVERY
    growth: tuple[str, Mapping[Size, tuple[int, ...]]] | None = None
    """A field of the network or a setting, and its values at each size; on the first network of the size."""
    warm_up: bool = True
    """Whether a tool works on the tiny network first, outside of the clock, so that imports count for none."""
    headline: bool = False
    """One of the five lines of the repository's README."""

    def cases(self, size: Size, only: tuple[str, ...] = ()) -> list[Case]:
        """The row on every network of a size that it is meant for, or at every point of its growth."""
        settings = {**self.settings, **(self.tiny if size == "tiny" else {})}
        networks = NETWORKS[size]
        if self.growth is None:
            meant = {
                name: one for name, one in networks.items() if name in self.networks and (not only or name in only)
            }
            return [Case(self.name, name, network, settings) for name, network in meant.items()]
        what, values = self.growth
        small = NETWORKS["tiny" if size == "tiny" else "cpu"]["mlp"]
        if only and "mlp" not in only:
            return []
        found = []
        for value in values[size]:
            inside = what in settings
            network = small if inside else replace(small, **{what: value})
            found.append(
                Case(self.name, f"{what} {value:,}", network, {**settings, what: value} if inside else settings, value)
            )
        return found


PRODUCTS: dict[str, Tool] = {
    "landscope": ours.product,
    "curvlinops": peers.curvlinops_product,
    "pyhessian": peers.pyhessian_product,
    "hessian-eigenthings": peers.eigenthings_product,
    "by hand": by_hand.product,
}
TOP_EIGENVALUES: dict[str, Tool] = {
    "landscope": ours.top_eigenvalue,
    "curvlinops": peers.curvlinops_top_eigenvalue,
    "pyhessian": peers.pyhessian_top_eigenvalue,
    "hessian-eigenthings": peers.eigenthings_top_eigenvalue,
}
TRACES: dict[str, Tool] = {
    "landscope": ours.hessian_trace,
    "curvlinops": peers.curvlinops_trace,
    "pyhessian": peers.pyhessian_trace,
    "hessian-eigenthings": peers.eigenthings_trace,
}
DENSITIES: dict[str, Tool] = {
    "landscope": ours.density,
    "curvlinops": peers.curvlinops_density,
    "pyhessian": peers.pyhessian_density,
    "hessian-eigenthings": peers.eigenthings_density,
}
GGN_TRACES: dict[str, Tool] = {
    "landscope": ours.ggn_trace,
    "curvlinops": peers.curvlinops_ggn_trace,
    "hessian-eigenthings": peers.eigenthings_ggn_trace,
}

ROWS: tuple[Row, ...] = (
    Row("gradient", "one gradient over all samples: the unit", {"by hand": by_hand.gradient}, truth.GRADIENT),
    Row("product", "Hessian times one vector", PRODUCTS, truth.PRODUCT, headline=True),
    Row(
        "product_block",
        "Hessian times eight vectors",
        {name: PRODUCTS[name] for name in ("landscope", "curvlinops", "by hand")},
        truth.PRODUCT,
        settings={"columns": 8},
    ),
    Row("lambda1_1e-2", "λ₁ to 1 %", TOP_EIGENVALUES, truth.TOP_EIGENVALUE, settings={"tol": 1e-2}),
    Row(
        "lambda1_1e-3",
        "λ₁ to 0.1 %",
        TOP_EIGENVALUES,
        truth.TOP_EIGENVALUE,
        settings={"tol": 1e-3},
        networks=(*EVERY, "resnet18_50k"),
        headline=True,
    ),
    Row("trace_2e-2", "tr H to 2 %", TRACES, truth.TRACE, settings={"tol": 2e-2}, headline=True),
    Row(
        "trace_1e-2",
        "tr H to 1 %",
        TRACES,
        truth.TRACE,
        settings={"tol": 1e-2},
        networks=(*EVERY, "resnet18_50k"),
    ),
    Row(
        "density",
        "spectral density, 64 Lanczos steps × 4 probes",
        DENSITIES,
        truth.SPECTRUM,
        error=between_spectra,
        settings={"steps": 64, "probes": 4},
        networks=SMALL,
        headline=True,
    ),
    Row("ggn_trace", "tr of the Gauss–Newton matrix to 2 %", GGN_TRACES, truth.GGN_TRACE, settings={"tol": 2e-2}),
    Row(
        "fisher_trace",
        "tr of the Fisher matrix to 2 %",
        {**GGN_TRACES, "landscope": ours.fisher_trace},
        truth.GGN_TRACE,
        settings={"tol": 2e-2},
    ),
    Row(
        "relative_flatness",
        "relative flatness of the classifier",
        {"landscope": ours.relative_flatness, "by hand": by_hand.relative_flatness},
        truth.RELATIVE_FLATNESS,
    ),
    Row(
        "igs",
        "information-geometric sharpness of 32 samples at rank 5",
        {"landscope": ours.igs, "by hand": by_hand.igs_by_power_iteration},
        truth.IGS,
        settings={"rank": 5, "samples": 32},
        tiny={"rank": 2, "samples": 8},
    ),
    Row(
        "fisher_rao",
        "Fisher–Rao norm",
        {
            "landscope": ours.fisher_rao,
            "curvlinops": peers.curvlinops_fisher_rao,
            "hessian-eigenthings": peers.eigenthings_fisher_rao,
            "by hand": by_hand.fisher_rao,
        },
        truth.FISHER_RAO,
    ),
    Row(
        "adaptive_sharpness",
        "adaptive sharpness, 20 ascent steps on all samples",
        {"landscope": ours.adaptive_sharpness, "by hand": by_hand.adaptive_sharpness},
        truth.LARGEST_FOUND,
        error=shortfall,
        settings={"rho": 0.5, "steps": 20},
    ),
    Row(
        "plane",
        "loss on a plane of 51 × 51 points",
        {"landscope": ours.plane, "loss-landscapes": peers.loss_landscapes_plane, "by hand": by_hand.plane},
        truth.PLANE,
        error=of_the_range,
        settings={"points": 51},
        tiny={"points": 5},
        networks=SMALL,
        headline=True,
    ),
    Row(
        "ece",
        "expected calibration error of given logits",
        {"landscope": ours.ece, "torchmetrics": peers.torchmetrics_ece, "by hand": by_hand.ece},
        truth.ECE,
    ),
    Row(
        "sam",
        "ten SAM steps",
        {
            "landscope": ours.sam_steps,
            "pytorch_optimizer": peers.pytorch_optimizer_sam_steps,
            "by hand": by_hand.sam_steps,
        },
        truth.SAM,
        error=of_the_move,
        settings={"steps": 10},
        tiny={"steps": 2},
    ),
    Row(
        "fam",
        "ten FAM steps on the classifier",
        {"landscope": ours.fam_steps, "by hand": by_hand.fam_steps},
        truth.FAM,
        error=of_the_move,
        settings={"steps": 10, "strength": 0.01},
        tiny={"steps": 2},
    ),
    Row(
        "pool",
        "50 small networks, 100 full-batch steps each",
        {"landscope": ours.pool, "by hand": by_hand.pool},
        truth.POOL,
        settings={"members": 50, "epochs": 100},
        tiny={"members": 2, "epochs": 3},
        networks=("mlp", "resnet18"),
    ),
    *(
        Row(
            f"everything_{seconds}s",
            f"every measure in {seconds} s; the answer is how many have a value",
            {"landscope": ours.everything},
            truth.NONE,
            settings={"seconds": seconds},
            tiny={"seconds": 1},
        )
        for seconds in (1, 3, 10, 30, 60)
    ),
    Row(
        "two_processes",
        "tr H to 2 % by one process, and by two with half of the samples each",
        {"landscope": ours.hessian_trace, "landscope, two processes": ours.two_processes},
        truth.TRACE,
        settings={"tol": 2e-2},
        networks=("mlp", "transformer", "resnet20"),
        warm_up=False,
    ),
    Row(
        "growth_parameters",
        "growth of a product with the width of an MLP",
        PRODUCTS,
        truth.PRODUCT,
        growth=("width", {"tiny": (4, 8), "cpu": (32, 128, 512), "gpu": (512, 2048, 8192)}),
    ),
    Row(
        "growth_samples",
        "growth of a product with the samples",
        PRODUCTS,
        truth.PRODUCT,
        growth=("samples", {"tiny": (40, 80), "cpu": (500, 2000, 8000), "gpu": (2000, 20_000, 200_000)}),
    ),
    Row(
        "growth_classes",
        "growth of tr GGN to 2 % with the classes",
        GGN_TRACES,
        truth.GGN_TRACE,
        settings={"tol": 2e-2},
        growth=("classes", {"tiny": (3, 6), "cpu": (10, 30, 100), "gpu": (10, 100, 1000)}),
    ),
    Row(
        "growth_steps",
        "growth of a spectral density of one probe with its Lanczos steps",
        DENSITIES,
        truth.SPECTRUM,
        error=between_spectra,
        settings={"steps": 16, "probes": 1},
        growth=("steps", {"tiny": (4, 8), "cpu": (16, 64, 256), "gpu": (16, 64, 256)}),
    ),
)


def find(names: tuple[str, ...] = ()) -> list[Row]:
    """Rows by name, all by default; an unknown name is an error that lists the known ones."""
    known = {row.name: row for row in ROWS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"unknown row {unknown[0]!r}; rows: {', '.join(known)}")
    return [known[name] for name in names] if names else list(ROWS)
