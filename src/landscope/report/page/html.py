"""The page as one file with its style, data and scripts: it runs nothing else, and asks for nothing.

Nothing that a user wrote can end an element, and no number is one that JSON lacks.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources, util
from pathlib import Path

import numpy as np
import pandas as pd
from jinja2 import Environment
from markupsafe import Markup

from landscope.core.errors import MissingExtraError
from landscope.core.json import Plain
from landscope.report.page.blocks import Section
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


# Data and scripts inside HTML.


DIGITS = 6
"""Significant digits of the numbers behind the plots; the CSV files hold all of them."""


def finite(value: object) -> Plain:
    """The same in JSON's own types: NaN and infinities become null, numpy's numbers Python's, keys strings.

    >>> finite({"a": [1, float("nan"), np.float32(0.5)], 2: (True, np.int64(3))})
    {'a': [1, None, 0.5], '2': [True, 3]}
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (np.generic, np.ndarray, pd.Series)):
        return finite(value.tolist())
    if isinstance(value, Sequence):
        return [finite(item) for item in value]
    return str(value)


def rounded(values: object, digits: int = DIGITS) -> Plain:
    """Numbers to this many significant digits, those that are not finite as null.

    >>> rounded([0.123456789, float("inf"), 123456789.0])
    [0.123457, None, 123457000.0]
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim == 0:
        return finite(float(f"{float(numbers):.{digits}g}"))
    if numbers.ndim > 1:
        return [rounded(row, digits) for row in numbers]
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in numbers.tolist()]


def embedded_json(value: object) -> str:
    r"""JSON for a script element: "<", ">" and "&" are escaped, so that no text in it can end or open an element.

    >>> print(embedded_json({"name": "</script><script>"}))
    {"name":"\u003c/script\u003e\u003cscript\u003e"}
    """
    text = json.dumps(finite(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "replace").decode()  # lone surrogates have no UTF-8


def packed_csv(frame: pd.DataFrame) -> str:
    """The table as CSV, compressed, in letters; the browser unpacks it when it is asked for."""
    packed = gzip.compress(frame.to_csv(index=False).encode("utf-8", "replace"), mtime=0)
    return base64.b64encode(packed).decode("ascii")


def plot_text(text: str) -> str:
    """Text for Plotly, which reads a few HTML tags wherever text may stand; a new line is one of them.

    >>> plot_text('<a href="https://example.org">a & b</a>')
    '&lt;a href="https://example.org"&gt;a &amp; b&lt;/a&gt;'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", "<br>")


def content_hash(script: str) -> str:
    """What a content security policy calls this script by; no other script may then run in the page.

    >>> content_hash("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def plotly_script() -> str:
    """Plotly's JavaScript, from the Python package of that name (which need not be imported for it)."""
    found = util.find_spec("plotly")
    places = [] if found is None else list(found.submodule_search_locations or ())
    for place in places:
        script = Path(place) / "package_data" / "plotly.min.js"
        if script.is_file():
            # A parser of HTML must not find the end of the element in it, whatever version this is.
            return script.read_text(encoding="utf-8").replace("</script", "<\\/script").replace("<!--", "<\\!--")
    raise MissingExtraError.of("plotly", "report", "an HTML report")
