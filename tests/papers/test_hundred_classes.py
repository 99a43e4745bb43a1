"""Parts of a hundred classes run on CIFAR-100 itself where it is at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from landscope.papers import PAPERS, load_bundle, on_cifar100, write_results
from landscope.papers.framework.paper import HUNDRED_CLASSES
from landscope.papers.framework.records import save_bundle
from landscope.studies.grid import runs_of

ROOT = Path(__file__).parent.parent.parent
OF_A_HUNDRED = {
    "explicit-regularisation": ["classes100", "classes100-seeds"],
    "fam": ["classes100"],
    "false-friend": [
        *("cnn", "preresnet164", "wideresnet28x10", "vgg16bn"),
        *("preresnet164-eval", "wideresnet28x10-eval", "vgg16bn-eval"),
    ],
    "function-centric": ["images-100"],
}


@pytest.mark.parametrize("name", list(PAPERS))
def test_every_part_of_a_hundred_classes_has_a_twin(name: str) -> None:
    parts = PAPERS[name].parts("paper")
    twins = {label: moved for label, part in parts.items() if (moved := on_cifar100(part))}
    assert sorted(twins) == sorted(OF_A_HUNDRED.get(name, []))
    for label, twin in twins.items():
        assert HUNDRED_CLASSES in parts[label].note
        assert "CIFAR-100, which is not available here" in parts[label].note
        assert HUNDRED_CLASSES not in twin.note
        assert "is not available here" not in twin.note
        assert on_cifar100(twin) is None
        runs, others = runs_of(twin.study), runs_of(parts[label].study)
        assert len(runs) == len(others)
        for run, other in zip(runs, others, strict=True):
            assert run.training is not None
            assert other.training is not None
            assert run.training.data.name == "cifar100"
            assert replace(run.training, data=other.training.data) == other.training


def test_the_appendix_does_not_call_it_a_stand_in(tmp_path: Path) -> None:
    def appendix() -> str:
        write_results(tmp_path / "results", tmp_path / "RESULTS.md")
        return (tmp_path / "results" / "explicit-regularisation.md").read_text(encoding="utf-8")

    bundle = load_bundle(ROOT / "results" / "explicit-regularisation" / "classes100.json.gz")
    path = tmp_path / "results" / "explicit-regularisation" / "classes100.json.gz"
    save_bundle(bundle, path)
    assert "stands for CIFAR-100" in appendix()
    training = {**(bundle.spec.training or {}), "data": "cifar100"}
    save_bundle(replace(bundle, spec=replace(bundle.spec, training=training)), path)
    assert "stands for CIFAR-100" not in appendix()
