"""Presets: what the code of five papers computed, slips included, so that their tables can be met.

    AS_PUBLISHED["explicit-regularisation"].measures     as the code computed them
    AS_PUBLISHED["explicit-regularisation"].corrected    what they should have measured
    AS_PUBLISHED["explicit-regularisation"].difference   where the two differ

What the code did was read from the public repositories of the papers. The measures here are no part of the registry of
measures; each file says what its code computed and what is wrong with it.
"""

from landscope.measures.as_published import (
    adaptive_sharpness,
    explicit_regularisation,
    false_friend,
    fam,
    function_centric,
)
from landscope.measures.as_published.preset import AS_PUBLISHED, Preset

__all__ = [
    "AS_PUBLISHED",
    "Preset",
    "adaptive_sharpness",
    "explicit_regularisation",
    "false_friend",
    "fam",
    "function_centric",
]
