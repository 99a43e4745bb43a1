"""RESULTS.md and the reports of the recipes, made from kept records and nothing else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

import pandas as pd

from landscope.recipes.bundle import Bundle, save_bundle
from landscope.recipes.comparing import compare
from landscope.recipes.kept import Kept, kept_parts
from landscope.recipes.recipe import FAILED, RECIPES, Claim, Recipe, Size
from landscope.recipes.results_text import is_whole, part_of, results_text
from landscope.report.page.blocks import Claim as ShownClaim
from landscope.report.write import options_of, write_report
from landscope.studies.record import wide_table
from landscope.studies.study import Study

__all__ = ["finish_part", "results_page", "write_results"]

Reports: TypeAlias = Literal["none", "light", "full"]


def finish_part(
    recipe: Recipe, part: str, size: Size, study: Study, folder: Path, *, light: bool = False
) -> list[Path]:
    """After the runs of a part, or those that were done before it was stopped: its records in one file, and its report."""
    bundle = Bundle(recipe.name, part, size, study.spec, tuple(study.records()), tuple(study.failures()))
    kept = save_bundle(bundle, folder / f"{part}.json.gz")
    return [kept, _report(bundle, _claims(recipe, {part: bundle}), folder / f"{part}.html", light=light)]


def write_results(folder: Path, page: Path, *, reports: Reports = "none") -> list[Path]:
    """The page of results, and the report of every part beside its records: small ("light") or with all that a script can do."""
    found = kept_parts(folder)
    claims = _all_claims(found)
    page.write_text(results_text(found, claims, folder, page.parent), encoding="utf-8")
    made = [page]
    if reports != "none":
        for recipe, parts in found.items():
            light = reports == "light"
            for name, kept in parts.items():
                own = [claim for claim in claims[recipe] if claim.part in ("", name)]
                made.append(_report(kept.bundle, own, kept.report, light=light))
    return made


def results_page(folder: Path) -> str:
    """The text of the page that goes beside a folder of records."""
    found = kept_parts(folder)
    return results_text(found, _all_claims(found), folder, folder.parent)


def _all_claims(found: Mapping[str, Mapping[str, Kept]]) -> dict[str, Sequence[Claim]]:
    return {
        recipe: _claims(RECIPES[recipe], {name: kept.bundle for name, kept in parts.items()})
        for recipe, parts in found.items()
    }


def _claims(recipe: Recipe, bundles: Mapping[str, Bundle]) -> Sequence[Claim]:
    """What the recipe says of these records by their names, size by size: a part is never set against one of another size."""
    sizes: dict[str, dict[str, pd.DataFrame]] = defaultdict(dict)
    names: dict[tuple[str, str], str] = {}
    for name, bundle in bundles.items():
        table = wide_table(bundle.records)
        table.attrs[FAILED] = Counter(failure.condition for failure in bundle.failed)
        sizes[bundle.size][bundle.part] = table
        names[bundle.part, bundle.size] = name
    said: list[Claim] = []
    for size, tables in sizes.items():
        for claim in recipe.claims(tables):
            if claim.part in tables:
                name = names[claim.part, size]
                reduced = "" if is_whole(bundles[name]) else f" (size {size})"
                said.append(replace(claim, text=f"{claim.text}{reduced}", part=name))
            elif not claim.part:
                said.append(claim)
    return said


def _report(bundle: Bundle, claims: Sequence[Claim], path: Path, *, light: bool = False) -> Path:
    """The report of a part, with the claims that are of it or of all parts."""
    options = replace(
        options_of(bundle.spec, bundle.records),
        compared=compare(RECIPES[bundle.recipe], part_of(bundle), bundle.records),
        claims=[ShownClaim(claim.text, claim.verdict, claim.why, claim.records) for claim in claims],
        failed=bundle.failed,
        static=light,
    )
    return write_report(bundle.records, path, options)
