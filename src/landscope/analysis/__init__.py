"""Correlations, tests and tables: numbers in, numbers out. NumPy, SciPy and pandas only.

    correlate             every measure against every outcome: what a study's report asks for
    correlation           Kendall's τ-b, Spearman's ρ, Pearson's r: value, interval, p-value
    partial_correlation   the same, given other columns such as the training loss
    granulated_kendall    ψ and Ψ: one hyper-parameter changed at a time
    simpson               overall, inside conditions, between them
    wilcoxon              a condition against its baseline
    benjamini_yekutieli   p-values adjusted for many tests
    models_needed         how many models would show a τ;  smallest_significant: what a number of them can show
    summary_table         mean ± spread as the papers print it

Nothing here returns NaN: a quantity that is not defined is None, with the reason.
"""

from landscope.analysis.coefficients import smallest_significant
from landscope.analysis.correlate import CorrelationTable, correlate
from landscope.analysis.correlation import Correlation, correlation
from landscope.analysis.findings import (
    Finding,
    Rules,
    adjust,
    benjamini_hochberg,
    benjamini_yekutieli,
    chance_to_find,
    models_needed,
)
from landscope.analysis.groups import Granulated, Simpson, granulated_kendall, simpson
from landscope.analysis.partial import partial_correlation
from landscope.analysis.rank_tests import RankTest, wilcoxon
from landscope.analysis.tables import SummaryTable, summary_table

__all__ = [
    "Correlation",
    "CorrelationTable",
    "Finding",
    "Granulated",
    "RankTest",
    "Rules",
    "Simpson",
    "SummaryTable",
    "adjust",
    "benjamini_hochberg",
    "benjamini_yekutieli",
    "chance_to_find",
    "correlate",
    "correlation",
    "granulated_kendall",
    "models_needed",
    "partial_correlation",
    "simpson",
    "smallest_significant",
    "summary_table",
    "wilcoxon",
]
