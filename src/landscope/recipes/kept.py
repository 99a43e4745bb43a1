"""Which files of a folder hold the records of which part.

Records are kept as RECIPE/PART.json.gz, and left by `landscope recipe run` as recipes/NAME-SIZE/PART.json.gz: both are found,
from the folder above or from the one that the files lie in. Where two sizes of a part are kept side by side, the smaller one is
PART-SIZE.json.gz. Whose records they are is read from the file itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from landscope.core.errors import SpecError, UnknownNameError
from landscope.recipes.bundle import Bundle, load_bundle
from landscope.recipes.recipe import RECIPES, Size

__all__ = ["LAYOUT", "Kept", "kept_parts", "kept_records"]

ENDING = ".json.gz"
LAYOUT = f"RECIPE/PART{ENDING}"
"""How records are kept, in words for messages."""


@dataclass(frozen=True)
class Kept:
    """Records, and the file that they are in."""

    path: Path
    bundle: Bundle

    @property
    def report(self) -> Path:
        """Where the report of these records goes."""
        return self.path.with_name(f"{self.path.name.removesuffix(ENDING)}.html")


def kept_parts(folder: Path) -> dict[str, dict[str, Kept]]:
    """Recipe → name → records, from a folder that has some; none twice.

    The name is that of the part; where a part is there in several sizes, of the largest, and the others are PART-SIZE.
    """
    sizes: dict[tuple[str, str], dict[str, Kept]] = defaultdict(dict)
    for kept in _loaded(folder, "*"):
        _check(kept)
        bundle = kept.bundle
        same = sizes[bundle.recipe, bundle.part]
        if bundle.size in same:
            raise SpecError(_twice([same[bundle.size], kept], "name the folder of one of them, or move the other away"))
        same[bundle.size] = kept
    found: dict[str, dict[str, Kept]] = defaultdict(dict)
    for (recipe, part), same in sizes.items():
        first, *others = sorted(same, key=get_args(Size).index, reverse=True)
        found[recipe] |= {part: same[first], **{f"{part}-{size}": same[size] for size in others}}
    if not found:
        raise SpecError(
            f"{folder} has no records; they were expected there as {LAYOUT}, as `landscope recipe run` leaves them"
        )
    return dict(found)


def kept_records(folder: Path, recipe: str, parts: Iterable[str], size: Size) -> dict[str, Kept]:
    """The records of some parts of a recipe, of those that the folder has; where there are two, those of `size`."""
    found: dict[str, Kept] = {}
    wanted = list(parts)
    for part in wanted:
        loaded = [*_loaded(folder, part), *_loaded(folder, f"{part}-{size}")]
        some = [kept for kept in loaded if (kept.bundle.recipe, kept.bundle.part) == (recipe, part)]
        same = [kept for kept in some if kept.bundle.size == size] or some
        if len(same) > 1:
            raise SpecError(_twice(same, "name the folder of one of them"))
        if same:
            found[part] = same[0]
    if not found:
        raise SpecError(
            f"{folder} has no records of {recipe}, {' or '.join(wanted)}; they were expected there as {LAYOUT}. Name another "
            "folder, or start without kept records"
        )
    return found


def _loaded(folder: Path, part: str) -> list[Kept]:
    paths = sorted([*folder.glob(f"{part}{ENDING}"), *folder.glob(f"*/{part}{ENDING}")])
    return [Kept(path, load_bundle(path)) for path in paths]


def _check(kept: Kept) -> None:
    """Refuse records of a recipe, a size or a part that there is not."""
    bundle = kept.bundle
    try:
        recipe = RECIPES[bundle.recipe]
        if bundle.size not in get_args(Size):
            raise UnknownNameError.among("size", bundle.size, get_args(Size))
        parts = recipe.parts(bundle.size)  # type: ignore[arg-type]
        if bundle.part not in parts:
            raise UnknownNameError.among(f"part of {recipe.name} at size {bundle.size}", bundle.part, parts)
    except UnknownNameError as error:
        raise UnknownNameError(f"{kept.path}: {error}. Move the file away, or take the version that wrote it") from None


def _twice(both: list[Kept], remedy: str) -> str:
    first, second = (f"{kept.path} (size {kept.bundle.size})" for kept in both[:2])
    return f"{first} and {second} are records of the same part, {both[0].bundle.recipe} {both[0].bundle.part}; {remedy}"
