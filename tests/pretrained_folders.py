"""Folders as `save_pretrained` makes them: a tokenizer of a few words and tiny models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "and", "slept", "barked", "slowly"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = ["the cat sat on the mat", "a dog ran under the tree and barked", "the dog slept", "a cat ran and ran slowly"]


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    named = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    return PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=16, **named)


def saved(folder: Path, kind: str, **options: object) -> Path:
    """A folder with a tiny model of a kind, such as `GPT2LMHeadModel`, and its tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, dict[str, object]] = {
        "GPT2": {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16},
        "Bert": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8},
        "T5": {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0},
    }
    family = next(name for name in sizes if kind.startswith(name))
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(SPECIAL + WORDS), **sizes[family], **ids, **options
    )
    getattr(transformers, kind)(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
