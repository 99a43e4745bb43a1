"""Two processes with half of the batch each step as one process with the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from processes import run_together
from sam_problems import BASES, batch, closure_of, distance, loss_of, network, sam_for, weights
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

STEPS, HALF, PIECES = 3, 6, [4, 2]
ROUNDING = 1e-11
VIEWS = {"copies": False, "views": True}  # how gradients lie in what the processes exchange


def pieces(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(PIECES), y.split(PIECES), strict=True))


def train(rank: int, folder: Path) -> None:
    results: dict[str, Tensor] = {}
    mine = slice(rank * HALF, (rank + 1) * HALF)
    for base in BASES:
        for name, as_views in VIEWS.items():
            for kind in ("sam", "asam", "accumulated", "not clearing", "davda54", "m-sam", "scaled m-sam"):
                inner = network()
                model = DistributedDataParallel(inner, gradient_as_bucket_view=as_views)
                sam = sam_for(inner, base, adaptive=kind == "asam")
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6) if kind == "scaled m-sam" else None
                for seed in range(STEPS):
                    x, y = (t[mine] for t in batch(seed=seed))
                    if kind.endswith("m-sam"):
                        losses = [loss_of(model, xs, ys) for xs, ys in pieces(x, y)]
                        sam.micro_batch_step(losses, PIECES, model=model, scaler=scaler)
                    elif kind == "accumulated":
                        sam.step(lambda sam=sam, model=model, x=x, y=y: accumulate(sam, model, x, y))
                    elif kind in ("not clearing", "davda54"):
                        loss = loss_of(model, x, y)
                        if kind == "davda54":
                            sam.zero_grad()
                            loss().backward()
                        sam.step(lambda loss=loss: [value := loss(), value.backward()][0])
                    else:
                        sam.step(closure_of(sam, loss_of(model, x, y)))
                results[f"{base} {name} {kind}"] = weights(inner)
    model = DistributedDataParallel(inner := network())
    sam = sam_for(inner, "momentum")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    x, y = batch()
    good, bad = loss_of(model, x, y), (lambda: loss_of(model, x, y)() * float("inf"))
    sam.micro_batch_step([good, bad] if rank == 1 else [good, good], model=model, scaler=scaler)
    results["skipped"] = torch.cat([weights(inner), torch.tensor([scaler.get_scale()])])
    torch.save(results, folder / f"{rank}.pt")


def accumulate(sam: torch.optim.Optimizer, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Gradients over two micro-batches, exchanged once."""
    sam.zero_grad()
    (first, last) = pieces(x, y)
    with model.no_sync():
        start = loss_of(model, *first)() * len(first[0]) / len(x)
        start.backward()
    rest = loss_of(model, *last)() * len(last[0]) / len(x)
    rest.backward()
    return start.detach() + rest.detach()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("ranks")
    run_together(train, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("kind", ["sam", "asam", "accumulated", "not clearing", "davda54", "m-sam", "scaled m-sam"])
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("base", BASES)
def test_two_processes_are_one(ranks: list[dict[str, Tensor]], base: str, name: str, kind: str) -> None:
    model = network()
    sam = sam_for(model, base, adaptive=kind == "asam")
    for seed in range(STEPS):
        x, y = batch(seed=seed)
        if kind.endswith("m-sam"):
            parts = [*pieces(x[:HALF], y[:HALF]), *pieces(x[HALF:], y[HALF:])]
            sam.micro_batch_step([loss_of(model, xs, ys) for xs, ys in parts], PIECES * 2)
        else:
            sam.step(closure_of(sam, loss_of(model, x, y)))
    for results in ranks:
        assert distance(results[f"{base} {name} {kind}"], weights(model)) < ROUNDING


def test_perturbations_of_one_and_of_many_differ(ranks: list[dict[str, Tensor]]) -> None:
    """Otherwise the comparison above could not tell averaged from local perturbations."""
    for base in BASES:
        assert distance(ranks[0][f"{base} copies sam"], ranks[0][f"{base} copies m-sam"]) > 1e-4


def test_every_process_has_the_same_bits(ranks: list[dict[str, Tensor]]) -> None:
    first, second = ranks
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


def test_overflow_in_one_process_skips_the_step_in_both(ranks: list[dict[str, Tensor]]) -> None:
    for results in ranks:
        assert torch.equal(results["skipped"][:-1], weights(network()))
        assert results["skipped"][-1] == 2.0
