"""The members of a pool: one spec each, which differ in their seeds and in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from landscope.core.errors import SpecError, UnknownNameError
from landscope.core.schema import Plain, build, to_plain
from landscope.training.spec import TrainingSpec

__all__ = ["NUMBERS", "Overrides", "member_specs", "unsupported"]

Overrides = Mapping[str, Sequence[object]]
"""Keys of a spec, such as "optimizer.lr", with one value for each member."""

NUMBERS = (
    "optimizer.lr",
    "optimizer.momentum",
    "optimizer.betas",
    "optimizer.eps",
    "optimizer.weight_decay",
    "sam.rho",
    "sam.eta",
    "clip_norm",
)
"""What may differ from member to member."""


def member_specs(
    spec: TrainingSpec, seeds: int | Sequence[int], overrides: Overrides | None = None
) -> list[TrainingSpec]:
    """The spec of every member; a number of seeds means so many from `spec.seed` on.

    >>> from landscope.training.spec import ModelSpec
    >>> specs = member_specs(TrainingSpec(model=ModelSpec(name="mlp"), seed=4), 2, {"optimizer.lr": [0.1, 0.2]})
    >>> [(one.seed, one.optimizer.lr) for one in specs]
    [(4, 0.1), (5, 0.2)]
    """
    if isinstance(seeds, int):
        if isinstance(seeds, bool) or seeds < 1:
            raise SpecError(f"seeds: a number of members ≥ 1 or a list of seeds was expected, got {seeds!r}")
        seeds = range(spec.seed, spec.seed + seeds)
    if not len(seeds):
        raise SpecError("seeds: the list is empty; a pool has at least one member")
    given = overrides or {}
    for key, values in given.items():
        if key not in NUMBERS:
            raise UnknownNameError.among("number that may differ between members", key, NUMBERS)
        if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != len(seeds):
            found = f"{len(values)} values" if isinstance(values, Sequence) else repr(values)
            raise SpecError(f"overrides[{key!r}]: one value for each of {len(seeds)} members was expected, got {found}")
    return [_member(spec, seed, {key: values[at] for key, values in given.items()}) for at, seed in enumerate(seeds)]


def _member(spec: TrainingSpec, seed: int, numbers: Mapping[str, object]) -> TrainingSpec:
    if not numbers and type(seed) is int and seed >= 0:
        return replace(spec, seed=seed)  # nothing to be checked
    plain = cast(dict[str, Plain], to_plain(spec))
    plain["seed"] = seed
    for key, value in numbers.items():
        *path, last = key.split(".")
        place: dict[str, Plain] = plain
        for part in path:
            if place[part] is None:
                raise SpecError(f"overrides[{key!r}]: the spec has no {part}; say `{part}` in it first")
            place = cast(dict[str, Plain], place[part])
        place[last] = to_plain(value)
    return build(TrainingSpec, plain)


def unsupported(spec: TrainingSpec) -> str | None:
    """What of a spec the one program of a pool cannot do, by its key; `None` where it can do everything.

    >>> from landscope.training.spec import ModelSpec
    >>> unsupported(TrainingSpec(model=ModelSpec(name="mlp"), precision="float16"))
    'precision: float16 scales the loss of each member by a factor of its own; bfloat16 does not'
    """
    if spec.fam is not None:
        return "fam: its third derivatives are taken model by model"
    if spec.precision == "float16":
        return "precision: float16 scales the loss of each member by a factor of its own; bfloat16 does not"
    return None
