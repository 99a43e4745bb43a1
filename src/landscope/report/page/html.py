"""The template filled in: one file with its style, its data and its scripts, which lets nothing else run and asks for nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment
from markupsafe import Markup

from landscope.core.json import Plain
from landscope.report.page.blocks import Section
from landscope.report.page.embedding import content_hash, embedded_json
from landscope.report.page.glossary import glossed
from landscope.report.page.style import colour

SCRIPTS = (
    *("data", "theme", "look", "scatter", "forest", "landscape"),
    *("drawing", "linking", "legend", "models", "files", "begin"),
)
"""Parts of the page's script, in this order."""


@dataclass(frozen=True)
class Masthead:
    """What stands above the sections, and in the head of the file."""

    title: str
    question: str | None
    kicker: str
    """How much it is made of, in a line."""
    answer: str = ""
    """What the page says first, for those who read its head alone."""
    mark: str = ""
    """A word by which the page is recognised."""


def rendered(
    masthead: Masthead,
    sections: Sequence[Section],
    terms: Mapping[str, str],
    data: Mapping[str, Plain] | None = None,
    plotly: str = "",
) -> str:
    """The page; without `data` it has no script."""
    from landscope import __version__

    parts = resources.files("landscope.report") / "assets"

    def read(name: str) -> str:
        return (parts / name).read_text(encoding="utf-8")

    script, allowed = "", ""
    if data is not None:
        script = '"use strict";\n(() => {\n' + "\n".join(read(f"{name}.js") for name in SCRIPTS) + "})();\n"
        allowed = f"script-src {content_hash(script)} {content_hash(plotly)}; "
    policy = (
        f"default-src 'none'; {allowed}style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["gloss"] = glossed(terms)
    return environment.from_string(read("page.html")).render(
        title=masthead.title,
        question=masthead.question,
        kicker=masthead.kicker,
        mark=masthead.mark,
        answer=masthead.answer,
        sections=sections,
        policy=policy,
        colour=colour,
        version=__version__,
        style=Markup(read("page.css")),
        data=None if data is None else Markup(embedded_json(data)),
        plotly=Markup(plotly),
        script=Markup(script),
    )
