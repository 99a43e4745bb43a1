"""How sharp does a language model get while it is trained, and which of its blocks are flatter after SAM?

    python experiment.py runs/lm                  # GPT-2's size, on a GPU: about ten minutes on an H200
    python experiment.py runs/lm --size tiny      # seconds, on two cores
    python page.py                                # the tables and figures of README.md from results.json

A GPT-2 is trained on the sources of the installed Python packages and measured at ten checkpoints: λ₁, the trace of every
block, and the learning rate 2/λ₁ above which plain gradient descent climbs along the sharpest direction, beside the rate that was
used. (AdamW divides gradients by √v̂ and has another limit: 2/λ₁ says how far the two are apart, not whether AdamW is stable.)
The network is then fine-tuned on pages of documentation with AdamW and with SAM around it, three seeds each.

What is done is kept in the folder; run the same command to resume.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from corpus import Corpus, prepared
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import landscope as ls

METHODS, SEEDS = ("AdamW", "SAM"), (0, 1, 2)


@dataclass(frozen=True)
class Settings:
    """Everything that a run depends on."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    length: int = 512
    vocabulary: int = 50257
    megabytes: float = 120.0
    batch: int = 64
    steps: int = 800
    rate: float = 6e-4
    warmup: int = 60
    decay: float = 0.1
    checkpoints: tuple[int, ...] = (0, 10, 30, 60, 120, 200, 320, 480, 640, 800)
    tuning_steps: int = 150
    tuning_batch: int = 32
    tuning_rate: float = 1e-4
    rho: float = 0.05
    measured: int = 16
    """Sequences that are measured on; the loss on held-out rows takes eight times as many."""
    seconds: float = 5.0
    """For the traces of all blocks of one network."""


SIZES = {
    "full": Settings(),
    "tiny": Settings(
        layers=2,
        width=32,
        heads=2,
        length=64,
        vocabulary=1000,
        megabytes=0.4,
        batch=8,
        steps=60,
        rate=3e-3,
        warmup=10,
        checkpoints=(0, 20, 60),
        tuning_steps=10,
        tuning_batch=8,
        tuning_rate=1e-3,
        measured=8,
        seconds=2.0,
    ),
}


class Results:
    """What is known so far, by name, in one file that is written again after each entry."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """The entry of this name, made now if it is not there."""
        if name not in self.entries:
            start = time.monotonic()
            self.entries[name] = make()
            self.path.write_text(json.dumps(self.entries, indent=1))
            print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
        return self.entries[name]


def new_model(settings: Settings, device: str) -> GPT2LMHeadModel:
    """A GPT-2 without dropout, from a seed."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=settings.vocabulary,
        n_positions=settings.length,
        n_embd=settings.width,
        n_layer=settings.layers,
        n_head=settings.heads,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).to(device)


