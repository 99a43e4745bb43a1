"""From arguments on the command line to a model with its weights, rows of data, and a device."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import yaml
from torch import Tensor, nn

from landscope.cli.failures import CommandError
from landscope.core.errors import LandscopeError, SpecError
from landscope.core.text import first_line, shape
from landscope.core.weights import load_weights, read_weights
from landscope.data import DataSplits, Pixels, load
from landscope.models import MODELS, build
from landscope.models.catalogue import takes_vectors
from landscope.specs.names import call_imported, is_import
from landscope.training.spec import DataSpec
from landscope.training.task_data import load_task_data

__all__ = [
    "MeasuredRows",
    "check_fits",
    "loaded_data",
    "loaded_model",
    "loaded_rows",
    "parsed_options",
    "process_group",
    "takes_vectors",
    "usable_device",
]


def parsed_options(pairs: Sequence[str] | None) -> dict[str, object]:
    """Options from `key=value` words, the values read as YAML.

    >>> parsed_options(["num_classes=100", "widths=[64,64]", "dropout=1e-1", "init=kaiming"])
    {'num_classes': 100, 'widths': [64, 64], 'dropout': 0.1, 'init': 'kaiming'}
    """
    options: dict[str, object] = {}
    for pair in pairs or ():
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier():
            raise CommandError(f"expected key=value, such as num_classes=100, got {pair!r}")
        try:
            value = yaml.safe_load(text)
            options[key] = float(value) if isinstance(value, str) and value[:1] in "+-.0123456789" else value
        except (yaml.YAMLError, ValueError):
            options[key] = text
        except RecursionError:
            raise CommandError(f"{key}: {text[:60]}… is nested too deep; write it in a spec, or simpler") from None
    return options


def loaded_model(checkpoint: Path, source: str, pairs: Sequence[str] | None) -> nn.Module:
    """The model called or imported as `source`, with the weights of the checkpoint."""
    options = parsed_options(pairs)
    # The weights are read first: a wrong path is cheaper to find than a large network to build.
    if is_import(source):
        weights, model = read_weights(checkpoint), _imported(source, options)
        remedy = f"Look at --option, or at what {source} builds"
    else:
        entry = MODELS[source]
        weights, model = read_weights(checkpoint), build(source, **options)  # type: ignore[arg-type]
        remedy = f"Look at --option: {source} has {', '.join(entry.options)} (landscope models {source})"
    load_weights(model, weights, remedy=remedy)
    return model


def _imported(source: str, options: Mapping[str, object]) -> nn.Module:
    try:
        model = call_imported(source, options)
    except SpecError as error:
        raise CommandError(f"--model {error}") from error
    if not isinstance(model, nn.Module):
        raise CommandError(f"--model {source}: expected an nn.Module, got a {type(model).__name__}")
    return model


def loaded_data(set_name: str, folder: Path | None, scale: Pixels, **options: object) -> DataSplits:
    """The data set `set_name`; refused where a model needs more than one row at a time."""
    for taken in {"name", "root", "pixels"} & options.keys():
        raise CommandError(f"--data-option {taken}: write --{'data' if taken == 'name' else taken} instead")
    try:
        data = load(set_name, root=folder, pixels=scale, **options)  # type: ignore[arg-type]
    except TypeError as error:
        if isinstance(error, LandscopeError) or not options:
            raise
        raise CommandError(f"{set_name} cannot be loaded with the options {options}: {error}") from error
    if data.card.task == "node classification":
        raise CommandError(f"{set_name} is one graph, whose nodes are not independent samples; measure it from Python")
    return data


@dataclass(frozen=True)
class MeasuredRows:
    """Rows of one split; `classes` is 0 where the targets are not classes."""

    x: Tensor
    y: Tensor
    classes: int
    version: str


def loaded_rows(source: str, folder: Path | None, scale: Pixels, split: str, **options: object) -> MeasuredRows:
    """A split of a data set by name, or of what a function of the user's own returns."""
    if is_import(source):
        if folder is not None or scale != "unit":
            raise CommandError(f"--root and --pixels are for named data sets; {source} gives its samples as they are")
        rows = load_task_data(DataSpec(name=source, options=options))
        x, y = getattr(rows, split)
        return MeasuredRows(x, y, rows.classes, "own")
    splits = loaded_data(source, folder, scale, **options)
    x, y = getattr(splits, split)
    return MeasuredRows(x, y, splits.card.n_classes, splits.card.version)


@contextmanager
def process_group(device: torch.device) -> Iterator[tuple[torch.device, int, int]]:
    """(device, rank, processes): the group that torchrun started, or this process alone."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield device, 0, 1
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    # The defaults of its functions are the group there is when it is first imported, which the compiler does. A group that is
    # held so outlives its end, and its threads abort the process at exit.
    importlib.import_module("torch.distributed.nn.functional")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield device, dist.get_rank(), world
    finally:
        dist.destroy_process_group()


def check_fits(model: nn.Module, x: Tensor, classes: int, data: str) -> None:
    """Try two rows, so that a model built for other data fails with a clear message."""
    was_training = model.training
    try:
        with torch.no_grad():
            outputs = model.eval()(x[:2])
    except LandscopeError:
        raise
    except Exception as error:
        found = f"{shape(x.shape[1:])} of {str(x.dtype).removeprefix('torch.')}"
        reason = first_line(error)
        raise CommandError(
            f"the model does not take the rows of {data}, {found}: {reason}. "
            "Look at --data and at --option (in_features, in_channels, …)"
        ) from error
    finally:
        model.train(was_training)
    if classes and isinstance(outputs, Tensor) and outputs.dim() == 2 and outputs.shape[1] < classes:
        raise CommandError(
            f"the model has {outputs.shape[1]} outputs and {data} has {classes} classes: it was trained on other data"
        )


def usable_device(name: str | None) -> torch.device:
    """The device called `name`; by default CUDA's where there is one."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise CommandError(f"--device {name} cannot be used: {first_line(error)}. See: landscope doctor") from error
    return device
