"""Functions of the user's own, named in a spec or on the command line as `package.module:function`.

Naming one imports its module and calls the function: a spec is code. Installed packages come first; the folder of the spec's file
(`search_also`) and the current folder are searched last, and only for names found nowhere else, so that a file there never
replaces a module that Python or another package means. `locate` looks a name up without running anything.

What Landscope itself offers to specs has a public name, `landscope:NAME`, independent of where the code lies: results are
recognised by it, so code may move. The places where it once lay stay readable for ever.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import cast

from landscope.core.errors import LandscopeError, SpecError
from landscope.core.json import Plain

PACKAGE = __package__.partition(".")[0]

HOMES: dict[str, str] = {
    "AllCNN": "landscope.models.all_cnn:AllCNN",
    "Autoencoder3d": "landscope.models.autoencoder:Autoencoder3d",
    "BertClassifier": "landscope.models.bert:BertClassifier",
    "DeepLinear": "landscope.models.mlp:DeepLinear",
    "EfficientNetLite0": "landscope.models.efficientnet:EfficientNetLite0",
    "GAT": "landscope.models.gat:GAT",
    "LeNet5": "landscope.models.lenet:LeNet5",
    "MLP": "landscope.models.mlp:MLP",
    "PreResNet": "landscope.models.resnet:PreResNet",
    "ResNet": "landscope.models.resnet:ResNet",
    "SoftmaxRegression": "landscope.models.mlp:SoftmaxRegression",
    "VGG": "landscope.models.vgg:VGG",
    "VGGImageNetHead": "landscope.models.vgg:VGGImageNetHead",
    "VisionTransformer": "landscope.models.vit:VisionTransformer",
    "WideResNet": "landscope.models.resnet:WideResNet",
    "HessianTime": "landscope.papers.fam.timing:HessianTime",
    "MovedCentreSharpness": "landscope.papers.adaptive_sharpness.as_published:MovedCentreSharpness",
    "NameGPT": "landscope.papers.function_centric.networks:NameGPT",
    "SmallDataViT": "landscope.papers.function_centric.networks:SmallDataViT",
    "StaleStatistics": "landscope.papers.adaptive_sharpness.as_published:StaleStatistics",
    "StepTime": "landscope.papers.fam.step_time:StepTime",
    "abalone_of_the_notebook": "landscope.papers.inputs:abalone_of_the_notebook",
    "circles_of_the_paper": "landscope.papers.function_centric.data:circles_of_the_paper",
    "enlarged_digits": "landscope.papers.inputs:enlarged_digits",
    "enlarged_efficientnet": "landscope.papers.inputs:enlarged_efficientnet",
    "enlarged_grey_digits": "landscope.papers.inputs:enlarged_grey_digits",
    "halved_cifar10": "landscope.papers.inputs:halved_cifar10",
    "halved_fashion_mnist": "landscope.papers.inputs:halved_fashion_mnist",
    "layer_rows": "landscope.papers.fam.timing:layer_rows",
    "lenet5_left_in_evaluation": "landscope.papers.inputs:lenet5_left_in_evaluation",
    "made_up_names": "landscope.papers.function_centric.data:made_up_names",
    "mnist_split": "landscope.papers.inputs:mnist_split",
    "partly_random_labels": "landscope.papers.function_centric.data:partly_random_labels",
    "resnet18_with_bottleneck": "landscope.papers.fam.networks:resnet18_with_bottleneck",
    "rte_word_pieces": "landscope.papers.inputs:rte_word_pieces",
}
"""Where `landscope:NAME` lies now. To move it, change its line and add one to `FORMER`."""

FORMER: dict[str, str] = {
    "landscope.measures.as_published.notebook_ascent": "MovedCentreSharpness StaleStatistics",
    "landscope.models": "AllCNN Autoencoder3d BertClassifier DeepLinear EfficientNetLite0 GAT LeNet5 MLP PreResNet "
    "ResNet SoftmaxRegression VGG VGGImageNetHead VisionTransformer WideResNet",
    "landscope.models.all_cnn": "AllCNN",
    "landscope.models.autoencoder": "Autoencoder3d",
    "landscope.models.bert": "BertClassifier",
    "landscope.models.efficientnet": "EfficientNetLite0",
    "landscope.models.gat": "GAT",
    "landscope.models.lenet": "LeNet5",
    "landscope.models.mlp": "DeepLinear MLP SoftmaxRegression",
    "landscope.models.resnet": "PreResNet ResNet WideResNet",
    "landscope.models.vgg": "VGG VGGImageNetHead",
    "landscope.models.vit": "VisionTransformer",
    "landscope.models.graphs": "GAT",
    "landscope.models.graphs.gat": "GAT",
    "landscope.models.images": "AllCNN EfficientNetLite0 LeNet5 PreResNet ResNet VGG VGGImageNetHead VisionTransformer "
    "WideResNet",
    "landscope.models.images.all_cnn": "AllCNN",
    "landscope.models.images.efficientnet": "EfficientNetLite0",
    "landscope.models.images.lenet": "LeNet5",
    "landscope.models.images.preresnet": "PreResNet",
    "landscope.models.images.resnet": "ResNet",
    "landscope.models.images.vgg": "VGG VGGImageNetHead",
    "landscope.models.images.vit": "VisionTransformer",
    "landscope.models.images.wide_resnet": "WideResNet",
    "landscope.models.tabular": "DeepLinear MLP SoftmaxRegression",
    "landscope.models.tabular.linear": "DeepLinear SoftmaxRegression",
    "landscope.models.tabular.mlp": "MLP",
    "landscope.models.text": "BertClassifier",
    "landscope.models.text.bert": "BertClassifier",
    "landscope.models.volumes": "Autoencoder3d",
    "landscope.models.volumes.autoencoder": "Autoencoder3d",
    "landscope.papers.adaptive_sharpness.as_published": "MovedCentreSharpness StaleStatistics",
    "landscope.papers.fam.timing": "HessianTime layer_rows",
    "landscope.papers.inputs": "abalone_of_the_notebook enlarged_digits enlarged_efficientnet enlarged_grey_digits "
    "halved_cifar10 halved_fashion_mnist lenet5_left_in_evaluation mnist_split rte_word_pieces",
    "landscope.recipes.adaptive_sharpness_notebooks": "abalone_of_the_notebook lenet5_left_in_evaluation",
    "landscope.recipes.false_friend": "mnist_split",
    "landscope.recipes.false_friend_images": "enlarged_digits halved_cifar10",
    "landscope.recipes.fam_inputs": "enlarged_efficientnet rte_word_pieces",
    "landscope.recipes.fam_timing": "HessianTime layer_rows",
    "landscope.recipes.function_centric": "enlarged_digits=enlarged_grey_digits",
    "landscope.recipes.halved_images": "halved_fashion_mnist",
}
"""Places that specs and records name: module → what lay there, with its public name where that differs. Lines are only added."""


def _aliases(homes: Mapping[str, str], former: Mapping[str, str]) -> dict[str, str]:
    pairs = [(module, *word.partition("=")[::2]) for module, words in former.items() for word in words.split()]
    now = {home: f"{PACKAGE}:{name}" for name, home in homes.items()}
    return now | {f"{module}:{name}": f"{PACKAGE}:{public or name}" for module, name, public in pairs}


ALIASES = _aliases(HOMES, FORMER)
"""Every place where something of ours lies or lay → its public name."""


def public_name(source: str) -> str:
    """The name by which results know what `source` names: the public one for Landscope's own, any other unchanged.

    >>> public_name("landscope.models.images:WideResNet"), public_name("my_package.nets:build")
    ('landscope:WideResNet', 'my_package.nets:build')
    """
    return ALIASES.get(source, source)


def public_names(value: Plain) -> Plain:
    """Plain values with every former name replaced by the public one; keys of mappings stay.

    >>> public_names({"model": {"name": "landscope.models.images:ResNet", "depth": 8}})
    {'model': {'name': 'landscope:ResNet', 'depth': 8}}
    """
    return renamed(value, ALIASES)


def former_names(public: str) -> list[str]:
    """All names by which results may know something that has a public name; nothing for anything else.

    >>> former_names("landscope:WideResNet")[-2:]
    ['landscope.models.images:WideResNet', 'landscope.models.images.wide_resnet:WideResNet']
    """
    ours = public.startswith(f"{PACKAGE}:")
    return [former for former, name in ALIASES.items() if name == public] if ours else []


def renamed(value: Plain, names: Mapping[str, str]) -> Plain:
    """Plain values with other texts in place of some."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    if isinstance(value, dict):
        return {key: renamed(item, names) for key, item in value.items()}
    return value


