"""What holds between conditions and inside them: the table, its slopes, and what is said where nothing is known."""

from __future__ import annotations

import numpy as np
from scipy import stats

from landscope.core.estimate import Estimate
from landscope.measures import Report
from landscope.report.data.associations import associate
from landscope.report.data.cohorts import Cohorts
from landscope.report.page.blocks import Prose, Section, Table
from landscope.report.sections.within_between import within_between_section
from landscope.studies.record import MeasuredModel, Record


def section(conditions: int, runs: int, *, offset: float = 0.0) -> tuple[Section, np.ndarray, np.ndarray]:
    """The outcome rises with the measure between conditions by 0.1 per doubling, and falls inside them by 0.05."""
    rng = np.random.default_rng(0)
    level, own = np.repeat(np.arange(conditions), runs), rng.normal(scale=0.2, size=conditions * runs)
    x = 2.0 ** (level + own) - offset
    y = 1 + 0.1 * level - 0.05 * own + 0.001 * rng.normal(size=len(level))
    records = [
        Record(
            run=f"r{i}",
            condition=f"c{level[i]}",
            axes={},
            seed=i,
            spec={},
            subjects=(
                MeasuredModel(
                    checkpoint="final",
                    reports={"train": Report({"m": Estimate(x[i])}), "test": Report({"error": Estimate(y[i])})},
                ),
            ),
        )
        for i in range(len(level))
    ]
    study = Cohorts.of(records, outcomes=["test.error"])
    return within_between_section(study, associate(study, study.main)), x, y


def row(found: Section) -> list[str]:
    (table,) = (block for block in found.blocks if isinstance(block, Table))
    return [cell.text for cell in table.rows[0]]


def test_a_sign_that_turns_is_marked_and_slopes_are_per_doubling() -> None:
    found, x, y = section(8, 5)
    (table,) = (block for block in found.blocks if isinstance(block, Table))
    names, between, inside, across, within = row(found)[0], *row(found)[2:]
    assert (names, between) == ("m", "1.00*")
    assert inside.startswith("−")
    assert table.rows[0][3].mark == "bad"
    means = [np.reshape(column, (8, 5)).mean(axis=1) for column in (np.log2(x), y)]
    assert float(across.split(" ")[0]) == float(f"{stats.linregress(*means).slope:.2g}")
    assert within.startswith("−0.05")
    assert found.so_what.startswith("In 1 of these 1 pairs the sign turns inside conditions")


def test_a_measure_of_either_sign_has_a_slope_per_unit() -> None:
    assert row(section(8, 5, offset=10.0)[0])[4].endswith("] per unit")


def test_one_model_each_says_nothing_about_the_inside() -> None:
    (block,) = section(8, 1)[0].blocks
    assert isinstance(block, Prose)
    assert block.text == "Nothing is known inside conditions: each has one model. More seeds per condition would help."
