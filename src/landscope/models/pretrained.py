"""Models in the format of Hugging Face: a folder made by `save_pretrained`, of a model or of adapters for one.

A name that is not a folder is looked for on the hub, where there is a network. Code that comes with a model is never run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from landscope.core.errors import SpecError
from landscope.core.text import first_line
from landscope.models.catalogue import require

PREFIX = "hf:"
"""The prefix of names of pretrained models."""
ADAPTERS = "adapter_config.json"
CONTEXT = 1024
"""Tokens of a text where neither model nor tokenizer knows a limit, or both know a larger one."""


@dataclass(frozen=True)
class Pretrained:
    """A model, its tokenizer, and how many tokens it takes at most."""

    model: nn.Module
    tokenizer: Any
    head: str
    """The model's class, whose name says what it predicts; for adapters, that of the model that they are for."""
    max_length: int


def load_pretrained(source: str, *, tokenizer: bool = True) -> Pretrained:
    """The model in a folder, or of a name on the hub, with its tokenizer. Needs `landscope[text]`, and peft for adapters."""
    transformers = require("transformers", extra="text", purpose=f"{PREFIX}{source}")
    bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        model, head = _model(transformers, source)
        words = transformers.AutoTokenizer.from_pretrained(source) if tokenizer else None
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, SpecError):
            raise
        what = (
            "could not be read" if Path(source).exists() else "is not a folder, and could not be fetched from the hub"
        )
        raise SpecError(f"{PREFIX}{source} {what}: {first_line(error)}") from error
    finally:
        if bars:
            transformers.utils.logging.enable_progress_bar()
    return Pretrained(model, words, head, _limit(model, words))


def _model(transformers: Any, source: str) -> tuple[nn.Module, str]:
    folder = Path(source)
    if (folder / ADAPTERS).is_file():
        return _with_adapters(transformers, folder)
    config = transformers.AutoConfig.from_pretrained(source)
    name = next(iter(config.architectures or ()), "")
    kind = getattr(transformers, name, None) if name else None
    if kind is None:
        raise SpecError(
            f"{PREFIX}{source}: its configuration names {name or 'no architecture'}, which transformers "
            f"{transformers.__version__} does not have. Build the model in a function of yours: --model my_package.nets:build."
        )
    return kind.from_pretrained(source), name


def _with_adapters(transformers: Any, folder: Path) -> tuple[nn.Module, str]:
    peft = require("peft", extra="text", purpose=f"the adapters in {folder}")
    base = json.loads((folder / ADAPTERS).read_text(encoding="utf-8")).get("base_model_name_or_path")
    if not base:
        raise SpecError(f"{folder / ADAPTERS} does not name the model that the adapters are for")
    inner, head = _model(transformers, str(base))
    return peft.PeftModel.from_pretrained(inner, str(folder), is_trainable=True), head


def _limit(model: nn.Module, tokenizer: Any) -> int:
    known = (
        getattr(tokenizer, "model_max_length", None),
        getattr(getattr(model, "config", None), "max_position_embeddings", None),
    )
    return min([CONTEXT, *(int(limit) for limit in known if limit)])