def is_import(source: str) -> bool:
    """Whether a name is that of a function to import, not one of ours.

    >>> is_import("my_package.nets:build"), is_import("resnet18")
    (True, False)
    """
    return ":" in source


def import_function(source: str) -> Callable[..., object]:
    """The function behind `package.module:function`, which runs the module's code; the current folder is searched last.

    >>> import_function("math:hypot")(3, 4)
    5.0
    >>> import_function("math:hypothenuse")
    Traceback (most recent call last):
    landscope.core.errors.SpecError: math:hypothenuse: math has no function 'hypothenuse'; did you mean math:hypot?
    """
    module_name, function_name = split_name(source)
    try:
        module = _imported(module_name)
        function = getattr(module, function_name, None)
    except LandscopeError:
        raise
    except ModuleNotFoundError as error:
        raise SpecError(f"{source}: {error}. {_searched()}") from error
    except SystemExit as error:
        raise SpecError(f"{source}: importing {module_name} ended the process ({_ended(error)})") from error
    except Exception as error:
        raise SpecError(f"{source}: importing {module_name} failed ({_described(error)})") from error
    if not callable(function):
        raise SpecError(
            f"{source}: {module_name} has no function {function_name!r}{_nearest(module, function_name)}{_hidden(module)}"
        )
    return cast(Callable[..., object], function)


