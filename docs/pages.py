"""What mkdocs gets beyond its settings: pages made from code and notebooks, and pages that lie elsewhere in the repository.

A page of this folder stands where it lies, and what its blocks of `python` print, return and draw stands below them. `ELSEWHERE`
are files outside of it, and where they stand on the site. Links are written as they work in the repository; on the site each
leads to where its file stands, or is plain text where it has no page.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

from commands import command_pages
from doctests import fenced
from notebooks import executed, with_outputs

import landscope
from landscope import MEASURES
from landscope.cli.failures import EXIT_CODES
from landscope.core import errors
from landscope.measures.base import Measure
from landscope.measures.facts import Family
from landscope.measures.reading.references import kinds
from landscope.report.page.glossary import STATISTICS, meanings

ROOT = Path(__file__).parent.parent
ELSEWHERE = {
    "README.md": "index.md",
    "RESULTS.md": "papers.md",
    "CHANGELOG.md": "changelog.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    **{
        path.relative_to(ROOT).as_posix(): f"papers/{path.name}"
        for path in sorted((ROOT / "results").iterdir())
        if path.suffix in (".md", ".svg")
    },
}
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
STANDS = {place: path for path, place in ELSEWHERE.items()}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
KEY = re.compile(r"`(\w+)`")
MADE = ("command-line.md", "errors.md", "glossary.md", "cite.md")
"""Pages that are made here whole."""
WITH_MEASURES = ("which.md", "measures.md")
"""Pages on which the key of a measure leads to its page."""
ROOMS = {
    "measures": "Measuring",
    "probe": "The probe",
    "core": "Estimates and errors",
    "curvature": "Matrices",
    "spectra": "Spectra",
    "planes": "Landscapes",
    "comparison": "Comparing",
    "training": "Training",
}
"""Rooms of the package that have public names, in the order of the reference."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The pages made from the code, in the navigation."""
    nav = {next(iter(part)): next(iter(part.values())) for part in config.nav or []}
    for family in Family:
        keys = [key for key in MEASURES if MEASURES[key].family is family]
        pages = [{MEASURES[key].title: f"measures/{key}.md"} for key in keys]
        nav["Which measure?"].append({family.value.capitalize(): pages})
    commands = [{f"landscope {words}": f"cli/{words.replace(' ', '-')}.md"} for words in command_pages()]
    nav["Gallery"] += [f"gallery/{notebook.stem}.md" for notebook in NOTEBOOKS]
    nav["Reference"][:0] = [
        {"Python": [{title: f"reference/{room}.md"} for room, title in ROOMS.items()]},
        {"The command line": ["command-line.md", *commands]},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Files from elsewhere, a page for each measure, and the reference of the public names."""
    for path, place in ELSEWHERE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    made = {f"measures/{key}.md": measure_page(MEASURES[key]) for key in MEASURES}
    made |= {f"reference/{room}.md": reference_page(room) for room in ROOMS}
    made |= {f"cli/{words.replace(' ', '-')}.md": text for words, text in command_pages().items()}
    made |= {
        "command-line.md": command_index(),
        "errors.md": error_page(),
        "glossary.md": glossary(),
        "cite.md": citation(),
    }
    made |= gallery()
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Links of the repository as links of the site."""
    place = page.file.src_uri
    if place.startswith(("measures/", "reference/", "gallery", "cli/")) or place in MADE:
        return markdown
    home = Path(STANDS.get(place, f"docs/{place}")).parent

    def led(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        path = os.path.normpath(home / target)
        there = ELSEWHERE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if files.get_file_from_path(there) is None:
            return text
        return f"{image}[{text}]({os.path.relpath(there, Path(place).parent)}{anchor or ''})"

    led_on = LINK.sub(led, markdown)
    if place in WITH_MEASURES:
        led_on = KEY.sub(_to_measure, led_on)
    return led_on if place in STANDS else with_outputs(led_on, place)


def _to_measure(match: re.Match[str]) -> str:
    return f"[{match[0]}](measures/{match[1]}.md)" if match[1] in MEASURES else match[0]


def measure_page(kind: type[Measure]) -> str:
    """One measure: what it says of itself, values that networks of ours have, its formula, its settings."""
    facts = {
        "key": f"`{kind.key}`",
        "family": kind.family.value,
        "unit": kind.unit,
        "better": kind.better,
        "cost": kind.cost,
        "unchanged under": ", ".join(sorted(name.replace("_", " ") for name in kind.invariant_to)),
        "reference": kind.reference,
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items() if value)
    about = fenced(inspect.cleandoc(sys.modules[kind.__module__].__doc__ or ""))
    return (
        f"# {kind.title[:1].upper()}{kind.title[1:]}\n\n{_first(kind)}\n\n| | |\n|---|---|\n{rows}\n\n"
        f"{_pitfalls(kind)}{_typical(kind)}"
        f"## What stands behind it\n\n{about}\n\n## Settings\n\n{settings(kind)}\n"
    )


def settings(kind: type[Measure]) -> str:
    """How the class is made, with its defaults, and what it says beyond its first paragraph."""
    given = [f"    {field.name}: {field.type} = {field.default!r}," for field in fields(kind)]
    call = "\n".join([f"{kind.__name__}(", "    *,", *given, ")"]) if given else f"{kind.__name__}()"
    _, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    listed = re.sub(r"^Args:\n((?: {4}.*\n?)+)", _as_list, rest, flags=re.MULTILINE)
    return f"```python\n{call}\n```\n\n{fenced(listed)}"


def _as_list(arguments: re.Match[str]) -> str:
    """The arguments of a docstring as a list."""
    return re.sub(r"^ {4}(\S[^:]*): ", r"- `\1`: ", arguments[1], flags=re.MULTILINE)


def _pitfalls(kind: type[Measure]) -> str:
    """What follows from what the class says of itself."""
    said = []
    if kind.family.is_of_sharpness or kind.family is Family.GRADIENT:
        if "layer_rescaling" not in kind.invariant_to:
            said.append(
                "Rescaled layers change it, and not one prediction: compare it between networks of one architecture that were "
                "trained alike."
            )
        if "neuron_rescaling" not in kind.invariant_to and "layer_rescaling" in kind.invariant_to:
            said.append("A factor of its own for every neuron changes it, and not one prediction.")
        said.append(
            "At a tiny cross-entropy it shrinks with the loss, however the network got there: compare at equal loss."
        )
    if kind.family is Family.PERTURBATION:
        said.append("It depends on the size of the step: compare at the same settings only.")
    if kind.family is Family.CALIBRATION:
        said.append("Score it on rows that neither training nor a temperature has seen.")
    if kind.same_value_as:
        said.append(f"Its value is that of `{kind.same_value_as}`; what it adds is in the details.")
    return "## Pitfalls\n\n" + "\n".join(f"- {each}" for each in said) + "\n\n" if said else ""


def _first(kind: type[Measure]) -> str:
    return " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())


def _typical(kind: type[Measure]) -> str:
    """The middle of the values of the networks that are shipped, and where eight of ten lie."""
    rows = []
    for each in kinds():
        held = sorted(value for value in each.values.get(kind.key, ()) if value is not None)
        if held:
            low, middle, high = (held[round(share * (len(held) - 1))] for share in (0.1, 0.5, 0.9))
            rows.append(f"| {each.title} | {len(held)} | {middle:.3g} | {low:.3g} to {high:.3g} |")
    if not rows:
        return ""
    table = "\n".join(["| networks | n | middle | eight of ten |", "|---|---|---|---|", *rows])
    return f"## Values that networks have\n\nFrom our own studies, on their training rows (`results/`).\n\n{table}\n\n"


def command_index() -> str:
    """Every command with what it does, and what its exit code says."""
    rows = []
    for words, text in command_pages().items():
        about = text.split("\n\n")[1]
        rows.append(f"| [`landscope {words}`](cli/{words.replace(' ', '-')}.md) | {about} |")
    codes = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    return "\n".join(
        [
            "# The command line",
            "",
            "`--json` everywhere; errors are one line with the remedy, `--debug` shows the rest. Your own network is "
            "`--model package.module:function`, your data `--data package.module:function`, your measure "
            "`--measures package.module:Class`.",
            "",
            "| command | |",
            "|---|---|",
            *rows,
            "",
            "| exit code | |",
            "|---|---|",
            *codes,
            "",
        ]
    )


def error_page() -> str:
    """The tree of errors, and what each of them says."""
    head, tree, *rest = inspect.cleandoc(errors.__doc__ or "").split("\n\n")
    kinds = [
        kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.LandscopeError)
    ]
    rows = [f"| `{kind.__name__}` | {_builtin(kind)} | {_first(kind)} |" for kind in kinds]
    table = "\n".join(["| error | also a | |", "|---|---|---|", *rows])
    parts = ["# Errors", head, f"```text\n{inspect.cleandoc(tree)}\n```", *rest, table]
    return "\n\n".join(parts) + "\n"


def _builtin(kind: type) -> str:
    found = next((base for base in kind.__mro__ if base.__module__ == "builtins" and base is not Exception), None)
    return f"`{found.__name__}`" if found is not None and found.__name__ not in ("BaseException", "object") else ""


def glossary() -> str:
    """Words of measures, of statistics and of studies."""
    measures = meanings(f"train.{key}" for key in MEASURES)
    tables = []
    for title, words in (("Studies", STUDY_WORDS), ("Statistics", STATISTICS), ("Measures", measures)):
        rows = [f"| {word} | {meaning.replace('|', chr(92) + '|')} |" for word, meaning in words.items()]
        tables.append("\n".join([f"## {title}", "", "| | |", "|---|---|", *rows]))
    return "\n\n".join(["# Glossary", *tables]) + "\n"


STUDY_WORDS = {
    "condition": "A way to train: one level of every axis of a study. The unit of what is correlated.",
    "run": "One training of one condition with one seed, and everything that is measured on it.",
    "baseline": "The condition that the others are compared with.",
    "split": "Training, validation or test rows.",
    "outcome": "What a study hopes to explain: an error, a loss, a calibration error on held-out rows.",
    "record": "What a run leaves: every estimate with its errors, settings and cost; the history; versions.",
    "pass": "The work of one gradient over the data: how cost is counted.",
    "product": "A matrix times a vector, such as the Hessian's: about three passes.",
    "probe": "A model and data held still: the point at which everything is measured.",
    "reading": "What the numbers of a report say in words, and what they do not.",
}


def citation() -> str:
    """How to cite, from CITATION.cff."""
    facts = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    authors = " and ".join(f"{{{author.get('name', '')}}}" for author in facts["authors"])
    entry = (
        f"@software{{landscope,\n  title = {{{facts['title']}}},\n  author = {{{authors[1:-1]}}},\n"
        f"  version = {{{facts['version']}}},\n  year = {{{facts['date-released']:%Y}}}\n}}"
    )
    return (
        f"# Cite\n\n{facts['message']}\n\n```text\n{entry}\n```\n\nEvery measure's page names the paper that it is from; "
        f"please cite that, too. State the version, n, and what the error bars are.\n"
    )


def gallery() -> dict[str, str]:
    """The notebooks, run now, and a page with a picture of each."""
    made: dict[str, str] = {}
    cards = []
    for notebook in NOTEBOOKS:
        page, picture = executed(notebook)
        made[f"gallery/{notebook.stem}.md"] = f"---\nhide: [toc]\n---\n\n{page}"
        title, about = page.removeprefix("# ").split("\n\n")[:2]
        link = f"gallery/{notebook.stem}.md"
        cards.append(f"-   [![{title}]({picture})]({link})\n\n    **[{title}]({link})**\n\n    {about}")
    head = "# Gallery\n\nNotebooks of `examples/notebooks`, run when this site was built.\n\n"
    return {
        "gallery.md": f'---\nhide: [toc]\n---\n\n{head}<div class="grid cards gallery" markdown>\n\n'
        + "\n\n".join(cards)
        + "\n\n</div>\n",
        **made,
    }


def _path(held: object) -> str:
    """Where a class or a function is written; empty for anything else."""
    return f"{held.__module__}.{held.__qualname__}" if inspect.isclass(held) or inspect.isfunction(held) else ""


def reference_page(room: str) -> str:
    """The public names that live in a room of the package."""
    names = []
    for name in landscope.__all__:
        held = getattr(landscope, name)
        path = held.__name__ if isinstance(held, ModuleType) else _path(held)
        if path.startswith(f"landscope.{room}."):
            names.append(path)
    names.sort(key=lambda path: (path.rsplit(".", 1)[-1][0].isupper(), path.lower()))  # functions, then classes
    return f"# {ROOMS[room]}\n\n" + "\n\n".join(f"::: {name}" for name in names) + "\n"
