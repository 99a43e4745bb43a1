"""Tiny random transformers with data of their own, and the loss of each written out on its logits in float64."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

N, T, V = 6, 7, 11
SMALL = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A model, a batch, and its loss as a function of what the model returns and of the batch."""

    model: nn.Module
    batch: Batch
    truth: Callable[[object, Batch], Tensor]
    logits: Callable[[object], Tensor] = lambda outputs: outputs.logits  # type: ignore[attr-defined]
    name: str = "cross_entropy"


def drawn(*shape: int, below: int = V, seed: int = 0) -> Tensor:
    return torch.randint(1, below, shape, generator=torch.Generator().manual_seed(seed))


def texts() -> Batch:
    """Sequences of different lengths, padded at their end."""
    lengths = torch.tensor([7, 3, 5, 7, 2, 6])
    mask = (torch.arange(T) < lengths[:, None]).long()
    return {"input_ids": drawn(N, T) * mask, "attention_mask": mask}


def padded(labels: Tensor) -> Tensor:
    return labels.masked_fill(texts()["attention_mask"] == 0, -100)


def over_tokens(outputs: object, batch: Batch) -> Tensor:
    return F.cross_entropy(outputs.logits.flatten(0, 1), batch["labels"].flatten())  # type: ignore[attr-defined]


def over_next_tokens(outputs: object, batch: Batch) -> Tensor:
    z = outputs.logits[:, :-1]  # type: ignore[attr-defined]
    return F.cross_entropy(z.flatten(0, 1), batch["labels"][:, 1:].flatten())


def over_classes(outputs: object, batch: Batch) -> Tensor:
    return F.cross_entropy(outputs.logits, batch["labels"])  # type: ignore[attr-defined]


def over_spans(outputs: object, batch: Batch) -> Tensor:
    start, end = outputs.start_logits, outputs.end_logits  # type: ignore[attr-defined]
    return (F.cross_entropy(start, batch["start_positions"]) + F.cross_entropy(end, batch["end_positions"])) / 2


def causal() -> Batch:
    return {**texts(), "labels": padded(texts()["input_ids"])}


def _bert(kind: str, **options: object) -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=V,
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=6,
        max_position_embeddings=T,
        **options,
    )
    return getattr(transformers, f"BertFor{kind}")(config)


def gpt2() -> Case:
    import transformers

    config = transformers.GPT2Config(vocab_size=V, n_positions=T + 3, n_embd=4, n_layer=2, n_head=2, **SMALL)
    return Case(transformers.GPT2LMHeadModel(config), causal(), over_next_tokens)


def llama() -> Case:
    """Grouped queries: four heads share two keys."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=V,
        hidden_size=8,
        intermediate_size=6,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        **SMALL,
    )
    return Case(transformers.LlamaForCausalLM(config), causal(), over_next_tokens)


def mixtral(router: bool = False) -> Case:
    """Two of three experts for each token; with `router`, a loss that keeps them busy alike."""
    import transformers

    config = transformers.MixtralConfig(
        vocab_size=V,
        hidden_size=4,
        intermediate_size=3,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=3,
        num_experts_per_tok=2,
        output_router_logits=router,
        router_aux_loss_coef=0.1,
        experts_implementation="eager",  # others know no float64
        **SMALL,
    )
    return Case(transformers.MixtralForCausalLM(config), causal(), over_next_tokens)


def mamba() -> Case:
    import transformers

    config = transformers.MambaConfig(vocab_size=V, hidden_size=4, state_size=2, num_hidden_layers=1, expand=1, **SMALL)
    return Case(transformers.MambaForCausalLM(config), causal(), over_next_tokens)


def bert_classes() -> Case:
    return Case(_bert("SequenceClassification", num_labels=3), {**texts(), "labels": torch.arange(N) % 3}, over_classes)


def bert_tokens() -> Case:
    return Case(
        _bert("TokenClassification", num_labels=3), {**texts(), "labels": padded(drawn(N, T, below=3))}, over_tokens
    )


def bert_masked() -> Case:
    batch = texts()
    hidden = (drawn(N, T, below=4, seed=3) == 1) & (batch["attention_mask"] == 1)
    labels = torch.where(hidden, batch["input_ids"], -100)
    return Case(_bert("MaskedLM"), {**batch, "labels": labels}, over_tokens)


def bert_answers() -> Case:
    places = {"start_positions": torch.arange(N) % 3, "end_positions": 3 + torch.arange(N) % 4}
    return Case(
        _bert("QuestionAnswering"),
        {**texts(), **places},
        over_spans,
        lambda outputs: torch.stack([outputs.start_logits, outputs.end_logits], 1),  # type: ignore[attr-defined]
    )


def bert_several() -> Case:
    """Yes/no labels."""
    labels = (drawn(N, 3, below=5, seed=4) > 2).double()
    return Case(
        _bert("SequenceClassification", num_labels=3, problem_type="multi_label_classification"),
        {**texts(), "labels": labels},
        lambda outputs, batch: F.binary_cross_entropy_with_logits(outputs.logits, batch["labels"]),  # type: ignore[attr-defined]
        name="binary_cross_entropy",
    )


def bert_numbers() -> Case:
    labels = torch.linspace(-1, 1, N).double()
    return Case(
        _bert("SequenceClassification", num_labels=1),
        {**texts(), "labels": labels},
        lambda outputs, batch: F.mse_loss(outputs.logits[:, 0], batch["labels"]),  # type: ignore[attr-defined]
        name="mse",
    )


def t5() -> Case:
    """The labels are shifted into the decoder by the model itself."""
    import transformers

    config = transformers.T5Config(
        vocab_size=V, d_model=4, d_kv=2, d_ff=6, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    return Case(
        transformers.T5ForConditionalGeneration(config), {**texts(), "labels": padded(drawn(N, T))}, over_tokens
    )


def whisper() -> Case:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=V,
        num_mel_bins=3,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        d_model=4,
        encoder_ffn_dim=4,
        decoder_ffn_dim=4,
        max_source_positions=5,
        max_target_positions=T,
        decoder_start_token_id=1,
        **SMALL,
    )
    sound = torch.randn(N, 3, 10, generator=torch.Generator().manual_seed(1))
    labels = padded(drawn(N, T))
    return Case(
        transformers.WhisperForConditionalGeneration(config), {"input_features": sound, "labels": labels}, over_tokens
    )


def vit() -> Case:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=6,
        image_size=6,
        patch_size=3,
        num_channels=1,
        num_labels=3,
    )
    images = torch.randn(N, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    return Case(
        transformers.ViTForImageClassification(config),
        {"pixel_values": images, "labels": torch.arange(N) % 3},
        over_classes,
    )


CASES: dict[str, Callable[[], Case]] = {
    make.__name__: make
    for make in (
        gpt2,
        llama,
        mixtral,
        mamba,
        bert_classes,
        bert_tokens,
        bert_masked,
        bert_answers,
        bert_several,
        bert_numbers,
        t5,
        whisper,
        vit,
    )
}


@cache
def case(name: str) -> Case:
    """A case in float64, in eval mode, with weights that are not at rest."""
    torch.manual_seed(0)
    made = CASES[name]()
    model = made.model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made
