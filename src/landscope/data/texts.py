"""Lines of text as batches of tokens, with the labels that a model of a kind learns from.

    a causal model        `text`: every token is the label of the one before; with `prompt` and `completion`, the latter's alone
    a masked one          `text`: 15 % of its words, drawn by the seed, are hidden and to be found (Devlin et al. 2019)
    an encoder-decoder    `text` and `target`
    classes, numbers      `text` (and `text_pair`), `label`: a class, its name, a number, or one 0 or 1 for each of several
    classes of words      `tokens` and `labels`, one for each word; those of its further pieces do not count

Rows come from a file with one JSON object per line, or with one text per line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from landscope.core.errors import DataError, EmptyDataError
from landscope.core.json import parse_json
from landscope.core.seeding import generator

IGNORED = -100
HIDDEN = 0.15
"""Share of the words of a text that a masked model is to find."""
LABELS = ("label", "labels")
TARGETS = ("target", "summary", "labels")
Row = Mapping[str, object]


def read_rows(path: Path, limit: int | None = None) -> list[Row]:
    """The rows of a file: `.jsonl` with an object per line, or `.txt` with a text per line; empty lines do not count."""
    if path.suffix not in (".jsonl", ".ndjson", ".txt"):
        raise DataError(
            f"{path}: expected texts, one per line in a .txt file or one JSON object per line in a .jsonl file"
        )
    rows: list[Row] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if limit is not None and len(rows) == limit:
                    break
                if line.strip():
                    rows.append({"text": line.rstrip("\n")} if path.suffix == ".txt" else _row(path, number, line))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not rows:
        raise EmptyDataError(f"{path} holds no rows")
    return rows


def _row(path: Path, number: int, line: str) -> Row:
    try:
        found = parse_json(line)
    except ValueError as error:
        raise DataError(f"{path}, line {number}: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f'{path}, line {number}: expected an object such as {{"text": "…"}}, got {str(found)[:40]}')
    return found


@dataclass(frozen=True)
class TokenBatch:
    """Tensors by the names of the model's arguments, and how many texts were cut to the longest length."""

    tensors: dict[str, Tensor]
    cut: int


def token_batch(
    rows: Sequence[Row],
    tokenizer: Any,
    head: str,
    config: Any,
    *,
    max_length: int,
    text: str | None = None,
    label: str | None = None,
    seed: int = 0,
) -> TokenBatch:
    """All rows as one batch, padded at the end of the texts; `head` is the class of the model, `text` and `label` columns."""
    columns = _Columns(rows, text, label)
    kind = _kind(head)
    encoded = list(_encoded(kind, columns, tokenizer, config, max_length + 1))
    cut = sum(len(each["input_ids"]) > max_length for each in encoded)
    encoded = list(_encoded(kind, columns, tokenizer, config, max_length)) if cut else encoded
    pad = tokenizer.pad_token_id or 0
    fill = {"input_ids": pad, "labels": IGNORED}
    tensors = {key: _padded([each[key] for each in encoded], fill.get(key, 0)) for key in encoded[0]}
    if kind == "masked":
        tensors |= _hidden(tensors, tokenizer, seed)
    return TokenBatch(tensors, cut)


def _kind(head: str) -> str:
    endings = {
        "ForCausalLM": "causal",
        "LMHeadModel": "causal",
        "ForMaskedLM": "masked",
        "ForConditionalGeneration": "decoder",
        "ForSequenceClassification": "classes",
        "ForTokenClassification": "words",
    }
    for ending, kind in endings.items():
        if head.endswith(ending):
            return kind
    raise DataError(
        f"what {head} learns from is not known to this command. Make its batches in Python, with the names of its arguments "
        f"as keys, and call landscope.measure(model, batches)."
    )


class _Columns:
    """Columns of rows by name, with the remedy where one is missing."""

    def __init__(self, rows: Sequence[Row], text: str | None, label: str | None) -> None:
        self.rows, self._text, self._label = rows, text, label

    def has(self, name: str) -> bool:
        return all(name in row for row in self.rows)

    def text(self, name: str = "text") -> list[str]:
        return self._of((self._text or name,) if name == "text" else (name,), "--text-column", str)

    def label(self, names: Sequence[str] = LABELS) -> list[Any]:
        return self._of((self._label,) if self._label else names, "--label-column", object)

    def words(self) -> list[Any]:
        return self._of((self._text,) if self._text else ("tokens", "words"), "--text-column", list)

    def _of(self, names: Sequence[str], option: str, kind: type) -> list[Any]:
        name = next((name for name in names if name in self.rows[0]), names[0])
        for number, row in enumerate(self.rows, 1):
            if name not in row:
                raise DataError(f"row {number} has no {name!r}, only {', '.join(row)}. Name the column: {option}.")
            if not isinstance(row[name], kind):
                what = "a list of words" if kind is list else "a text"
                raise DataError(f"row {number}: expected {name!r} to be {what}, got {str(row[name])[:40]}")
        return [row[name] for row in self.rows]


