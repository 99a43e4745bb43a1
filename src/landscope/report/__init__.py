"""A study as a page to read in the browser, and as figures for a paper.

    write_report   one HTML file: the answer, tables, linked figures, provenance, all numbers as CSV
    figures        the same pictures as PNG, SVG and PDF
    Claim          what is claimed, what was found, why, and which runs show it

What runs leave for the figures beside their estimates is described in `landscope.report.data.extras`.
"""

from landscope.report.page.blocks import Claim
from landscope.report.page.matplotlib import figures
from landscope.report.write import write_report

__all__ = ["Claim", "figures", "write_report"]
