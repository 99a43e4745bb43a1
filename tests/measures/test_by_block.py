"""Blocks of transformers: their names, their traces from shared products against dense matrices, tables and figures."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import landscope as ls
from landscope.core.errors import OperandError
from landscope.core.estimate import Status
from landscope.curvature.chunk_traces import ChunkTraces
from landscope.curvature.dense import hessian
from landscope.measures.by_block import Block, blocks_of
from landscope.measures.by_layer import PartTrace, part_traces
from landscope.measures.resolve import resolve_measures

logging.getLogger("transformers").setLevel(logging.ERROR)


class Attention(nn.Module):
    """One head with projections of its own names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Softmax attention over positions."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.o_proj((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


class Layer(nn.Module):
    """A block of a decoder, without norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(width), nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the MLP, both residual."""
        x = x + self.self_attn(x)
        return x + self.mlp(x)


class Decoder(nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self, tokens: int = 6, width: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.lm_head = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the whole text, from its last position."""
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x[:, -1])


@pytest.fixture(scope="module")
def probe() -> ls.Probe:
    torch.manual_seed(0)
    return ls.Probe(Decoder().double(), (torch.randint(0, 6, (150, 4)), torch.arange(150) % 6))  # chunks of 9 and 10


def dense_traces(probe: ls.Probe, blocks: dict[Block, tuple[str, ...]]) -> dict[Block, float]:
    """From the diagonal of the whole Hessian."""
    diagonal = probe.space.unflatten(hessian(probe).diagonal())
    return {block: sum(float(diagonal[name].sum()) for name in names) for block, names in blocks.items()}


def test_blocks_have_a_role_and_a_depth(probe: ls.Probe) -> None:
    blocks = blocks_of(probe.module(""), probe.params)
    assert [str(block) for block in blocks] == [
        "embedding",
        *(f"layers.{depth} {role}" for depth in range(2) for role in ("q", "k", "v", "o", "mlp")),
        "head",
    ]
    assert [block.depth for block in blocks] == [None, *[0] * 5, *[1] * 5, None]
    assert sorted(name for names in blocks.values() for name in names) == sorted(probe.params)


@pytest.mark.parametrize(
    ("config", "model", "settings", "roles"),
    [
        (
            "GPT2Config",
            "GPT2LMHeadModel",
            {"n_embd": 8, "n_layer": 2, "n_head": 2},
            "embedding, norm, qkv, o, mlp, final norm",
        ),
        ("LlamaConfig", "LlamaForCausalLM", {}, "embedding, q, k, v, o, mlp, norm, final norm, head"),
        (
            "MixtralConfig",
            "MixtralForCausalLM",
            {"num_local_experts": 2},
            "embedding, q, k, v, o, router, mlp, norm, final norm, head",
        ),
        ("BertConfig", "BertForTokenClassification", {}, "embedding, norm, q, k, v, o, mlp, head"),
    ],
)
def test_roles_of_hugging_faces_models(config: str, model: str, settings: dict[str, int], roles: str) -> None:
    transformers = pytest.importorskip("transformers")
    usual = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    kept = {**({} if "n_embd" in settings else usual), **settings, "vocab_size": 11}
    net = getattr(transformers, model)(getattr(transformers, config)(**kept))
    blocks = blocks_of(net, [name for name, _ in net.named_parameters()])
    assert list(dict.fromkeys(block.role for block in blocks)) == roles.split(", ")
    assert {block.depth for block in blocks if block.place} == {0, 1}


def test_bars_of_shared_traces_cover(probe: ls.Probe) -> None:
    """Signs of 25 seeds on all rows, and the first look at some of them: every block against the dense Hessian."""
    blocks = blocks_of(probe.module(""), probe.params)
    parts, truth = tuple(blocks.values()), np.array(list(dense_traces(probe, blocks).values()))
    inside, early, seen = 0, 0, 0
    for seed in range(25):
        found = [one for one in part_traces(probe, "hessian", parts, 1e9, seed) if one is not None]
        ends = np.array([(one.value - 2 * one.stderr, one.value + 2 * one.stderr) for one in found[-1]])
        first = np.array([one.bracket for one in found[0]])
        inside += int(((ends[:, 0] <= truth) & (truth <= ends[:, 1])).sum())
        early += int(((first[:, 0] <= truth) & (truth <= first[:, 1])).sum())
        seen += len(parts)
    assert 0.92 <= inside / seen <= 1
    assert 0.92 <= early / seen <= 1


def test_bars_cover_where_rows_cannot_be_taken(probe: ls.Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    """One product with all of the data is all there is at first: the bar must know how little that is."""
    monkeypatch.setattr(sys.modules[ChunkTraces.__module__], "uniform_order", lambda _: None)
    blocks = blocks_of(probe.module(""), probe.params)
    parts, truth = tuple(blocks.values()), np.array(list(dense_traces(probe, blocks).values()))
    held = []
    for seed in range(60):
        *_, found = part_traces(probe, "hessian", parts, 1e9, seed)
        assert found is not None
        held += [abs(one.value - true) <= 2 * one.stderr for one, true in zip(found, truth, strict=True)]
    assert np.mean(held) >= 0.92


@pytest.mark.parametrize("one", [ls.by_block, ls.by_layer])
def test_traces_from_shared_products(
    probe: ls.Probe, one: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[ls.by_layer.__module__], "is_small", lambda _: False)
    fresh = probe.at_temperature(1.0)
    before = fresh.ledger.passes
    found = one(fresh, measures=["hessian_trace"])["hessian_trace"]  # type: ignore[index]
    blocks = blocks_of(probe.module(""), probe.params) if one is ls.by_block else probe.layers()
    diagonal = probe.space.unflatten(hessian(probe).diagonal())
    for block, names in blocks.items():
        truth = sum(float(diagonal[name].sum()) for name in names)
        assert abs(found[block].value - truth) <= 4 * found[block].stderr
    assert fresh.ledger.passes - before <= 16 * 3 + 8  # sixteen rounds at most, for all blocks together


def test_what_is_exact_for_small_networks(probe: ls.Probe) -> None:
    blocks = blocks_of(probe.module(""), probe.params)
    found = ls.by_block(probe, measures=["hessian_trace", "hessian_top_eigenvalue"])
    for block, truth in dense_traces(probe, blocks).items():
        one = found["hessian_trace"][block]
        assert abs(one.value - truth) <= 4 * (one.stderr or 0) + 1e-9
    assert all(one.status.has_value for one in found["hessian_top_eigenvalue"].values())


def test_table_frame_and_figure(probe: ls.Probe) -> None:
    found = ls.by_block(probe)
    lines = str(found).splitlines()
    assert lines[0].split() == ["block", "hessian_trace", "hessian_top_eigenvalue", "relative_flatness"]
    assert [line.split("  ")[0] for line in lines[1:3]] == ["embedding", "layers.0 q"]
    frame = found.to_frame()
    assert list(frame["role"][:3]) == ["embedding", "q", "k"]
    assert math.isnan(frame["depth"][0])
    assert frame["relative_flatness"].notna().sum() >= 8
    figure = found.plot()
    assert [axis.get_title(loc="left") for axis in figure.axes[:3]] == [
        "Hessian trace",
        "Hessian λ₁",
        "relative flatness",
    ]


def test_a_budget_gives_every_block_something(probe: ls.Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[ls.by_layer.__module__], "is_small", lambda _: False)
    found = ls.by_block(probe.at_temperature(1.0), measures=["hessian_trace", "hessian_top_eigenvalue"], seconds=10)
    assert [str(b) for each in found.estimates.values() for b, one in each.items() if not one.status.has_value] == []


def test_with_a_budget_small_networks_begin_with_shared_products_and_end_exactly(probe: ls.Probe) -> None:
    parts = tuple(blocks_of(probe.module(""), probe.params).values())
    (alone,) = resolve_measures("hessian_trace", 0).values()
    own = [alone(probe.restrict(names)) for names in parts]
    for part, exact in enumerate(own):
        stream = PartTrace(matrix="hessian", parts=parts, part=part, alone=alone).refine(probe)
        found = [each for each in stream if each is not None]
        assert found[0].status is Status.RUNNING
        assert found[0].details["probes"] == 1
        assert found[-1].value == exact.value
        assert found[-1].status is exact.status
    found = ls.by_block(probe, measures=["hessian_trace"], seconds=600)["hessian_trace"]
    assert [each.value for each in found.values()] == [each.value for each in own]


def test_a_probe_has_its_data(probe: ls.Probe) -> None:
    with pytest.raises(OperandError, match="holds its data"):
        ls.by_block(probe, (torch.zeros(1), torch.zeros(1)))
    with pytest.raises(OperandError, match="leave out loss"):
        ls.by_block(probe, loss="mse")
    with pytest.raises(OperandError, match="no data"):
        ls.by_block(Decoder())