Encoded = dict[str, Any]


def _encoded(kind: str, columns: _Columns, tokenizer: Any, config: Any, longest: int) -> Iterator[Encoded]:
    """The arguments of the model for each row, as lists of numbers, or as a number for its label."""

    def encode(*texts: object, **options: object) -> Encoded:
        return dict(tokenizer(*texts, truncation=True, max_length=longest, **options))

    if kind == "words":
        for words, labels in zip(columns.words(), columns.label(("labels", "tags", "ner_tags")), strict=True):
            whole = tokenizer(words, truncation=True, max_length=longest, is_split_into_words=True)
            yield {**whole, "labels": _of_first_pieces(whole.word_ids(), words, _label(labels, config))}
    elif kind == "causal" and columns.has("prompt") and columns.has("completion"):
        for prompt, completion in zip(columns.text("prompt"), columns.text("completion"), strict=True):
            whole = encode(prompt + completion)
            known = min(len(tokenizer(prompt)["input_ids"]), len(whole["input_ids"]))
            yield {**whole, "labels": [IGNORED] * known + whole["input_ids"][known:]}
    elif kind == "decoder":
        for source, target in zip(columns.text(), columns.label(TARGETS), strict=True):
            if not isinstance(target, str):
                raise DataError(
                    f"an encoder-decoder learns from texts: expected a text as target, got {str(target)[:40]}"
                )
            whole = tokenizer(text_target=target, truncation=True, max_length=longest)
            yield {**encode(source), "labels": list(whole["input_ids"])}
    elif kind == "classes":
        pairs = columns.text("text_pair") if columns.has("text_pair") else None
        labels = [_label(value, config) for value in columns.label()]
        labels = [[float(each) for each in value] if isinstance(value, list) else value for value in labels]
        for row, (source, value) in enumerate(zip(columns.text(), labels, strict=True)):
            yield {**(encode(source) if pairs is None else encode(source, pairs[row])), "labels": value}
    else:
        for source in columns.text():
            whole = encode(source)
            yield whole if kind == "masked" else {**whole, "labels": list(whole["input_ids"])}


def _of_first_pieces(places: list[int | None], words: object, labels: object) -> list[int]:
    """The label of each word at its first piece; `places` are the words that the pieces belong to."""
    if not isinstance(words, list) or not isinstance(labels, list) or len(words) != len(labels):
        raise DataError(f"expected as many labels as words, got {str(words)[:40]} and {str(labels)[:40]}")
    before = [None, *places[:-1]]
    return [
        IGNORED if place is None or place == last else labels[place] for place, last in zip(places, before, strict=True)
    ]


def _label(value: object, config: Any) -> object:
    """A class by its number or its name, a number, or a list of these."""
    if isinstance(value, list):
        return [_label(each, config) for each in value]
    if isinstance(value, str):
        names = getattr(config, "label2id", None) or {}
        if value not in names:
            raise DataError(f"the label {value!r} is not among the model's: {', '.join(map(str, names))}")
        return int(names[value])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DataError(f"expected a class, its name or a number as a label, got {str(value)[:40]}")
    return float(value) if getattr(config, "num_labels", 0) == 1 else value


def _padded(values: list[Any], fill: int) -> Tensor:
    """Lists of numbers as one tensor, the shorter ones filled up at their end; numbers as they are."""
    if not isinstance(values[0], list):
        return torch.tensor(values)
    longest = max(map(len, values))
    return torch.tensor([each + [fill] * (longest - len(each)) for each in values])


def _hidden(tensors: Mapping[str, Tensor], tokenizer: Any, seed: int) -> dict[str, Tensor]:
    """Inputs with some words hidden, and these words as labels."""
    if tokenizer.mask_token_id is None:
        raise DataError("the tokenizer has no token for a hidden word: it does not fit a masked model")
    ids = tensors["input_ids"]
    special = torch.isin(ids, torch.tensor(sorted(tokenizer.all_special_ids)))
    drawn = torch.rand(ids.shape, generator=generator(seed, "hidden words")) < HIDDEN
    chosen = drawn & ~special & tensors["attention_mask"].bool()
    return {
        "input_ids": ids.masked_fill(chosen, tokenizer.mask_token_id),
        "labels": ids.masked_fill(~chosen, IGNORED),
    }