def locate(source: str) -> Path | None:
    """The file of the module that `source` names, nothing imported; None where it has none, or only running code could tell.

    >>> locate("json.decoder:JSONDecoder").name
    'decoder.py'
    >>> locate("nowhere:build")
    Traceback (most recent call last):
    landscope.core.errors.SpecError: nowhere:build: there is no module named 'nowhere'. It was looked for where packages are ...
    """
    module_name, _ = split_name(source)
    found = find_module(module_name)
    if found is None and find_module(top := module_name.partition(".")[0]) is None:
        raise SpecError(f"{source}: there is no module named {top!r}. {_searched()}")
    return Path(found.origin) if found is not None and found.has_location and found.origin else None


def find_module(name: str) -> ModuleSpec | None:
    """Where a module would be imported from, without importing it; None where there is none, or only running code could tell."""
    top, *below = name.split(".")
    found = _find(top)
    if found is None or found.origin is None:  # not there, or a mere folder, which a package in this one goes before
        found = PathFinder.find_spec(top, [*sys.path, *_own_folders()]) or found
    name = top
    for part in below:
        within = None if found is None else found.submodule_search_locations
        name = f"{name}.{part}"
        found = None if within is None else _find_below(name, list(within))
    return found


def _find_below(name: str, within: list[str]) -> ModuleSpec | None:
    try:
        return PathFinder.find_spec(name, within)
    except KeyError:  # a mere folder, of which Python asks the package that it is in, and that is not imported
        found = ModuleSpec(name, None, is_package=True)
        found.submodule_search_locations = [os.path.join(place, name.rpartition(".")[2]) for place in within]
        return found


