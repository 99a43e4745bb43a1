"""Functions of the user's own, named in a spec or on the command line as `package.module:function`.

Whoever names one has its module imported and the function called: a spec is code. What is installed comes first; the current
folder is searched last, and only where a name leads nowhere else, so that a file there never stands in for a module that
Python or another package means. `locate` looks a name up without running anything.

What Landscope itself lends to specs has a public name, `landscope:NAME`, that says nothing of where the code lies: results are
recognised by it, so code may move. The places at which such things once lay stay readable for ever.
"""

from __future__ import annotations

import hashlib
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

__all__ = [
    "call_imported",
    "former_names",
    "import_function",
    "is_import",
    "locate",
    "public_name",
    "public_names",
    "renamed",
    "source_version",
]

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
    "HessianTime": "landscope.recipes.fam_timing:HessianTime",
    "MovedCentreSharpness": "landscope.measures.as_published.notebook_ascent:MovedCentreSharpness",
    "StaleStatistics": "landscope.measures.as_published.notebook_ascent:StaleStatistics",
    "abalone_of_the_notebook": "landscope.recipes.adaptive_sharpness_notebooks:abalone_of_the_notebook",
    "enlarged_digits": "landscope.recipes.false_friend_images:enlarged_digits",
    "enlarged_efficientnet": "landscope.recipes.fam_inputs:enlarged_efficientnet",
    "enlarged_grey_digits": "landscope.recipes.function_centric:enlarged_digits",
    "halved_cifar10": "landscope.recipes.false_friend_images:halved_cifar10",
    "halved_fashion_mnist": "landscope.recipes.halved_images:halved_fashion_mnist",
    "layer_rows": "landscope.recipes.fam_timing:layer_rows",
    "lenet5_left_in_evaluation": "landscope.recipes.adaptive_sharpness_notebooks:lenet5_left_in_evaluation",
    "mnist_split": "landscope.recipes.false_friend:mnist_split",
    "rte_word_pieces": "landscope.recipes.fam_inputs:rte_word_pieces",
}
"""What `landscope:NAME` stands for: where it lies now. Whoever moves it changes its line, and adds one to `FORMER`."""

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
    "landscope.recipes.adaptive_sharpness_notebooks": "abalone_of_the_notebook lenet5_left_in_evaluation",
    "landscope.recipes.false_friend": "mnist_split",
    "landscope.recipes.false_friend_images": "enlarged_digits halved_cifar10",
    "landscope.recipes.fam_inputs": "enlarged_efficientnet rte_word_pieces",
    "landscope.recipes.fam_timing": "HessianTime layer_rows",
    "landscope.recipes.function_centric": "enlarged_digits=enlarged_grey_digits",
    "landscope.recipes.halved_images": "halved_fashion_mnist",
}
"""Places that specs and records name: module → what lay there, where it has another public name with that. Lines only come."""


def _aliases(former: Mapping[str, str]) -> dict[str, str]:
    pairs = [(module, *word.partition("=")[::2]) for module, words in former.items() for word in words.split()]
    return {f"{module}:{name}": f"{PACKAGE}:{public or name}" for module, name, public in pairs}


ALIASES = _aliases(FORMER)


def public_name(source: str) -> str:
    """The name by which results know what `source` names: the public one of what is ours, and any other as it stands.

    >>> public_name("landscope.models.images:WideResNet"), public_name("my_package.nets:build")
    ('landscope:WideResNet', 'my_package.nets:build')
    """
    return ALIASES.get(source, source)


def public_names(value: Plain) -> Plain:
    """Plain values with the public name in place of every text that is a former one; keys of mappings stay.

    >>> public_names({"model": {"name": "landscope.models.images:ResNet", "depth": 8}})
    {'model': {'name': 'landscope:ResNet', 'depth': 8}}
    """
    return renamed(value, ALIASES)


def former_names(public: str) -> list[str]:
    """Every name that results may know something by which has a public one; nothing for all others.

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
    landscope.core.errors.SpecError: math:hypothenuse: math has no function 'hypothenuse'
    """
    module_name, function_name = _parts(source)
    try:
        module = _imported(module_name)
        function = getattr(module, function_name, None)
    except LandscopeError:
        raise
    except ModuleNotFoundError as error:
        raise SpecError(f"{source}: {error}. It is looked for where packages are and in this folder") from error
    except SystemExit as error:
        raise SpecError(f"{source}: importing {module_name} ended the process ({_ended(error)})") from error
    except Exception as error:
        raise SpecError(f"{source}: importing {module_name} failed ({_described(error)})") from error
    if not callable(function):
        raise SpecError(f"{source}: {module_name} has no function {function_name!r}{_hidden(module)}")
    return cast(Callable[..., object], function)


def locate(source: str) -> Path | None:
    """The file of the module that `source` names, without importing anything; None where it has none, or only code could show it.

    >>> locate("json.decoder:JSONDecoder").name
    'decoder.py'
    >>> locate("nowhere:build")
    Traceback (most recent call last):
    landscope.core.errors.SpecError: nowhere:build: there is no module named 'nowhere'. It is looked for where packages are and in
    this folder
    """
    module_name, _ = _parts(source)
    top, *below = module_name.split(".")
    found = _find(top)
    if found is None or found.origin is None:  # not there, or a mere folder, which a package in this one goes before
        found = PathFinder.find_spec(top, [*sys.path, *_here()]) or found
    if found is None:
        raise SpecError(
            f"{source}: there is no module named {top!r}. It is looked for where packages are and in this folder"
        )
    name = top
    for part in below:
        name = f"{name}.{part}"
        within = found.submodule_search_locations
        found = None if within is None else PathFinder.find_spec(name, within)
        if found is None:
            return None
    return Path(found.origin) if found.has_location and found.origin else None


def source_version(source: str, *, imports: bool = True) -> str:
    """The name of a function with a digest of the file that it is written in, so that an edit is another version.

    A function of our own goes by its public name alone, one without a file by its name. Without `imports` nothing is run, and the
    function is taken to be written in the module that it is named by.

    >>> source_version("math:hypot")
    'math:hypot'
    """
    if source.partition(":")[0].partition(".")[0] == PACKAGE:
        if imports:
            import_function(source)  # a wrong name is found out
        return public_name(source)
    if imports:
        module = sys.modules.get(getattr(import_function(source), "__module__", "") or "")
        written = getattr(module, "__file__", None)
        file = Path(written) if written else None
    else:
        file = locate(source)
    if file is None or file.suffix != ".py":
        return source
    return f"{source} {hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"


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
    """Whether the arguments of a function have these names, as far as it is known."""
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


def _parts(source: str) -> tuple[str, str]:
    """Module and function, where they lie now."""
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


def _search_here() -> bool:
    """Have the current folder searched after all others; False where it was already."""
    here = [folder for folder in _here() if folder not in sys.path]
    sys.path += here
    if here:
        importlib.invalidate_caches()
    return bool(here)


def _here() -> list[str]:
    try:
        return [os.getcwd()]
    except FileNotFoundError:  # the current folder was removed
        return []


def _find(top: str) -> ModuleSpec | None:
    """Where Python would take a module from that lies in no package; nothing is run."""
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # it is loaded and does not say from where
        return None


def _hidden(module: ModuleType) -> str:
    """That a file of this folder is not what was imported, where there is one of that name."""
    top = module.__name__.partition(".")[0]
    loaded = getattr(sys.modules.get(top), "__file__", None)
    for folder in _here():
        own = PathFinder.find_spec(top, [folder])
        if own is not None and own.origin and own.origin != loaded:
            return f". {own.origin} is not read, because an installed module has that name: give it another"
    return ""
