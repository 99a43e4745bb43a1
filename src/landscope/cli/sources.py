"""From arguments on the command line to a network with its weights, rows of data, and a device.

Weights of a Landscope training lie beside its spec: `landscope measure runs/first` needs no more than the folder. The command
line takes precedence over that spec, with a warning where the two differ: the same weights on another scale of pixels, or on
other splits, give numbers about something else.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import yaml
from torch import Tensor, nn

from landscope.cli.failures import CommandError
from landscope.cli.options import Pixels
from landscope.cli.output import note
from landscope.core.errors import CheckpointError, LandscopeError, SpecError
from landscope.core.files import LARGEST_DOCUMENT, LARGEST_RECORD, not_there, read_regular
from landscope.core.json import Plain, parse_json
from landscope.core.text import shape
from landscope.core.weights import load_weights, read_weights
from landscope.data import load, status
from landscope.data.texts import read_rows, token_batch
from landscope.models import MODELS
from landscope.models.pretrained import PREFIX, load_pretrained
from landscope.probe.loss.losses import Loss
from landscope.specs.names import is_import, search_also
from landscope.specs.schema import parse
from landscope.studies.spec import MeasuringSpec
from landscope.studies.work.meter import ModelMeter
from landscope.training.loop.folder import HISTORY, SPEC, WEIGHTS
from landscope.training.spec import DataSpec, ModelSpec, TrainingSpec
from landscope.training.task import Task, make_task


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


@dataclass(frozen=True)
class Subject:
    """A model with the rows that it is measured on: batches by position or by name, their loss, and where they are from."""

    model: nn.Module
    data: tuple[Tensor, ...] | dict[str, Tensor]
    loss: Loss | None
    about: Mapping[str, Plain]

    def part(self, rank: int, processes: int) -> tuple[Tensor, ...] | dict[str, Tensor]:
        if isinstance(self.data, dict):
            return {key: tensor[rank::processes] for key, tensor in self.data.items()}
        return tuple(tensor[rank::processes] for tensor in self.data)


def loaded_texts(
    source: str,
    checkpoint: Path | None,
    data: str | None,
    *,
    samples: int | None,
    max_length: int | None,
    text_column: str | None,
    label_column: str | None,
    seed: int,
) -> Subject:
    """A model of Hugging Face's with texts from a file, as its tokenizer cuts them."""
    path = Path(data or "")
    if not path.is_file():
        raise CommandError(
            f"--data {data or 'FILE'}: no such file; {source} is measured on texts, in a .jsonl or a .txt file"
        )
    rows = read_rows(path, samples)
    found = load_pretrained(source.removeprefix(PREFIX))
    if checkpoint is not None:
        load_weights(found.model, read_weights(checkpoint), remedy=f"Look at what {source} is")
    config = getattr(found.model, "config", None)
    longest = max_length or found.max_length
    batch = token_batch(
        rows, found.tokenizer, found.head, config, max_length=longest, text=text_column, label=label_column, seed=seed
    )
    if batch.cut:
        note(f"{batch.cut} of {len(rows)} texts are cut to {longest} tokens; --max-length changes that")
    if config is not None and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = found.tokenizer.pad_token_id
    about: dict[str, Plain] = {} if checkpoint is None else {"checkpoint": str(checkpoint)}
    about |= {"source": source, "data": f"{data} ({len(rows)} texts)"}
    return Subject(found.model, batch.tensors, None, about)


@dataclass(frozen=True)
class Given:
    """What the command line says about a network and its data."""

    model: str | None = None
    option: Sequence[str] | None = None
    data: str | None = None
    data_option: Sequence[str] | None = None
    pixels: Pixels | None = None
    root: Path | None = None
    loss: str | None = None


