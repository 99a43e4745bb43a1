"""The papers, ready to be run: their studies at three sizes, their numbers beside ours, their claims put to the test."""

from landscope.recipes import (
    adaptive_sharpness,
    does_sharpness_predict,
    explicit_regularisation,
    false_friend,
    fam,
    function_centric,
)
from landscope.recipes.bundle import load_bundle
from landscope.recipes.going_on import study_as_kept, take_over
from landscope.recipes.hundred_classes import on_cifar100
from landscope.recipes.kept import LAYOUT, Kept, kept_records
from landscope.recipes.recipe import RECIPES, Claim, Part, Recipe, Size
from landscope.recipes.results import finish_part, results_page, write_results

__all__ = [
    "LAYOUT",
    "RECIPES",
    "Claim",
    "Kept",
    "Part",
    "Recipe",
    "Size",
    "adaptive_sharpness",
    "does_sharpness_predict",
    "explicit_regularisation",
    "false_friend",
    "fam",
    "finish_part",
    "function_centric",
    "kept_records",
    "load_bundle",
    "on_cifar100",
    "results_page",
    "study_as_kept",
    "take_over",
    "write_results",
]
