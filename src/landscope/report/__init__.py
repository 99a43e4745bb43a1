"""A study as a page to read in the browser, and as figures for a paper.

    write_report    one HTML file: the answer, tables, linked figures, provenance, all numbers as CSV
    figures         the same figures as PNG, SVG and PDF
    ReportOptions   what is asked, and how it is written
    Claim           what is claimed, what was found, why, and which runs show it

The data that runs store for figures, beside their estimates, are described in `landscope.report.data.extras`.
"""

from landscope.report.page.blocks import Claim
from landscope.report.write import ReportOptions, figures, write_report

__all__ = ["Claim", "ReportOptions", "figures", "write_report"]
