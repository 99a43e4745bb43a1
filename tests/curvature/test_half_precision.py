"""Weights that stay in bfloat16: the function is that of a float32 model with them, and bars hold the rounding of vectors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from landscope import GGN, MEASURES, Hessian, Probe, Status, errors, measure, spectrum
from landscope.curvature import dense
from landscope.curvature.operator import CurvatureOperator
from landscope.probe import first_derivatives
from landscope.spectra import long_pairs

transformers = pytest.importorskip("transformers")

VOCABULARY, LENGTH = 37, 12


def language_model(kind: str, **more: object) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1}
    if kind == "gpt2":
        sizes = {"vocab_size": VOCABULARY, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": LENGTH}
    heads = {} if kind == "gpt2" else {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.AutoConfig.for_model(kind, **sizes, **heads, **more)
    return transformers.AutoModelForCausalLM.from_config(config).bfloat16().eval()


def tokens() -> dict[str, torch.Tensor]:
    rows = torch.randint(VOCABULARY, (6, LENGTH), generator=torch.Generator().manual_seed(0))
    labels = rows.clone()
    labels[0, 5:] = -100
    return {"input_ids": rows, "labels": labels}


class WithEverything(nn.Module):
    """Attention that reads the weight of another module, a padding row, a tied head, and functions of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16, padding_idx=0)
        self.body = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True, activation="gelu")
        self.mix = nn.Parameter(torch.randn(2, 16, 16) / 4)
        self.norm = nn.LayerNorm(16)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.body(self.embedding(input_ids))
        x = x.to(self.mix.dtype) @ self.mix[0].t() + torch.einsum("btd,de->bte", x, self.mix[1])
        return nn.functional.linear(self.norm(x), self.embedding.weight).transpose(1, 2)


def with_everything() -> nn.Module:
    torch.manual_seed(0)
    return WithEverything().bfloat16().eval()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": lambda: language_model("gpt2"),
    "llama": lambda: language_model("llama"),
    "mixtral": lambda: language_model("mixtral", num_local_experts=2),
    "with everything": with_everything,
}


def pair(name: str) -> tuple[Probe, Probe]:
    """The model in half precision, and the same weights in float64."""
    model, data = MODELS[name](), tokens()
    given = data if name != "with everything" else (data["input_ids"], data["labels"])
    return Probe(model, given, dtype=torch.bfloat16), Probe(model, given, dtype=torch.float64)


@pytest.mark.parametrize("name", MODELS)
def test_the_point_is_the_models_own_and_products_are_rounded_as_stated(name: str) -> None:
    narrow, exact = pair(name)
    assert narrow.value() == pytest.approx(exact.value(), rel=1e-5)
    slope, truth = narrow.gradient(), exact.gradient()
    assert slope.dtype == torch.bfloat16
    assert float((slope.double() - truth).norm() / truth.norm()) < 2**-8
    v = torch.randn(narrow.n_params, generator=torch.Generator().manual_seed(1)).bfloat16()
    kinds: list[type[CurvatureOperator]] = [Hessian, GGN]
    for kind in kinds:
        operator = kind(narrow)
        product, expected = (operator @ v).double(), kind(exact) @ v.double()
        off = float((product - expected).norm() / expected.norm())
        assert 1e-4 < off < operator.rounding < 0.006, kind


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_bars_hold_the_rounding(name: str) -> None:
    narrow, exact = pair(name)
    matrix = dense.hessian(exact)
    values = torch.linalg.eigvalsh(matrix)
    wanted = {"hessian_top_eigenvalue": {"tol": 5e-2}, "hessian_bottom_eigenvalue": {"tol": 5e-2}, "gradient_norm": {}}
    found = measure(narrow, measures=wanted)
    for key, truth in zip(wanted, (values[-1], values[0], exact.gradient().norm()), strict=True):
        assert found[key].status is Status.CONVERGED, key
        assert found[key].stderr, key
        assert abs(found[key].value - float(truth)) <= found[key].stderr, key
    assert found["hessian_top_eigenvalue"].stderr <= 5e-2 * float(values.abs().max())
    held = 0
    for seed in range(10):
        trace = MEASURES["hessian_trace"](tol=0.5, seed=seed)(narrow)
        held += abs(trace.value - float(matrix.trace())) <= 2 * trace.stderr
    assert held >= 8
    density = spectrum(Hessian(narrow), steps=30, probes=2)
    assert density.nodes.max() == pytest.approx(float(values[-1]), rel=0.01)
    assert density.rounding == Hessian(narrow).rounding


