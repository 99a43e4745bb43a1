"""What the words of a page mean: shown under the pointer wherever one stands, and listed at the end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from markupsafe import Markup, escape

from landscope.measures.base import Measure
from landscope.measures.facts import Family
from landscope.report.data.columns import Column

UNBROKEN = re.compile(r"(?<=×) (?=\d)|(?<=\d) (?=%)")

STATISTICS: Mapping[str, str] = MappingProxyType(
    {
        "Kendall's τ": "How far two columns order the models alike: the share of pairs of models in the same order less the "
        "share in the opposite one. 1: the same order, −1: the reverse, 0: no relation.",
        "Spearman's ρ": "The correlation of ranks: 1 for the same order, −1 for the reverse.",
        "95% interval": "A range made by a rule that holds the true value in 95 of 100 studies like this one.",
        "Simpson's paradox": "A relation over all models that is turned around among models trained alike: the conditions "
        "differ in both columns, and the models do not.",
        "Welch's t-test": "Whether two groups of runs differ in their mean, with a spread of their own each.",
        "Holm": "Adjusts for many tests: the smallest p must be below 5 % over their number, the next below 5 % over one "
        "less, and so on; the chance of any false alarm stays below 5 %.",
        "Benjamini–Yekutieli": "Adjusts p-values for many tests, however they depend on each other: of what is called "
        "significant, at most 5 % are expected to be false alarms.",
        "geometric mean": "The exponential of the mean logarithm: right for numbers that differ by factors.",
        "temperature scaling": "Dividing all logits by one number fitted on held-out rows, so that confidence fits accuracy.",
        "filter norms": "Random directions whose every filter is as long as that of the weights: a step of 1 is as large as "
        "the weights themselves.",
    }
)
"""Words of statistics and of figures."""


def meanings(columns: Iterable[str]) -> dict[str, str]:
    """The titles of the measures behind columns, with what their classes say they are.

    >>> meanings(["train.gradient_norm", "test.mine"])["gradient norm"]
    'How steep the loss is, ‖∇L‖₂ over all data, zero at a minimum; one gradient, and two forward passes for its error bar.'
    """
    found: dict[str, str] = {}
    for column in columns:
        facts = Column.of(column).facts
        if not (isinstance(facts, type) and issubclass(facts, Measure) and facts.__doc__):
            continue
        if facts.family is not Family.FIT:  # error and loss are everybody's words
            found[facts.title] = " ".join(facts.__doc__.strip().split("\n\n")[0].replace("`", "").split())
    return found


def glossed(terms: Mapping[str, str]) -> Callable[[str], Markup]:
    r"""A filter for templates: escaped text, in which the first place of each term shows its meaning under the pointer.

    Lines do not break between a number and its sign.

    >>> glossed({"ECE": "how far off"})("ECE <b> & ECE")
    Markup('<abbr title="how far off">ECE</abbr> &lt;b&gt; &amp; ECE')
    >>> glossed({})("× 3.7, +85 %")
    Markup('×\xa03.7, +85\xa0%')
    """
    ordered = sorted(terms, key=len, reverse=True)
    pattern = (
        re.compile(rf"(?<!\w)({'|'.join(re.escape(str(escape(term))) for term in ordered)})(?!\w)") if ordered else None
    )
    titles = {str(escape(term)): escape(meaning) for term, meaning in terms.items()}

    def gloss(text: str) -> Markup:
        text = UNBROKEN.sub("\N{NO-BREAK SPACE}", text)
        if pattern is None:
            return escape(text)
        seen: set[str] = set()

        def replaced(match: re.Match[str]) -> str:
            term = match[1]
            if term in seen:
                return term
            seen.add(term)
            return f'<abbr title="{titles[term]}">{term}</abbr>'

        return Markup(pattern.sub(replaced, str(escape(text))))

    return gloss
