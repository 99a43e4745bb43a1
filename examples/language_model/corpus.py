"""Text that every Python installation has: the sources and docs of its packages, as tokens of a byte-pair encoding of their own.

A text is a file; those that occur twice count once. A hundredth of the sources, drawn by their content, is held out. Pages of
documentation (`.md`, `.rst`, and the descriptions in `*.dist-info/METADATA`) go to fine-tuning, a tenth of them held out, and
to no other part.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

PARTS = {"sources": 0.01, "pages": 0.1}
"""The parts of the corpus, and how much of each is held out."""
SHORTEST, LONGEST = 300, 400_000
"""Characters of the files that are taken: empty ones and generated tables are not."""
END = "<|endoftext|>"
BATCH = 2000


@dataclass(frozen=True)
class Corpus:
    """Tokens by part, "sources", "sources held out", "pages", "pages held out", each one long row; and how they were made."""

    tokens: dict[str, Tensor]
    about: dict[str, int]

    def rows(self, part: str, length: int) -> Tensor:
        """All tokens of a part in rows of one length (n, length); what is left over is dropped."""
        tokens = self.tokens[part]
        return tokens[: len(tokens) // length * length].view(-1, length).long()


def prepared(folder: Path, vocabulary: int, megabytes: float) -> Corpus:
    """The corpus of this installation, from the folder if it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "corpus.json").exists():
        _make(folder, vocabulary, int(megabytes * 1e6))
    about = json.loads((folder / "corpus.json").read_text())
    names = [name for part in PARTS for name in (part, f"{part} held out")]
    return Corpus({name: torch.from_numpy(np.load(folder / f"{name}.npy").astype(np.int32)) for name in names}, about)


def _make(folder: Path, vocabulary: int, most: int) -> None:
    texts: dict[str, list[str]] = {name: [] for part in PARTS for name in (part, f"{part} held out")}
    for name, text in _texts(most):
        texts[name].append(text)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts["sources"][::4] + texts["pages"][::2], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    end, about = tokenizer.token_to_id(END), {"vocabulary": tokenizer.get_vocab_size()}
    for name, held in texts.items():
        rows: list[int] = []
        for start in range(0, len(held), BATCH):
            for encoding in tokenizer.encode_batch(held[start : start + BATCH]):
                rows += [end, *encoding.ids]
        np.save(folder / f"{name}.npy", np.array(rows, dtype=np.uint16 if vocabulary <= 2**16 else np.int32))
        about |= {f"{name}: files": len(held), f"{name}: characters": sum(map(len, held)), f"{name}: tokens": len(rows)}
    (folder / "corpus.json").write_text(json.dumps(about, indent=1))


def _texts(most: int) -> Iterator[tuple[str, str]]:
    """(part, text) of every file, in an order that contents determine; at most this many characters of sources to train on."""
    root, seen, found = Path(sysconfig.get_paths()["purelib"]), set(), []
    for path in root.rglob("*"):
        part = "sources" if path.suffix == ".py" else "pages" if path.suffix in (".md", ".rst") else ""
        part = "pages" if path.name == "METADATA" else part
        if not part or not path.is_file():
            continue
        text = path.read_text("utf-8", errors="ignore")
        key = hashlib.sha256(text.encode()).hexdigest()
        if SHORTEST <= len(text) <= LONGEST and key not in seen:
            seen.add(key)
            found.append((key, part, text))
    taken = 0
    for key, part, text in sorted(found):
        if int(key[:8], 16) / 16**8 < PARTS[part]:
            yield f"{part} held out", text
        elif part == "pages" or taken < most:
            taken += len(text) if part == "sources" else 0
            yield part, text
