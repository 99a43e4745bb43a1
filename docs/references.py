"""Networks that a value can be set against: `src/landscope/measures/reading/references.json`, from records of our studies.

    python docs/references.py                                   # what would be written, in a table
    python docs/references.py --write                           # write it
    cd docs/references && landscope study run fashion-mlp.yaml  # train and measure the networks of a kind again
    python docs/references.py --keep docs/references/studies/fashion-mlp   # keep their records beside the study's file

A kind is one or more parts of a paper in `results/`, or a study in `docs/references/`, whose networks are alike; its last weights
are taken, as they were measured on training rows. Numbers are kept to four digits.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from landscope.measures.reading.references import FILE
from landscope.specs.schema import to_plain

HERE = Path(__file__).parent
ROOT = HERE.parent
MOST = 120
"""Networks of a kind that are kept, evenly from all of them."""
DIGITS = 4
ACCURACY_SETTINGS = ("seed", "tol", "max_matvecs", "max_probes")
"""Settings that change how well a value is known, and not which value it is."""
ENVIRONMENT = ("landscope", "python", "torch", "processor", "device", "threads")
MEASURES = (
    *("hessian_top_eigenvalue", "hessian_trace", "ggn_trace", "sam_sharpness", "average_sharpness"),
    *("fisher_rao", "relative_flatness", "relative_flatness_layerwise", "gradient_norm", "gradient_noise"),
)


@dataclass(frozen=True)
class Source:
    """Where the networks of a kind are, and what they are."""

    title: str
    architecture: str
    outputs: int
    parts: tuple[str, ...]
    without: tuple[str, ...] = field(default=())
    """Conditions that are left out."""


SOURCES = (
    Source("MLPs on scikit-learn's digits", "fully connected", 10, ("does-sharpness-predict/digits",)),
    Source(
        "MLPs on two circles",
        "fully connected",
        2,
        ("function-centric/circles",),
        without=("random labels", "random labels, longer"),
    ),
    Source("MLPs on Abalone", "fully connected", 1, ("adaptive-sharpness/fcnn",)),
    Source("graph attention networks on Cora", "graph", 7, ("adaptive-sharpness/gat",)),
    Source("LeNet-5 on Fashion-MNIST", "convolutional with BatchNorm", 10, ("adaptive-sharpness/lenet5",)),
    Source(
        "small ResNets on Fashion-MNIST", "convolutional with BatchNorm", 10, ("does-sharpness-predict/fashion-mnist",)
    ),
    Source("ResNet-18 on CIFAR-10", "convolutional with BatchNorm", 10, ("fam/cifar10", "fam/cifar10-tenth")),
    Source("narrow ResNet-18 on CIFAR-10", "convolutional with BatchNorm", 10, ("function-centric/images",)),
    Source("MiniLM fine-tuned on RTE", "transformer", 2, ("fam/rte",)),
    Source("MLPs on Fashion-MNIST", "fully connected", 10, ("references/fashion-mlp",)),
    Source("plain convolutional networks on Fashion-MNIST", "convolutional", 10, ("references/fashion-cnn",)),
    Source("MLPs of several sizes on Abalone", "fully connected", 1, ("references/abalone-mlp",)),
)


def made() -> list[dict[str, Any]]:
    """The kinds, as they are written."""
    return [_kind(source) for source in SOURCES]


def _kind(source: Source) -> dict[str, Any]:
    reports = []
    for part in source.parts:
        home = HERE if part.startswith("references/") else ROOT / "results"
        bundle = json.loads(gzip.decompress((home / f"{part}.json.gz").read_bytes()))
        for record in bundle["records"]:
            if record["condition"] not in source.without:
                reports += [
                    subject["reports"]["train"]
                    for subject in record["subjects"]
                    if subject["checkpoint"] == "final" and subject["temperature"] == 1.0
                ]
    kept = [reports[len(reports) * place // min(MOST, len(reports))] for place in range(min(MOST, len(reports)))]
    first, found = kept[0], [report["estimates"] for report in kept]
    names = [name for name in MEASURES if all(name in estimates for estimates in found)]
    return {
        "title": source.title,
        "architecture": source.architecture,
        "outputs": source.outputs,
        "loss": first["about"]["loss"],
        "source": ", ".join(source.parts),
        "samples": _count(first["about"]["samples"]),
        "parameters": [_count(report["about"]["parameters"]) for report in kept],
        "losses": [_rounded(estimates["loss"]["value"]) for estimates in found],
        "settings": {name: _settings(found[0][name]["settings"]) for name in names},
        "values": {name: [_rounded(estimates[name]["value"]) for estimates in found] for name in names},
    }


def keep(folder: Path) -> Path:
    """Write the records of a study beside its file, without what no kind needs."""
    from landscope.studies.study import Study

    study = Study.open(folder)
    records = [_kept(record.to_dict()) for record in study.records()]
    target = HERE / "references" / f"{study.spec.name}.json.gz"
    plain = json.dumps({"spec": to_plain(study.spec), "records": records}, sort_keys=True)
    target.write_bytes(gzip.compress(plain.encode(), mtime=0))
    return target


def _kept(record: dict[str, Any]) -> dict[str, Any]:
    subjects = [
        {
            "checkpoint": subject["checkpoint"],
            "temperature": subject["temperature"],
            "reports": {"train": _bare(subject["reports"]["train"])},
        }
        for subject in record["subjects"]
    ]
    environment = {key: value for key, value in record["environment"].items() if key in ENVIRONMENT}
    kept = {key: record[key] for key in ("run", "condition", "axes", "seed", "seconds")}
    return {**kept, "environment": environment, "subjects": subjects}


def _bare(report: dict[str, Any]) -> dict[str, Any]:
    """What a kind needs of a report, without what else an estimate carries."""
    estimates = {
        name: {key: estimate[key] for key in ("value", "stderr", "data_stderr", "status", "settings")}
        for name, estimate in report["estimates"].items()
        if name in (*MEASURES, "loss")
    }
    return {"about": report["about"], "estimates": estimates}


def _settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in ACCURACY_SETTINGS}


def _count(words: str) -> int:
    return int(words.split()[0].replace(",", ""))


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def written() -> str:
    """The file's text, a line for every entry of a kind."""
    kinds = [",\n  ".join(f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in kind.items()) for kind in made()]
    return "[\n" + ",\n".join(f" {{\n  {kind}\n }}" for kind in kinds) + "\n]\n"


def main() -> None:
    """Show the kinds, or write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the file")
    parser.add_argument("--keep", type=Path, metavar="STUDY", help="keep the records of a study in docs/references")
    given = parser.parse_args()
    if given.keep:
        sys.stdout.write(f"{keep(given.keep)}\n")
        return
    if given.write:
        Path(str(FILE)).write_text(written(), encoding="utf-8")
    for kind in made():
        sizes = sorted(set(kind["parameters"]))
        sys.stdout.write(
            f"{kind['title']}: {len(kind['losses'])} networks, parameters {sizes}, {', '.join(kind['values'])}" + "\n"
        )


if __name__ == "__main__":
    main()
