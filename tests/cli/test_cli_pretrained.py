"""`landscope measure --model hf:FOLDER --data texts`: the numbers are those of the model's own loss on hand-made batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pretrained_folders import TEXTS, saved, tokenizer

import landscope

transformers = pytest.importorskip("transformers", reason="needs transformers")

Call = Callable[..., tuple[int, str, str]]


def written(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def measured(call: Call, folder: Path, data: Path, *words: object) -> landscope.Report:
    code, out, err = call("measure", "--model", f"hf:{folder}", "--data", data, *words, "--json")
    assert code == 0, err
    return landscope.Report.from_json(out)


def padded(texts: list[str]) -> dict[str, torch.Tensor]:
    return dict(tokenizer()(texts, padding=True, return_tensors="pt"))


def test_a_language_model_on_lines_of_text(call: Call, tmp_path: Path) -> None:
    folder = saved(tmp_path / "gpt2", "GPT2LMHeadModel")
    model = transformers.GPT2LMHeadModel.from_pretrained(folder)
    batch = padded(TEXTS)
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    keys = ["loss", "accuracy", "ggn_top_eigenvalue"]
    truth = landscope.measure(model, batch, keys)
    with torch.no_grad():
        assert truth["loss"].value == pytest.approx(float(model.eval()(**batch).loss), rel=1e-5)
    (tmp_path / "texts.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")
    for data in (tmp_path / "texts.txt", written(tmp_path / "texts.jsonl", [{"text": t, "id": 1} for t in TEXTS])):
        report = measured(call, folder, data, "--measures", ",".join(keys))
        assert {k: e.value for k, e in report.items()} == pytest.approx(
            {k: e.value for k, e in truth.items()}, rel=1e-5
        )
        assert report.about["samples"] == "4 sequences, 19 tokens"
        assert report.about["loss"] == "model's cross_entropy of the next token, per token"
    code, _, err = call("measure", "--model", f"hf:{folder}", "--data", data, "--measures", "loss", "--max-length", 4)
    assert code == 0
    assert "3 of 4 texts are cut to 4 tokens" in err


def test_only_completions_count_after_a_prompt(call: Call, tmp_path: Path) -> None:
    folder = saved(tmp_path / "gpt2", "GPT2LMHeadModel")
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    rows = written(tmp_path / "rows.jsonl", [{"prompt": "the cat", "completion": " sat on"}])
    ids = tokenizer()("the cat sat on", return_tensors="pt")["input_ids"]
    labels = ids.masked_fill(torch.arange(4) < 2, -100)
    with torch.no_grad():
        truth = float(model(input_ids=ids, labels=labels).loss)
    assert measured(call, folder, rows, "--measures", "loss")["loss"].value == pytest.approx(truth, rel=1e-5)


def test_classes_by_number_and_by_name(call: Call, tmp_path: Path) -> None:
    folder = saved(tmp_path / "bert", "BertForSequenceClassification", num_labels=3)
    model = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        truth = float(model(**padded(TEXTS), labels=torch.tensor([0, 1, 2, 0])).loss)
    for name in ("number", "name"):
        labels = [0, 1, 2, 0] if name == "number" else [f"LABEL_{i}" for i in (0, 1, 2, 0)]
        rows = [{"body": t, "kind": label} for t, label in zip(TEXTS, labels, strict=True)]
        data = written(tmp_path / f"{name}.jsonl", rows)
        words = ["--text-column", "body", "--label-column", "kind", "--measures", "loss"]
        assert measured(call, folder, data, *words)["loss"].value == pytest.approx(truth, rel=1e-5)


def test_an_encoder_and_a_decoder(call: Call, tmp_path: Path) -> None:
    folder = saved(tmp_path / "t5", "T5ForConditionalGeneration")
    model = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    labels = padded(TEXTS[::-1])
    ids = labels["input_ids"].masked_fill(labels["attention_mask"] == 0, -100)
    with torch.no_grad():
        truth = float(model(**padded(TEXTS), labels=ids).loss)
    rows = [{"text": a, "target": b} for a, b in zip(TEXTS, TEXTS[::-1], strict=True)]
    report = measured(call, folder, written(tmp_path / "rows.jsonl", rows), "--measures", "loss")
    assert report["loss"].value == pytest.approx(truth, rel=1e-5)


def test_classes_of_words(call: Call, tmp_path: Path) -> None:
    folder = saved(tmp_path / "bert", "BertForTokenClassification", num_labels=2)
    model = transformers.BertForTokenClassification.from_pretrained(folder).eval()
    rows: list[dict[str, object]] = [{"tokens": t.split(), "labels": [1] * len(t.split())} for t in TEXTS]
    batch = padded(TEXTS)
    with torch.no_grad():
        truth = float(
            model(**batch, labels=torch.ones_like(batch["input_ids"]).where(batch["attention_mask"] > 0, -100)).loss
        )
    report = measured(call, folder, written(tmp_path / "rows.jsonl", rows), "--measures", "loss,accuracy")
    assert report["loss"].value == pytest.approx(truth, rel=1e-5)


def test_hidden_words_are_drawn_by_the_seed(call: Call, tmp_path: Path) -> None:
    folder = saved(tmp_path / "bert", "BertForMaskedLM")
    data = written(tmp_path / "rows.jsonl", [{"text": t} for t in TEXTS * 3])
    found = [measured(call, folder, data, "--measures", "loss", "--seed", seed)["loss"].value for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


def test_adapters_for_a_model(call: Call, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    base = transformers.GPT2LMHeadModel.from_pretrained(saved(tmp_path / "gpt2", "GPT2LMHeadModel"))
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    adapted.save_pretrained(tmp_path / "lora")
    tokenizer().save_pretrained(tmp_path / "lora")
    data = written(tmp_path / "rows.jsonl", [{"text": t} for t in TEXTS])
    report = measured(call, tmp_path / "lora", data, "--measures", "loss,hessian_top_eigenvalue")
    assert str(report.about["parameters"]).startswith("64 of ")  # 2 · (8 + 24)
    assert report["hessian_top_eigenvalue"].status.has_value


def refused(call: Call, *words: object) -> str:
    code, _, err = call("measure", *words, "--measures", "loss")
    assert code == 2
    return err


def test_what_cannot_be_measured_is_said_in_words(call: Call, tmp_path: Path) -> None:
    folder = saved(tmp_path / "bert", "BertForSequenceClassification", num_labels=3)
    texts = written(tmp_path / "texts.jsonl", [{"text": t} for t in TEXTS])
    model = ["--model", f"hf:{folder}", "--data"]
    assert "row 1 has no 'label', only text" in refused(call, *model, texts)
    assert "no such file" in refused(call, *model, tmp_path / "none.jsonl")
    (tmp_path / "table.csv").write_text("text\na\n", encoding="utf-8")
    assert ".jsonl" in refused(call, *model, tmp_path / "table.csv")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"\n', encoding="utf-8")
    assert "bad.jsonl, line 1" in refused(call, *model, tmp_path / "bad.jsonl")
    strange = written(tmp_path / "strange.jsonl", [{"text": "a", "label": "happy"}])
    assert "LABEL_0, LABEL_1, LABEL_2" in refused(call, *model, strange)
    assert "needs a CHECKPOINT" in refused(call, "--model", "mlp", "--data", "digits")
    (tmp_path / "empty").mkdir()
    assert "could not be read" in refused(call, "--model", f"hf:{tmp_path / 'empty'}", "--data", texts)
