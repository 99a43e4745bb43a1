"""User text inside Markdown and LaTeX: shown as it is, never read as markup.

CSV needs no more than the quotes of the `csv` module.
"""

from __future__ import annotations

import re

__all__ = ["latex", "markdown"]

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "∞": r"$\infty$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "→": r"$\to$",
    "×": r"$\times$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "·": r"$\cdot$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "δ": r"$\delta$",
    "ε": r"$\varepsilon$",
    "η": r"$\eta$",
    "θ": r"$\theta$",
    "κ": r"$\kappa$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "π": r"$\pi$",
    "ρ": r"$\rho$",
    "σ": r"$\sigma$",
    "τ": r"$\tau$",
    "φ": r"$\varphi$",
    "ψ": r"$\psi$",
    "ω": r"$\omega$",
    "Δ": r"$\Delta$",
    "Σ": r"$\Sigma$",
    "Ψ": r"$\Psi$",
}


def latex(text: str) -> str:
    r"""Text for a LaTeX cell; Greek letters and the signs of this library in mathematics.

    >>> latex("50% & κ_1 {x}\n~")
    '50\\% \\& $\\kappa$\\_1 \\{x\\} \\textasciitilde{}'
    """
    return "".join(_LATEX.get(letter, letter) for letter in _one_line(text))


def markdown(text: str) -> str:
    r"""Text for a cell of a Markdown table.

    >>> markdown("a|b *c* <i>\nd")
    'a\\|b \\*c\\* &lt;i&gt; d'
    """
    shown = _one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$!])", r"\\\1", shown)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
