"""Correlations, tests and tables: numbers in, numbers out. NumPy, SciPy and pandas only.

    correlate             every measure against every outcome: what a study's report asks for
    correlation           Kendall's τ-b, Spearman's ρ, Pearson's r: value, interval, p-value
    partial_correlation   the same, given other columns such as the training loss
    granulated_kendall    ψ and Ψ: one hyper-parameter changed at a time
    between, partial_between, simpson, slopes   the condition is the unit: what holds between conditions and inside them
    learnt, fits          models that have not learnt are left out, and counted
    wilcoxon              a condition against its baseline
    benjamini_yekutieli   p-values adjusted for many tests
    difference, paired, log_ratio, mean, Order   effects, each with the one family of tests that gives its p and interval
    judge, judge_size, judge_all   one rule for verdicts on claims: replicates, excluded, undecided, explained, not tested
    models_needed, runs_needed     how many would show a planned effect;  smallest_significant: what a number of them can show
    summary_table         mean ± spread as the papers print it

Nothing here returns NaN: a quantity that is not defined is None, with the reason.
"""

from landscope.analysis.coefficients import smallest_significant
from landscope.analysis.conditions import Simpson, Slopes, between, condition_means, partial_between, simpson, slopes
from landscope.analysis.correlate import CorrelationTable, correlate
from landscope.analysis.correlation import Correlation, correlation
from landscope.analysis.effects import (
    Concordance,
    Effect,
    Mean,
    Order,
    Summary,
    difference,
    log_ratio,
    mean,
    paired,
)
from landscope.analysis.findings import Finding, Rules, adjust, benjamini_hochberg, benjamini_yekutieli
from landscope.analysis.granulated import Granulated, granulated_kendall
from landscope.analysis.inputs import Learnt, fits, guessing, learnt
from landscope.analysis.partial import partial_correlation
from landscope.analysis.power import chance_to_find, models_needed, runs_needed
from landscope.analysis.rank_tests import RankTest, wilcoxon
from landscope.analysis.tables import SummaryTable, summary_table
from landscope.analysis.verdicts import Judgement, Verdict, holm, judge, judge_all, judge_size, not_tested

__all__ = [
    "Concordance",
    "Correlation",
    "CorrelationTable",
    "Effect",
    "Finding",
    "Granulated",
    "Judgement",
    "Learnt",
    "Mean",
    "Order",
    "RankTest",
    "Rules",
    "Simpson",
    "Slopes",
    "Summary",
    "SummaryTable",
    "Verdict",
    "adjust",
    "benjamini_hochberg",
    "benjamini_yekutieli",
    "between",
    "chance_to_find",
    "condition_means",
    "correlate",
    "correlation",
    "difference",
    "fits",
    "granulated_kendall",
    "guessing",
    "holm",
    "judge",
    "judge_all",
    "judge_size",
    "learnt",
    "log_ratio",
    "mean",
    "models_needed",
    "not_tested",
    "paired",
    "partial_between",
    "partial_correlation",
    "runs_needed",
    "simpson",
    "slopes",
    "smallest_significant",
    "summary_table",
    "wilcoxon",
]