def call_imported(source: str, options: Mapping[str, object]) -> object:
    """What the function behind `source` returns for the options."""
    function = import_function(source)
    try:
        return function(**options)
    except SystemExit as error:
        raise SpecError(f"{source}: calling it ended the process ({_ended(error)})") from error
    except TypeError as error:
        if isinstance(error, LandscopeError):
            raise
        if _takes(function, options) and error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise SpecError(
                f"{source}: calling it with the options {dict(options)} failed ({_described(error)})"
            ) from error
        raise SpecError(f"{source} cannot be called with the options {dict(options)}: {error}") from error


def _takes(function: Callable[..., object], options: Mapping[str, object]) -> bool:
    """Whether the arguments of a function have these names, as far as is known."""
    try:
        inspect.signature(function).bind(**options)
    except TypeError:
        return False
    except ValueError:  # it has no signature
        pass
    return True


def _ended(error: SystemExit) -> str:
    return f"sys.exit({'' if error.code is None else repr(error.code)}){_line(error)}; remove that call, or guard it"


def _described(error: Exception) -> str:
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {said}{_line(error)}".replace("\n", " ")


def _line(error: BaseException) -> str:
    """The file and line of the user's code that an error came from, where they are known."""
    if isinstance(error, SyntaxError) and error.filename:
        return f", {error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__) and not frame.filename.startswith("<")
    ]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f", {own[-1].filename}:{own[-1].lineno}" if own else ""


def split_name(source: str) -> tuple[str, str]:
    """Module and function of a name, where they lie now.

    >>> split_name("landscope:MLP")
    ('landscope.models.mlp', 'MLP')
    """
    package, _, name = public_name(source).partition(":")
    home = HOMES.get(name, source) if package == PACKAGE else source
    module_name, _, function_name = home.partition(":")
    if not all(module_name.split(".")) or not function_name:
        raise SpecError(f"{source}: expected package.module:function, such as my_package.nets:build")
    return module_name, function_name


def _imported(name: str) -> ModuleType:
    if name not in sys.modules:
        found = _find(name.partition(".")[0])
        if found is None or found.origin is None:
            _search_here()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        if not _search_here():
            raise
        return importlib.import_module(name)  # an installed module that needs one of this folder


_also: list[str] = []
"""Folders of spec files, the last one first; searched before the current one."""


def search_also(folder: str | os.PathLike[str]) -> None:
    """Search a folder for modules found nowhere else: that of the spec's file, wherever the command is given."""
    absolute = os.path.abspath(folder)
    _also[:] = [absolute, *(other for other in _also if other != absolute)]


def also_searched() -> tuple[str, ...]:
    """The folders of spec files, for a process on another machine."""
    return tuple(_also)


def _searched() -> str:
    where = " and ".join(_own_folders())
    looked = f"It was looked for where packages are installed and in {where}"
    return f"{looked}. Run the command in its folder, or put that on PYTHONPATH"


def _search_here() -> bool:
    """Search the folders of spec files and the current one after all others; False if they were searched already."""
    here = [folder for folder in _own_folders() if folder not in sys.path]
    sys.path += here
    if here:
        importlib.invalidate_caches()
    return bool(here)


def _own_folders() -> list[str]:
    try:
        return list(dict.fromkeys([*_also, os.getcwd()]))
    except FileNotFoundError:  # the current folder was removed
        return list(_also)


def _find(top: str) -> ModuleSpec | None:
    """Where Python would take a top-level module from; nothing is run."""
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # it is loaded and does not say from where
        return None


def _nearest(module: ModuleType, name: str) -> str:
    """A hint at the module's function whose name is closest to one that it does not have."""
    known = [one for one, value in vars(module).items() if callable(value) and not one.startswith("_")]
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {module.__name__}:{near[0]}?" if near else ""


def _hidden(module: ModuleType) -> str:
    """A note that this folder's file of that name, if there is one, is not what was imported."""
    top = module.__name__.partition(".")[0]
    loaded = getattr(sys.modules.get(top), "__file__", None)
    for folder in _own_folders():
        own = PathFinder.find_spec(top, [folder])
        if own is not None and own.origin and own.origin != loaded:
            return f". {own.origin} is not read, because an installed module has that name: give it another"
    return ""
