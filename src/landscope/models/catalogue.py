"""The networks by exact name: what each is, what it takes, how many parameters it has, and `build`.

Families file their factories here with `register`; importing `landscope.models` imports every family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from landscope.core.registry import Registry
from landscope.core.seeding import generator, normal, preserved_rng
from landscope.models.options import Option, OptionValue, check, options_of

__all__ = ["MODELS", "ModelEntry", "ParameterCount", "Recipe", "build", "names", "register"]

Recipe: TypeAlias = Literal["explicit-regularisation", "function-centric", "false-friend", "fam", "adaptive-sharpness"]
Sampler: TypeAlias = Callable[[int, Sequence[int], torch.Generator], tuple[Tensor, ...]]
F = TypeVar("F", bound=Callable[..., nn.Module])

_NOTHING: Mapping[str, OptionValue] = MappingProxyType({})


@dataclass(frozen=True)
class ParameterCount:
    """How many trainable parameters a network has under some options, and who says so."""

    parameters: int
    source: str
    options: Mapping[str, OptionValue] = field(default_factory=lambda: _NOTHING)


def _normal_inputs(batch_size: int, shape: Sequence[int], rng: torch.Generator) -> tuple[Tensor, ...]:
    return (normal((batch_size, *shape), rng, torch.get_default_dtype()),)


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One network of the catalogue.

    `input_shape` is that of one sample under the default options; `classifier` is the name of the last layer (for
    `model.get_submodule`), which is a `Linear` unless the description says otherwise; `counts` starts with the default
    options; `recipes` are the papers that use it; `extra` is the optional dependency that it cannot do without.
    """

    name: str
    factory: Callable[..., nn.Module]
    description: str
    input_shape: tuple[int, ...]
    classifier: str
    counts: tuple[ParameterCount, ...]
    recipes: tuple[Recipe, ...] = ()
    extra: str | None = None
    fixed: Mapping[str, OptionValue] = field(default_factory=lambda: _NOTHING)
    sampler: Sampler = _normal_inputs

    @cached_property
    def options(self) -> dict[str, Option]:
        """What can be set, by name."""
        return options_of(self.factory, without=tuple(self.fixed))

    @property
    def parameters(self) -> int:
        """Trainable parameters under the default options."""
        return self.counts[0].parameters

    def example_inputs(self, batch_size: int = 2, *, seed: int = 0) -> tuple[Tensor, ...]:
        """Random inputs of the default shape, on the CPU: `model(*entry.example_inputs())`."""
        with torch.device("cpu"):
            return self.sampler(batch_size, self.input_shape, generator(seed, "example inputs", self.name))


MODELS: Registry[ModelEntry] = Registry("model")


def register(
    name: str,
    *,
    description: str,
    input_shape: tuple[int, ...],
    classifier: str,
    counts: tuple[ParameterCount, ...],
    recipes: tuple[Recipe, ...] = (),
    extra: str | None = None,
    fixed: Mapping[str, OptionValue] = _NOTHING,
    sampler: Sampler = _normal_inputs,
) -> Callable[[F], F]:
    """File a factory under `name`, with the options in `fixed` set once and for all; a decorator.

    A factory is a class or a function whose arguments are all keyword-only, typed and have defaults; it may be filed
    under several names.
    """

    def file(factory: F) -> F:
        entry = ModelEntry(
            name=name,
            factory=factory,
            description=description,
            input_shape=input_shape,
            classifier=classifier,
            counts=counts,
            recipes=recipes,
            extra=extra,
            fixed=MappingProxyType(dict(fixed)),
            sampler=sampler,
        )
        MODELS.register(name)(entry)
        return factory

    return file


def build(name: str, *, seed: int = 0, **options: OptionValue) -> nn.Module:
    """Build the network called `name`, freshly initialised from `seed`.

    The weights are drawn on the CPU whatever the ambient device, so that a seed means the same weights everywhere, and
    moved to it afterwards (under `torch.device("meta")` nothing is drawn). No global random state is read or changed:
    different networks need different seeds. Factories called directly draw from torch's global generator, as every
    `nn.Module` does.

    >>> model = build("resnet20", num_classes=100)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 100])
    >>> build("resnet21")
    Traceback (most recent call last):
    landscope.core.errors.UnknownNameError: unknown model 'resnet21'; did you mean 'resnet20'? Choices: ...
    """
    entry = MODELS[name]
    settings = {**check(name, entry.options, options), **entry.fixed}
    ambient = torch.get_default_device()
    if ambient.type == "meta":
        return entry.factory(**settings)
    with preserved_rng(), torch.device("cpu"):
        torch.default_generator.manual_seed(generator(seed, "initialisation").initial_seed())
        model = entry.factory(**settings)
    return model.to(ambient)


def names() -> list[str]:
    """Every name that `build` knows, sorted.

    >>> "vgg19" in names()
    True
    """
    return list(MODELS)
