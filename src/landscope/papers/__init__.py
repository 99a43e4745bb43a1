"""The papers, ready to be run: their studies at three sizes, their numbers beside ours, their claims put to the test."""

from landscope.papers.framework.paper import PAPERS, SIZES, Paper, Part, Size, on_cifar100, papers_by_network
from landscope.papers.framework.records import LAYOUT, Kept, kept_records, load_bundle, study_as_kept, take_over
from landscope.papers.framework.results import findings, finish_part, write_results

__all__ = [
    "LAYOUT",
    "PAPERS",
    "SIZES",
    "Kept",
    "Paper",
    "Part",
    "Size",
    "findings",
    "finish_part",
    "kept_records",
    "load_bundle",
    "on_cifar100",
    "papers_by_network",
    "study_as_kept",
    "take_over",
    "write_results",
]
