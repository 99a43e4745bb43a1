"""FAM in users' training loops: what they do with models between, around and instead of steps."""

from __future__ import annotations

import copy
import io
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from fam_cases import BY_NAME, CLASSES, F64, cross_entropy, dense_flatness, gradients, relative, vectors
from networks import BY_NAME as NETWORKS
from processes import run_together
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from landscope.core.errors import DifferentiationError
from landscope.training.objectives import FAM


def grads(net: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in net.parameters()])


def after_backward(net: nn.Module, fam: FAM, x: Tensor, y: Tensor) -> Tensor:
    net.zero_grad()
    fam(F.cross_entropy(net(x), y)).backward()
    return grads(net)


def test_training_makes_the_layer_flatter() -> None:
    flatness = {}
    for strength in (0.0, 0.1):
        net, x, y = vectors()
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        with FAM(net, layer="4", strength=strength) as fam, FAM(net, layer="4", strength=1.0) as gauge:
            for _ in range(30):
                optimizer.zero_grad()
                loss = F.cross_entropy(net(x), y)
                gauge(loss)
                fam(loss).backward()
                optimizer.step()
        flatness[strength] = float(gauge.value)
    assert 0 < flatness[0.1] < 0.5 * flatness[0.0]


@pytest.mark.parametrize("probes", [None, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype, probes: int | None) -> None:
    net, x, y = vectors(torch.float32, 32)
    with FAM(net, layer="2", strength=0.5, probes=probes) as fam:
        truth = after_backward(net, fam, x, y).clone()
        value = fam.value
        fam.load_state_dict({"seed": 0, "draws": 0})
        net.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = F.cross_entropy(net(x), y)
            total = fam(loss)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(total).backward()
    assert fam.value.dtype == torch.float32
    eps = torch.finfo(dtype).eps
    assert relative(fam.value, value) < 8 * eps
    assert relative(grads(net) / 1024, truth) < 8 * eps


def test_float16_slopes_do_not_vanish() -> None:
    """A mean over many samples has slopes below the smallest number of float16, which is 6e-8."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 3, bias=False)), torch.randn(2**16, 4)
    with FAM(net, layer="0", strength=1.0) as fam:
        y = torch.arange(len(x)) % CLASSES
        fam((F.cross_entropy(net(x), y, reduction="none") / 8).mean())
        value = fam.value
        with torch.autocast("cpu", torch.float16):
            fam((F.cross_entropy(net(x), y, reduction="none") / 8).mean())
    assert relative(fam.value, value) < 0.05


def test_gradients_accumulate_over_micro_batches() -> None:
    net, x, y = vectors()
    with FAM(net, layer="2", strength=0.3) as fam:
        whole = after_backward(net, fam, x, y).clone()
        net.zero_grad()
        for rows in (slice(0, 4), slice(4, 8), slice(8, 12)):
            (fam(F.cross_entropy(net(x[rows]), y[rows])) / 3).backward()
    assert relative(grads(net), whole) < 1e-12


def test_evaluation_between_steps_changes_nothing() -> None:
    net, x, y = vectors()
    with FAM(net, layer="2", strength=0.3) as fam:
        truth = after_backward(net, fam, x, y).clone()
        net.zero_grad()
        loss = F.cross_entropy(net(x), y)
        with torch.no_grad():
            net.eval()(x.flip(0))
        with torch.inference_mode():
            net(x.flip(0))
        fam(loss).backward()
        assert torch.equal(grads(net), truth)
        net(x.flip(0))  # with gradients, and its loss never given
        assert torch.equal(after_backward(net, fam, x, y), truth)


@pytest.mark.parametrize("layer", ["0", "2", "4"])
def test_checkpointed_activations(layer: str) -> None:
    net, x, y = vectors()
    with FAM(net, layer=layer, strength=0.3) as fam:
        truth = after_backward(net, fam, x, y).clone()
        for _ in range(2):  # what the first backward pass runs again must not disturb the second step
            net.zero_grad()
            outputs = net[4](checkpoint(net[:4], x, use_reentrant=False))
            fam(F.cross_entropy(outputs, y)).backward()
            assert relative(grads(net), truth) < 1e-12


def test_no_graph_is_kept_after_the_call() -> None:
    net, x, y = vectors()
    with FAM(net, layer="2") as fam:
        fam(F.cross_entropy(net(x), y)).backward()
        assert fam._recorder._calls == []
        assert not fam.value.requires_grad


def test_mixing_is_seen_behind_a_head_of_zeros() -> None:
    """No curvature tells of the BatchNorm there, but its operation does."""
    case = BY_NAME["BatchNorm behind"]
    net, x = case.problem()
    saved = net[5].weight.detach().clone()
    with FAM(net, layer="2", strength=1.0) as fam:
        nn.init.zeros_(net[5].weight)
        fam(cross_entropy(net, x))
        assert fam.value == 0
        with torch.no_grad():
            net[5].weight.copy_(saved)
        fam(cross_entropy(net, x))
    assert relative(fam.value, dense_flatness(case, net, x)) < 1e-11


@pytest.mark.parametrize("name", ["scaled_dot_product", "multihead_attention", "transformer_encoder"])
def test_attention_behind_the_layer(name: str) -> None:
    net, (x, y) = NETWORKS[name].model().train(), NETWORKS[name].data(4)
    layer = {
        "scaled_dot_product": "qkv",
        "multihead_attention": "head",
        "transformer_encoder": "encoder.layers.0.linear1",
    }
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    with FAM(net, layer=layer[name], strength=1.0, max_directions=4096) as fam:
        if name == "scaled_dot_product":
            with pytest.raises(DifferentiationError, match="fam.ready"):
                fam(F.cross_entropy(net(x), y))
        with fam.ready():
            total = fam.penalty(F.cross_entropy(net(x), y))
            found = gradients(total, net)
            weight = net.get_submodule(layer[name]).weight
            (slope,) = torch.autograd.grad(F.cross_entropy(net(x), y), weight, create_graph=True)
            rows = [torch.autograd.grad(s, weight, create_graph=True)[0] for s in slope.flatten()]
        hessian = torch.stack(rows).reshape(*weight.shape, *weight.shape)
        truth = torch.einsum("sj,tj,sata->", weight, weight, hessian)
        assert relative(total, truth) < 1e-10
        assert relative(found, gradients(truth, net)) < 1e-10


def test_recurrent_layers_behind() -> None:
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn, self.head = nn.Linear(3, 2), nn.LSTM(2, 3, batch_first=True), nn.Linear(3, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(self.embed(x))[0][:, -1])

    net, x = Net(), torch.randn(4, 5, 3)
    with FAM(net, layer="embed", probes=2) as fam, fam.ready():
        fam(cross_entropy(net, x)).backward()
    assert float(fam.value.abs()) > 0
    assert torch.backends.mkldnn.enabled


def test_copies_and_pickles_of_the_model_are_whole_and_silent() -> None:
    net, x, y = vectors()
    with FAM(net, layer="2") as fam:
        loss = F.cross_entropy(net(x), y)  # a graph is held now
        assert set(net.state_dict()) == set(vectors()[0].state_dict())
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
        twins = [copy.deepcopy(net), torch.load(file, weights_only=False)]
        for twin in twins:
            assert torch.equal(twin(x), net(x))
        loss = F.cross_entropy(net(x), y)
        twins[0](x)
        fam(loss)
    assert not net[2]._forward_hooks
    assert not net._forward_hooks


@dataclass
class Output:
    loss: Tensor
    logits: Tensor


class LikeHuggingFace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.classifier = nn.Linear(4, 5), nn.Linear(5, CLASSES)

    def forward(self, *, inputs: Tensor, labels: Tensor) -> Output:
        logits = self.classifier(input=torch.tanh(self.body(inputs)))
        return Output(F.cross_entropy(logits, labels), logits)


@pytest.mark.parametrize("layer", ["body", "classifier"])
def test_models_that_are_called_with_dicts_and_return_objects(layer: str) -> None:
    torch.manual_seed(0)
    net = LikeHuggingFace().to(F64)
    batch = {"inputs": torch.randn(6, 4, dtype=F64), "labels": torch.arange(6) % CLASSES}
    with FAM(net, layer=layer, strength=1.0) as fam:
        found = gradients(fam.penalty(net(**batch).loss), net)
    twin = nn.Sequential(net.body, nn.Tanh(), net.classifier)
    with FAM(twin, layer={"body": "0", "classifier": "2"}[layer], strength=1.0) as fam:
        truth = gradients(fam.penalty(cross_entropy(twin, batch["inputs"])), net)
    assert torch.equal(found, truth)


@pytest.mark.parametrize("layer", ["classifier", "bert.pooler.dense", "bert.encoder.layer.1.output.dense"])
def test_bert(layer: str) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=16, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    net = transformers.BertForSequenceClassification(config).to(F64).train()
    batch = {
        "input_ids": torch.randint(0, 30, (4, 7)),
        "attention_mask": torch.ones(4, 7, dtype=torch.long),
        "labels": torch.arange(4) % 2,
    }
    with FAM(net, layer=layer, strength=1.0) as fam:
        total = fam.penalty(net(**batch).loss)
    weight = net.get_submodule(layer).weight
    (slope,) = torch.autograd.grad(net(**batch).loss, weight, create_graph=True)
    rows = [torch.autograd.grad(s, weight, create_graph=True)[0] for s in slope.flatten()]
    truth = torch.einsum("sj,tj,sata->", weight, weight, torch.stack(rows).reshape(*weight.shape, *weight.shape))
    assert relative(total, truth) < 1e-10
    assert relative(gradients(total, net), gradients(truth, net)) < 1e-10


def _distributed(rank: int, folder: Path) -> None:
    net, x, y = vectors()
    parallel = nn.parallel.DistributedDataParallel(net)
    mine = slice(6 * rank, 6 * rank + 6)
    with FAM(parallel, layer="2", strength=0.5) as fam, FAM(parallel, layer="2", strength=0.5, probes=1) as sampled:
        for _ in range(2):
            net.zero_grad()
            fam(F.cross_entropy(parallel(x[mine]), y[mine])).backward()
        sampled(F.cross_entropy(net(x[:6]), y[:6]))  # the same data on both: only the signs differ
    torch.save({"grads": grads(net), "sampled": sampled.value}, folder / f"{rank}.pt")


def test_two_processes_average_their_gradients(tmp_path: Path) -> None:
    run_together(_distributed, tmp_path)
    a, b = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    net, x, y = vectors()
    with FAM(net, layer="2", strength=0.5) as fam:
        alone = [after_backward(net, fam, x[rows], y[rows]).clone() for rows in (slice(0, 6), slice(6, 12))]
    assert torch.equal(a["grads"], b["grads"])
    assert relative(a["grads"], (alone[0] + alone[1]) / 2) < 1e-12
    assert float(a["sampled"]) != float(b["sampled"])