def rate_at(settings: Settings, step: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < settings.warmup:
        return settings.rate * (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return settings.rate * (0.55 + 0.45 * math.cos(math.pi * done))


def batches(rows: Tensor, size: int, seed: int, device: str) -> Iterator[Tensor]:
    """Rows in a random order, again and again."""
    assert len(rows) >= size, f"{len(rows)} rows are not a batch of {size}"
    rng = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(rows), generator=rng)
        for start in range(0, len(rows) - size + 1, size):
            yield rows[order[start : start + size]].to(device, non_blocking=True)


def loss_of(model: GPT2LMHeadModel, rows: Tensor) -> Tensor:
    """The model's own loss, in bfloat16 where there is a GPU."""
    with torch.autocast(rows.device.type, torch.bfloat16, enabled=rows.device.type == "cuda"):
        return model(input_ids=rows, labels=rows).loss


@torch.no_grad()
def mean_loss(model: GPT2LMHeadModel, rows: Tensor, size: int, device: str) -> float:
    """The mean loss of some rows."""
    model.eval()
    losses = [float(loss_of(model, part.to(device))) * len(part) for part in rows.split(size)]
    return sum(losses) / len(rows)


def pretrain(settings: Settings, corpus: Corpus, folder: Path, device: str) -> dict[str, Any]:
    """Train; the weights at every checkpoint stay in the folder."""
    model = new_model(settings, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.rate, betas=(0.9, 0.95), weight_decay=settings.decay)
    data = batches(corpus.rows("sources", settings.length), settings.batch, 0, device)
    start, losses = time.monotonic(), []
    for step in range(settings.steps + 1):
        if step in settings.checkpoints:
            torch.save(model.state_dict(), folder / f"step{step}.pt")
        if step == settings.steps:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate_at(settings, step)
        model.train()
        loss = loss_of(model, next(data))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0 or step == settings.steps - 1:
            losses.append((step, float(loss.detach())))
    return {"losses": losses, "seconds": time.monotonic() - start}


def fine_tune(settings: Settings, corpus: Corpus, folder: Path, device: str, method: str, seed: int) -> dict[str, Any]:
    """From the last checkpoint, on pages of documentation: AdamW, or SAM around it for as many steps."""
    model = restored(settings, folder / f"step{settings.steps}.pt", device)
    options = {"lr": settings.tuning_rate, "betas": (0.9, 0.95), "weight_decay": settings.decay}
    plain = method == "AdamW"
    optimizer: Any = (
        torch.optim.AdamW(model.parameters(), **options)
        if plain
        else ls.SAM(model.parameters(), torch.optim.AdamW, rho=settings.rho, **options)
    )
    rows = corpus.rows("pages", settings.length)
    data, start = batches(rows, settings.tuning_batch, seed, device), time.monotonic()
    model.train()
    for _ in range(settings.tuning_steps):
        batch = next(data)
        loss_of(model, batch).backward()
        if plain:
            optimizer.step()
        else:
            optimizer.first_step(zero_grad=True)
            loss_of(model, batch).backward()
            optimizer.second_step()
        optimizer.zero_grad(set_to_none=True)
    torch.save(model.state_dict(), folder / f"{method}-{seed}.pt")
    tokens = settings.tuning_steps * settings.tuning_batch * settings.length
    return {"seconds": time.monotonic() - start, "epochs": tokens / rows.numel()}


def restored(settings: Settings, path: Path, device: str) -> GPT2LMHeadModel:
    """A model with the weights of a checkpoint."""
    model = new_model(settings, device)
    model.load_state_dict(torch.load(path, map_location=device))
    return model


def number(estimate: ls.Estimate) -> dict[str, Any]:
    """An estimate as plain values."""
    return {
        "value": estimate.value,
        "stderr": estimate.stderr,
        "data_stderr": estimate.data_stderr,
        "status": estimate.status.value,
        "seconds": round(estimate.cost.seconds, 2),
    }


def sharpness(settings: Settings, model: GPT2LMHeadModel, rows: Tensor) -> dict[str, Any]:
    """λ₁ and the gradient's norm of the whole network, and the trace of every block, in float32."""
    rows = rows[: settings.measured].to(model.device)
    probe = ls.Probe(model, {"input_ids": rows, "labels": rows})
    wanted = {"loss": {}, "gradient_norm": {}, "hessian_top_eigenvalue": {"tol": 0.01}}
    found = {name: number(estimate) for name, estimate in ls.measure(probe, measures=wanted).items()}
    blocks = ls.by_block(probe, measures=["hessian_trace"], seconds=settings.seconds)["hessian_trace"]
    return {**found, "blocks": {str(block): number(estimate) for block, estimate in blocks.items()}}


def run(settings: Settings, folder: Path, device: str) -> None:
    """Everything that the folder does not hold yet."""
    results = Results(folder / "results.json")
    results.once("settings", lambda: asdict(settings))
    results.once("machine", lambda: machine(device))
    corpus = prepared(folder / "corpus", settings.vocabulary, settings.megabytes)
    results.once("corpus", lambda: corpus.about)
    settings = replace(settings, vocabulary=corpus.about["vocabulary"])
    results.once("pretraining", lambda: pretrain(settings, corpus, folder, device))
    for method in METHODS:
        for seed in SEEDS:
            name = f"{method} {seed}"
            results.once(name, lambda m=method, s=seed: fine_tune(settings, corpus, folder, device, m, s))
    rows = {part: corpus.rows(part, settings.length) for part in corpus.tokens}
    few = 8 * settings.measured

    def losses(model: GPT2LMHeadModel, part: str) -> dict[str, float]:
        names = {"training": part, "held out": f"{part} held out"}
        return {name: mean_loss(model, rows[each][:few], settings.tuning_batch, device) for name, each in names.items()}

    def measured(path: Path, part: str) -> dict[str, Any]:
        model = restored(settings, path, device)
        return {"losses": losses(model, part), **sharpness(settings, model, rows[part])}

    for seed in SEEDS:
        for method in METHODS:
            path = folder / f"{method}-{seed}.pt"
            results.once(f"{method} {seed} measured", lambda path=path: measured(path, "pages"))
    first = folder / f"step{settings.steps}.pt"
    results.once("before fine-tuning", lambda: measured(first, "pages"))
    for step in settings.checkpoints:
        path = folder / f"step{step}.pt"
        results.once(f"step {step}", lambda path=path: measured(path, "sources"))


def machine(device: str) -> dict[str, str]:
    """Where this runs."""
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {"device": name, "torch": torch.__version__, "landscope": ls.__version__}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="full")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    run(deepcopy(SIZES[given.size]), given.folder, "cuda" if torch.cuda.is_available() else "cpu")
