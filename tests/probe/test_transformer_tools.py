"""Transformers as other tools hand them over: adapters, accelerate, Trainer, patches, autocast, offloading, raw data sets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformer_models import case, gpt2, texts

from landscope import Probe
from landscope.core import errors
from landscope.curvature import GGN, Hessian
from landscope.probe.conditions import measuring

transformers = pytest.importorskip("transformers", reason="needs transformers")
peft = pytest.importorskip("peft", reason="needs peft")
accelerate = pytest.importorskip("accelerate", reason="needs accelerate")


@pytest.fixture(autouse=True)
def accelerators() -> Iterator[None]:
    """What an accelerator keeps for the whole process is gone afterwards."""
    yield
    accelerate.state.AcceleratorState._reset_state(True)


def fresh(dtype: torch.dtype = torch.float64) -> nn.Module:
    return copy.deepcopy(case("gpt2").model).to(dtype)


def own(model: nn.Module, batch: dict[str, Tensor]) -> float:
    with torch.no_grad():
        return float(model.eval()(**batch).loss)


def low_rank(**options: object) -> nn.Module:
    config = peft.LoraConfig(
        r=2, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, task_type="CAUSAL_LM", **options
    )
    model = peft.get_peft_model(fresh(), config).double()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.3)
    return model


def test_low_rank_adapters() -> None:
    """Only the adapters are measured; their Hessian is that of plain autograd on the adapted model."""
    model, batch = low_rank(lora_dropout=0.5), case("gpt2").batch
    probe = Probe(model, batch)
    adapters = [p for p in model.eval().parameters() if p.requires_grad]
    assert probe.n_params == sum(p.numel() for p in adapters)
    assert probe.value() == pytest.approx(own(model, batch), rel=1e-6)
    assert probe.n_params == Probe(model, batch, params="*lora_*").n_params
    v = torch.randn(probe.n_params, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parts = v.split([p.numel() for p in adapters])
    with measuring(torch.device("cpu")):
        loss = case("gpt2").truth(model(**batch), batch)
        slopes = torch.autograd.grad(loss, adapters, create_graph=True)
        along = sum(((g.flatten() * part).sum() for g, part in zip(slopes, parts, strict=True)), torch.zeros(()))
        truth = torch.cat([g.flatten() for g in torch.autograd.grad(along, adapters)])
    assert float((Hessian(probe) @ v - truth).norm() / truth.norm()) < 1e-10


def soft_prompt() -> nn.Module:
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    return peft.get_peft_model(fresh(), config).double()


def prefix() -> nn.Module:
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    return peft.get_peft_model(fresh(), config).double()


@pytest.mark.parametrize(("make", "size"), [(soft_prompt, 8), (prefix, 32)])
def test_soft_prompts(make: Callable[[], nn.Module], size: int) -> None:
    model, batch = make(), case("gpt2").batch
    probe = Probe(model, batch)
    assert probe.n_params == size
    assert probe.value() == pytest.approx(own(model, batch), rel=1e-6)
    assert probe.loss.name == "model's cross_entropy of the next token"
    assert float((GGN(probe) @ probe.vector()).norm()) > 0


def test_adapters_with_a_constant_in_their_gradient_are_refused() -> None:
    """DoRA takes the norm of the adapted weight for a constant, so that its gradient is not that of the loss."""
    model = peft.get_peft_model(
        copy.deepcopy(case("llama").model),
        peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", use_dora=True),
    ).double()
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter)
    with pytest.raises(errors.ModelError, match="is not that of the loss"):
        Probe(model, case("llama").batch)


def test_a_mask_of_one_row() -> None:
    one = case("gpt2")
    with pytest.raises(errors.DataError, match=r"One row of 'position_ids' for all samples\?.*expand\(6"):
        Probe(one.model, {**one.batch, "position_ids": torch.arange(7)[None]})


def test_adapters_take_the_columns_of_the_model_inside() -> None:
    one = case("bert_classes")
    config = peft.LoraConfig(r=1, target_modules=["query"], task_type="SEQ_CLS")
    model = peft.get_peft_model(copy.deepcopy(one.model), config).double()
    batch = {**one.batch, "token_type_ids": torch.ones_like(one.batch["input_ids"]), "idx": torch.arange(6)}
    probe = Probe(model, batch)
    del batch["idx"]
    assert probe.value() == pytest.approx(own(model, batch), rel=1e-6)
    assert probe.notices[-1] == "not arguments of the model, and left out of the batches: idx"


def prepared() -> nn.Module:
    return accelerate.Accelerator(cpu=True).prepare(fresh(torch.float32))


def prepared_in_half() -> nn.Module:
    return accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare(fresh(torch.float32))


def dispatched() -> nn.Module:
    return accelerate.dispatch_model(fresh(torch.float32), device_map={"": "cpu"}, force_hooks=True)


def patched() -> nn.Module:
    model = fresh(torch.float32)
    old = model.forward
    model.forward = lambda *args, **kwargs: old(*args, **kwargs)  # type: ignore[method-assign]
    return model


def patched_inside() -> nn.Module:
    model = fresh(torch.float32)
    block = model.transformer.h[0].mlp
    old = block.forward
    block.forward = lambda x: old(x)
    return model


def checkpointed() -> nn.Module:
    model = fresh(torch.float32)
    model.gradient_checkpointing_enable()
    return model.train()


def compiled() -> nn.Module:
    return torch.compile(fresh(torch.float32), backend="eager")  # type: ignore[return-value]


@pytest.mark.parametrize(
    "make", [prepared, prepared_in_half, dispatched, patched, patched_inside, checkpointed, compiled]
)
def test_handed_over_by_other_tools(make: Callable[[], nn.Module]) -> None:
    batch = {**case("gpt2").batch, "idx": torch.arange(6)}
    plain = Probe(fresh(torch.float32), batch)
    probe = Probe(make(), batch)
    assert probe.value() == pytest.approx(plain.value(), rel=1e-6)
    assert probe.loss.name == plain.loss.name
    v = torch.ones(probe.n_params)
    assert torch.allclose(Hessian(probe) @ v, Hessian(plain) @ v, atol=1e-5)


def test_inside_autocast() -> None:
    one = case("gpt2")
    outside = Probe(one.model, one.batch).value()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert Probe(one.model, one.batch).value() == outside


def test_after_a_trainer(tmp_path: Path) -> None:
    batch = case("gpt2").batch
    rows = [{key: tensor[i] for key, tensor in batch.items()} for i in range(6)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        report_to=[],
        use_cpu=True,
        max_steps=2,
        per_device_train_batch_size=2,
        save_strategy="no",
        bf16=True,
        disable_tqdm=True,
    )
    model = fresh(torch.float32)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    clean = fresh(torch.float32)
    clean.load_state_dict(weights)
    truth = Probe(clean, batch).value()
    for given, data in (
        (trainer.model, batch),
        (trainer.model_wrapped, batch),
        (trainer.model, trainer.get_train_dataloader()),
    ):
        assert Probe(given, data).value() == pytest.approx(truth, rel=1e-6)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


def test_the_users_configuration_stays() -> None:
    model = fresh()
    Probe(model, case("gpt2").batch)
    assert model.config.use_cache is True


@pytest.mark.parametrize("make", [lambda m, path: accelerate.disk_offload(m, path), lambda m, path: m.to("meta")])
def test_weights_that_are_elsewhere(make: Callable[[nn.Module, Path], nn.Module], tmp_path: Path) -> None:
    with pytest.raises(errors.ModelError, match=r"meta device.*device_map=None"):
        Probe(make(gpt2().model, tmp_path), case("gpt2").batch)


class Rows(Dataset[dict[str, object]]):
    def __init__(self, rows: list[dict[str, object]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, object]:
        return self.rows[at]


def test_rows_of_a_raw_data_set() -> None:
    model = case("gpt2").model
    lists: list[dict[str, object]] = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3], "text": "a"} for _ in range(4)]
    for data in (Rows(lists), lists):
        with pytest.raises(errors.DataError, match="rows of a raw data set"):
            Probe(model, data)
    words: list[dict[str, object]] = [{"text": "a b", "label": 1} for _ in range(4)]
    with pytest.raises(errors.DataError, match="into tokens first"):
        Probe(model, Rows(words))


def test_columns_that_are_not_arguments() -> None:
    """Texts and numbers of rows are left out, with a notice; single rows can still be taken."""
    one = case("gpt2")
    rows: list[dict[str, object]] = [
        {**{key: tensor[i] for key, tensor in one.batch.items()}, "text": "abc", "idx": i} for i in range(6)
    ]
    probe = Probe(one.model, Rows(rows))
    assert probe.value() == Probe(one.model, one.batch).value()
    assert probe.takes_rows
    assert probe.notices == ("not arguments of the model, and left out of the batches: text, idx",)


def test_batches_without_labels() -> None:
    with pytest.raises(errors.MissingTargetsError, match="'labels': input_ids"):
        Probe(case("gpt2").model, texts())
    with pytest.raises(errors.LossError, match="returns no loss"):
        Probe(case("gpt2").model, texts(), "model")