@pytest.mark.parametrize("kept", [True, False])
def test_the_top_eigenvalue_to_five_per_cent(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is no room for a basis, as of billions of weights: rounding does not take the whole of the tolerance."""
    if not kept:
        monkeypatch.setattr(long_pairs.Basis, "place", staticmethod(lambda _: None))
    narrow, exact = pair("llama")
    truth = float(torch.linalg.eigvalsh(dense.hessian(exact))[-1])
    for seed in range(4):
        found = MEASURES["hessian_top_eigenvalue"](tol=5e-2, seed=seed)(narrow)
        assert found.status is Status.CONVERGED
        assert found.stderr is not None
        assert abs(found.value - truth) <= found.stderr


def test_weights_stay_where_copies_do_not_fit() -> None:
    model, data = MODELS["llama"](), tokens()
    size = sum(p.numel() for p in model.parameters())
    assert Probe(model, data).stored == torch.float32
    probe = Probe(model, data, max_bytes=7 * 4 * size - 1)
    assert (probe.stored, probe.dtype) == (torch.bfloat16, torch.float32)
    assert any("stay in bfloat16" in notice for notice in probe.notices)
    assert Probe(model, data, max_bytes=7 * 4 * size - 1, dtype=torch.float32).stored == torch.float32
    assert Probe(model.float(), data, max_bytes=7 * 4 * size - 1).stored == torch.float32
    with pytest.raises(errors.ModelError, match="yours are in float32"):
        Probe(model.float(), data, dtype=torch.bfloat16)


def test_what_needs_more_than_rounded_vectors_says_so() -> None:
    narrow, _ = pair("llama")
    found = measure(narrow, measures=["relative_flatness", "hessian_frobenius", "log_volume", "loss", "accuracy"])
    for key in ("relative_flatness", "hessian_frobenius", "log_volume"):
        assert found[key].status is Status.NOT_APPLICABLE
        assert "dtype=torch.float32" in found[key].reason
    assert found["loss"].status is Status.EXACT
    with pytest.raises(errors.NotApplicableError, match="in bfloat16"):
        Hessian(narrow, method="difference")


def test_rounding_inside_the_model_is_refused() -> None:
    class Rounds(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self[1](self[0](x).bfloat16())

    model = Rounds(nn.Linear(4, 4), nn.Linear(4, 3)).bfloat16()
    with pytest.raises(errors.ModelError, match="computes in bfloat16"):
        Probe(model, (torch.randn(8, 4), torch.arange(8) % 3), dtype=torch.bfloat16)


def test_how_many_vectors_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product: the gradient, itself, and its sum over two pieces of data; λ₁ two more. Weights are widened one at a time."""
    monkeypatch.setattr(first_derivatives, "LARGE", 0)  # no copy in float64
    torch.manual_seed(0)
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(24)], nn.Linear(256, 3)
    ).bfloat16()
    data = torch.randn(4, 256), torch.arange(4) % 3
    vector = 2 * sum(p.numel() for p in model.parameters())
    probe = Probe(model, data, dtype=torch.bfloat16, max_bytes=1e6)  # no room for a basis
    operator, v = Hessian(probe), probe.vector()
    operator @ v
    assert _peak(lambda: operator @ v) < 3.5 * vector
    assert _peak(lambda: MEASURES["hessian_top_eigenvalue"](tol=0.1)(probe)) < 6 * vector
    assert _peak(lambda: MEASURES["hessian_trace"](tol=0.5)(probe)) < 4.5 * vector
    assert _peak(lambda: Probe(model, data, dtype=torch.bfloat16)) < 7 * vector


def _peak(work: Callable[[], object]) -> int:
    """The most bytes that torch held above what it held before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    held = most = 0
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
