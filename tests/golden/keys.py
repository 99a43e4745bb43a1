"""How runs are recognised: keys of the recipes' runs, kept bundles that a study takes over, the store of an old version."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from golden import where
from golden.stored import Values, digest, read

__all__ = ["SIZES", "kept_bundles", "legacy_run_keys", "old_study", "run_keys"]

ROOT = Path(__file__).parent.parent.parent
OLD_STUDY = Path(__file__).parent / "old_study.json"
"""The text files of a study's folder, as version 0.1.0 left it: what users have on their disks, so never make it again."""
SIZES = ("tiny", "small", "paper")
VERSIONS = {"landscope": "0.1.0", "data": "some version"}


def run_keys(sizes: Iterable[str] = SIZES) -> Values:
    """Recipe, size, part, condition → keys of its runs in the order of seeds, for data of a made-up version."""
    return _keys(sizes, where.run_key)


def legacy_run_keys(sizes: Iterable[str] = SIZES) -> Values:
    """The same for the keys of version 0.1.0: of the keys that a run could have had, the one that is kept.

    Parts and conditions that were added later never had such a key, and are left out; one that is gone is missing here. What a
    paper's code computed was asked for in another way then: such runs are found through their bundles (`kept_bundles`), and
    keep the keys that are kept.
    """
    places = read("legacy-keys")[1]
    kept = {key for keys in places.values() for key in keys}  # type: ignore[attr-defined]

    def key_of(spec: Mapping[str, Any]) -> str:
        found = where.legacy_keys(spec)
        return next((key for key in found if key in kept), found[0])

    found = {place: keys for place, keys in _keys(sizes, key_of).items() if place in places}
    return {place: keys if kept.intersection(keys) else places[place] for place, keys in found.items()}


def _keys(sizes: Iterable[str], key_of: Callable[[Mapping[str, Any]], str]) -> Values:
    found: dict[str, list[str]] = {}
    for name in where.PAPERS:
        for size in sizes:
            for part, of in where.PAPERS[name].parts(size).items():
                for run in where.runs_of(of.study, versions=VERSIONS):
                    place = f"{name} {size} {part} | {run.condition}"
                    found.setdefault(place, []).append(key_of(run.plain))
    return dict(found)


def kept_bundles() -> Values:
    """Bundle → its runs, their keys, and how many of them the recipe's study of today takes for its own."""
    found: Values = {}
    for path in sorted((ROOT / "results").glob("*/*.json.gz")):
        bundle = where.load_bundle(path)
        with tempfile.TemporaryDirectory() as root:
            study = where.study_as_kept(where.part_of(bundle).study, Path(root), bundle)
            taken = where.take_over(study, bundle)
        found[f"{path.parent.name}/{path.name}"] = {
            "size": bundle.size,
            "records": len(bundle.records),
            "failed": len(bundle.failed),
            "keys": digest([record.run for record in bundle.records]),
            "runs today": len(study.runs),
            "taken over": [taken.done, taken.failed],
        }
    return found


def old_study() -> Values:
    """What a study of an old version shows when it is opened, and when its own spec is asked for again."""
    content = json.loads(OLD_STUDY.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as root:
        for name, text in content.items():
            path = Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        opened = where.Study.open(root)
        again = where.Study.of(json.loads(content["study.json"])["spec"], root)
        found: Values = {
            "opened": {"done": opened.progress().done, "of": len(opened.runs)},
            "asked for again": {"done": again.progress().done, "of": len(again.runs)},
        }
        for row in opened.table().to_dict("records"):
            found[f"{row['condition']} · seed {row['seed']}"] = {name: _plain(value) for name, value in row.items()}
    return found


def _plain(value: object) -> object:
    return None if value != value else getattr(value, "item", lambda: value)()
