"""The networks by exact name: what each is, what it takes, how many parameters it has, and `build`.

Families file their factories here with `register`; importing `landscope.models` imports every family.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_type_hints

import torch
from torch import Tensor, nn

from landscope.core.errors import MissingExtraError, SpecError, UnknownNameError
from landscope.core.registry import Registry
from landscope.core.seeding import generator, normal, preserved_rng
from landscope.specs.schema import MismatchError, check_value, describe

# Options of a network: read from the signature of its factory, checked before anything is built.
#
# A factory takes keyword arguments only, each with a type and a default. The types say what is allowed, as in
# `landscope.specs.schema`.


OptionValue: TypeAlias = bool | int | float | str | Sequence[int] | None


class OptionError(SpecError):
    """An option of the wrong type, outside its range, or at odds with another option."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: what it accepts and what it is when left out."""

    name: str
    hint: object
    default: OptionValue

    @property
    def accepts(self) -> str:
        """The accepted values, in words."""
        return describe(self.hint)


def options_of(factory: Callable[..., nn.Module], *, without: Sequence[str] = ()) -> dict[str, Option]:
    """Read the options of `factory`, in the order of its signature, less those named in `without`.

    >>> from landscope.specs.schema import Natural
    >>> def net(*, classes: Natural = 10) -> nn.Module: ...
    >>> option = options_of(net)["classes"]
    >>> option.accepts, option.default
    ('an integer ≥ 1', 10)
    """
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory, include_extras=True)
    parameters = inspect.signature(factory).parameters.values()
    return {
        p.name: Option(name=p.name, hint=hints[p.name], default=p.default) for p in parameters if p.name not in without
    }


def check_options(
    model: str, options: Mapping[str, Option], given: Mapping[str, OptionValue]
) -> dict[str, OptionValue]:
    """Bring the given values to their types; raise for an unknown option or a value that does not fit.

    >>> from landscope.specs.schema import Natural
    >>> def net(*, classes: Natural = 10) -> nn.Module: ...
    >>> check_options("net", options_of(net), {"classes": 0})
    Traceback (most recent call last):
    landscope.models.catalogue.OptionError: option 'classes' of net must be an integer ≥ 1, but is 0
    """
    checked = {}
    for name, value in given.items():
        if name not in options:
            raise UnknownNameError.among(f"option of {model}", name, options)
        try:
            checked[name] = cast(OptionValue, check_value(value, options[name].hint))
        except MismatchError:
            expected = options[name].accepts
            raise OptionError(f"option {name!r} of {model} must be {expected}, but is {value!r}") from None
    return checked


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
    options; `extra` is the optional dependency that it cannot do without; `fixed` holds the factory's options that this
    network sets once and for all.
    """

    name: str
    factory: Callable[..., nn.Module]
    description: str
    input_shape: tuple[int, ...]
    classifier: str
    counts: tuple[ParameterCount, ...]
    extra: str | None = None
    fixed: Mapping[str, OptionValue] = field(default_factory=lambda: _NOTHING)
    sampler: Sampler = _normal_inputs

    @cached_property
    def options(self) -> dict[str, Option]:
        """The options of the network, by name."""
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


def register(name: str, **facts: Any) -> Callable[[F], F]:
    """File a factory under `name`; a decorator that takes the fields of `ModelEntry`.

    A factory is a class or a function whose arguments are all keyword-only, typed and have defaults; it may be filed
    under several names.
    """

    def file(factory: F) -> F:
        MODELS.register(name)(ModelEntry(name=name, factory=factory, **facts))
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
    settings = {**check_options(name, entry.options, options), **entry.fixed}
    ambient = torch.empty(0).device
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


# Optional packages: imported when used, and the files they carry found without running their code.


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import a module, or raise an error that names the extra to install.

    >>> require("no_such_package", extra="graphs", purpose="the graph attention network")
    Traceback (most recent call last):
    landscope.core.errors.MissingExtraError: the graph attention network needs no_such_package, which is not ...
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtraError.of(module.split(".")[0], extra, purpose) from None


def package_file(package: str, file: str, *, extra: str, purpose: str) -> Path:
    """Find a file that an installed package carries.

    >>> package_file("no_such_package", "weights.safetensors", extra="text", purpose="the pretrained encoder")
    Traceback (most recent call last):
    landscope.core.errors.MissingExtraError: the pretrained encoder needs no_such_package, which is not ...
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / file).is_file():
            return path
    raise MissingExtraError.of(package if spec is None else f"{file} of {package}", extra, purpose)


# How the weights of convolutions and linear layers start.
#
#     pytorch     what the layers' constructors draw: U(−1/√fan_in, 1/√fan_in), biases too
#     he          N(0, 2/fan_out) for convolutions, N(0, 2/fan_in) for linear layers, biases 0     (He et al. 2015)
#     xavier      N(0, 2/(fan_in + fan_out)), biases 0                                     (Glorot and Bengio 2010)
#
# Normalisation layers start at scale 1 and shift 0 under every scheme.


Initialisation: TypeAlias = Literal["pytorch", "he", "xavier"]

_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose3d)


def initialise(model: nn.Module, scheme: Initialisation) -> None:
    """Draw the weights of every convolution and linear layer of `model` again, in place.

    >>> layer = nn.Linear(3, 2)
    >>> initialise(layer, "he")
    >>> layer.bias.tolist()
    [0.0, 0.0]
    """
    if scheme == "pytorch":
        return
    for layer in model.modules():
        if not isinstance(layer, (*_CONVOLUTIONS, nn.Linear)):
            continue
        if scheme == "xavier":
            nn.init.xavier_normal_(layer.weight)
        else:
            mode: Literal["fan_in", "fan_out"] = "fan_in" if isinstance(layer, nn.Linear) else "fan_out"
            nn.init.kaiming_normal_(layer.weight, mode=mode, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


# What a network wants as its input.


def takes_vectors(model: nn.Module, name: str) -> bool:
    """Whether a network declares vectors: in the catalogue under `name`, or else by its own attribute `input_shape`.

    >>> takes_vectors(nn.Identity(), "deep_linear"), takes_vectors(nn.Identity(), "resnet18")
    (True, False)
    """
    declared = MODELS[name].input_shape if name in MODELS else getattr(model, "input_shape", None)
    return isinstance(declared, Sequence) and len(declared) == 1