@dataclass(frozen=True)
class SavedNetwork:
    """A file of weights, the network and the data that belong to it, and warnings where that is in doubt."""

    file: Path
    model: ModelSpec
    data: DataSpec
    loss: str | None = None
    precision: str = "float32"
    remarks: Sequence[str] = field(default_factory=tuple)

    def task(self) -> Task:
        """The network with its weights, and its data."""
        weights = read_weights(self.file)  # first: a wrong path is cheaper to find than a large network to build
        spec = {
            "model": {"name": self.model.name, **self.model.options},
            "data": {"name": self.data.name, **self.data.options},
            "loss": self.loss,
            "precision": "float64" if self.precision == "float64" else "float32",
            "batch_size": "full",
        }
        try:
            return make_task(parse(TrainingSpec, spec), prepare=lambda model: self._load(model, weights))
        except SpecError as error:
            raise CommandError(f"{_ended(error)} Look at --model, --option, --data and --data-option") from error

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        """The weights for the network of another file's task; refused where they do not fit it."""
        self._load(model, read_weights(self.file))
        return model.state_dict()

    def _load(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        name = self.model.name
        own = f"Look at --option, or at what {name} builds"
        known = "" if is_import(name) else ", ".join(MODELS[name].options)
        remedy = f"Look at --option: {name} has {known} (landscope models {name})" if known else own
        try:
            load_weights(model, weights, remedy=remedy)
        except CheckpointError as error:
            raise CheckpointError(f"{self.file}: {error}") from error

    def subject(self, split: str, samples: int | None, seed: int, place: torch.device) -> Subject:
        """The network with rows of a split, drawn as a study draws them."""
        meter = self.meter(seed, place)
        x, y = meter.rows(split, samples)
        if not len(x):
            raise CommandError(f"{self.data.name} has no {split} rows")
        if (given := getattr(meter.task.data, split).x).dim() > x.dim():
            note(f"{self.model.name} takes vectors: inputs {shape(given.shape[1:])} are flattened")
        net = meter.model(meter.task.model.state_dict())
        return Subject(net, (x, y), meter.task.loss, {**self._about(), "split": split})

    def meter(self, seed: int, place: torch.device) -> ModelMeter:
        return ModelMeter(self.task().to(place), MeasuringSpec(seed=seed), place)

    def _about(self) -> dict[str, Plain]:
        root, name = self.data.options.get("root"), self.data.name
        version = "own" if is_import(name) else status(name, root=root, verify=False).version  # type: ignore[arg-type]
        found: dict[str, Plain] = {
            "checkpoint": str(self.file),
            "source": self.model.name,
            "data": f"{name} ({version})",
        }
        if not is_import(name):
            found["pixels"] = str(self.data.options["pixels"])
        return {**found, "notices": list(self.remarks)} if self.remarks else found


def saved_networks(checkpoints: Sequence[Path], given: Given) -> list[SavedNetwork]:
    """Several files of one network on the same data; refused where their specs say otherwise."""
    first, *others = found = [saved_network(checkpoint, given) for checkpoint in checkpoints]
    for other in others:
        if (other.model, other.data, other.loss) != (first.model, first.data, first.loss):
            raise CommandError(
                f"{first.file} and {other.file} are not of one network on the same data, by the specs beside them; give "
                "--model, --option, --data, --data-option and --pixels for all of them"
            )
    return found


def saved_network(checkpoint: Path, given: Given) -> SavedNetwork:
    """The network in a file, or in the folder of a training."""
    if given.model is not None and given.model.startswith(PREFIX):
        raise CommandError(
            f"--model {given.model}: models of Hugging Face's are for `landscope measure`, and for Python"
        )
    file, folder = _weights(checkpoint)
    spec, unnamed = (None, ["model", "data"]) if folder is None else _spec(folder)
    for above in reversed(
        [] if folder is None else folder.absolute().parents[:2]
    ):  # of runs/first: where runs/ was made
        search_also(above)
    missing = " and ".join(f"--{name}" for name in unnamed if getattr(given, name) is None)
    if missing and spec is None:
        raise CommandError(f"{file}: give {missing}; no {SPEC} of a training lies beside it to say which")
    if missing:
        raise CommandError(f"{file}: give {missing}; the training in {folder} was given it in Python, without a name")
    there = spec or TrainingSpec(model=ModelSpec(name=given.model or ""), data=DataSpec(name=given.data or ""))
    remarks: list[str] = []
    model = _model(given, there, remarks, known="model" not in unnamed)
    data = _data(given, there, remarks, known="data" not in unnamed)
    if spec is not None:
        note(f"{file}: {model.name} on {data.name}{_listed(data.options)} (from {folder}/{SPEC})")
    for remark in remarks:
        note(f"warning: {remark}")
    return SavedNetwork(file, model, data, given.loss or there.loss, there.precision, tuple(remarks))


def _ended(words: object) -> str:
    """With a full stop, where no other mark ends it."""
    text = str(words)
    return text if text.endswith((".", "?")) else f"{text}."


def _weights(checkpoint: Path) -> tuple[Path, Path | None]:
    """The file of weights, and the folder of the training that wrote it, where there is one."""
    if checkpoint.is_dir():
        folder = checkpoint / "training" if (checkpoint / "training" / SPEC).is_file() else checkpoint
        file = folder / f"{WEIGHTS[0]}.safetensors"
        if (folder / "study.json").is_file():
            raise CommandError(f"{checkpoint} is the folder of a study: see landscope report {checkpoint}")
        if not (folder / SPEC).is_file():
            raise CommandError(f"{checkpoint}: expected weights, or the folder of a training, which has a {SPEC}")
        if not file.is_file():
            raise CommandError(f"{folder}: the training there is not finished; `landscope train` resumes it")
        return file, folder
    if not checkpoint.is_file():
        raise CommandError(f"{_ended(not_there(checkpoint))} Expected weights, or the folder of a training")
    above = checkpoint.parent
    folder = above.parent if above.name == "snapshots" else above
    return checkpoint, folder if (folder / SPEC).is_file() else None


def _spec(folder: Path) -> tuple[TrainingSpec | None, list[str]]:
    """The spec of a training, and what it does not name although it was trained; none where the file is something else's."""
    try:
        spec = parse(TrainingSpec, parse_json(read_regular(folder / SPEC, LARGEST_DOCUMENT), finite=False))
    except (OSError, ValueError, LandscopeError):
        return None, ["model", "data"]
    try:
        history = parse_json(read_regular(folder / HISTORY, LARGEST_RECORD), finite=False)
        given = history.get("given") if isinstance(history, dict) else None
    except (OSError, ValueError):
        given = None
    return spec, [name for name in ("model", "data") if isinstance(given, dict) and name in given]


def _model(given: Given, there: TrainingSpec, remarks: list[str], *, known: bool) -> ModelSpec:
    options, name = parsed_options(given.option), given.model or there.model.name
    if not known:
        return ModelSpec(name=name, options=options)
    if name != there.model.name:
        remarks.append(f"--model {name}, but the weights were trained as {there.model.name}")
        return ModelSpec(name=name, options=options)
    return ModelSpec(name=name, options={**there.model.options, **options})


def _data(given: Given, there: TrainingSpec, remarks: list[str], *, known: bool) -> DataSpec:
    """The data with its options; `known` says that the training's are."""
    name, options = given.data or there.data.name, parsed_options(given.data_option)
    for taken in {"name", "root", "pixels"} & options.keys() if not is_import(name) else ():
        raise CommandError(f"--data-option {taken}: write --{'data' if taken == 'name' else taken} instead")
    if is_import(name):
        if given.root is not None or given.pixels not in (None, "unit"):
            raise CommandError(f"--root and --pixels are for named data sets; {name} gives its samples as they are")
    else:
        usual = {"pixels": there.data.options.get("pixels", "unit")}
        options = {**usual, **options, **_chosen(given)}
    if not known:
        return DataSpec(name=name, options=options)
    if name != there.data.name:
        remarks.append(f"--data {name}, but the network was trained on {there.data.name}")
        return DataSpec(name=name, options=options)
    trained = {**({} if is_import(name) else _usual_options()), **there.data.options}
    for key, value in options.items():
        if key != "root" and value != trained.get(key):
            why = "it expects another scale" if key == "pixels" else "splits may hold other rows than in training"
            was = f"with {key}={_word(trained[key])}" if key in trained else f"without {key}"
            remarks.append(f"{key}={_word(value)}, but the network was trained {was}: {why}")
    return DataSpec(name=name, options={**there.data.options, **options})


def _usual_options() -> dict[str, object]:
    """The defaults of `landscope.data.load`."""
    return {
        name: one.default for name, one in inspect.signature(load).parameters.items() if one.default is not one.empty
    }


def _chosen(given: Given) -> dict[str, object]:
    found: dict[str, object] = {} if given.root is None else {"root": str(given.root)}
    return found if given.pixels is None else {"pixels": given.pixels, **found}


def _listed(options: Mapping[str, object]) -> str:
    return "".join(f", {key}={_word(value)}" for key, value in options.items() if key != "root")


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


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
        gc.collect()
        dist.destroy_process_group()


def sharded(model: nn.Module, place: torch.device, processes: int) -> nn.Module:
    """The model with its parameters shared out over the processes: layers of a list are a unit each, the rest is one more."""
    if processes == 1:
        raise CommandError("--shard shares the parameters out over several processes: start them with torchrun")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(place.type, (processes,))
    lists = [layers for layers in model.modules() if isinstance(layers, nn.ModuleList)]
    inner = {id(part) for layers in lists for part in layers.modules() if part is not layers}
    for layer in [layer for layers in lists if id(layers) not in inner for layer in layers]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def usable_device(name: str | None) -> torch.device:
    """The device called `name`; by default CUDA's where there is one."""
    from landscope.probe import conditions

    return conditions.usable_device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
