"""Cross-entropy over large vocabularies: the same numbers without the logits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import landscope as ls
from landscope.probe.loss import head

V, D, T, N = 60, 8, 5, 6


class Texts(nn.Module):
    """A language model whose embedding and last layer may be one weight."""

    def __init__(self, tied: bool, bias: bool) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(V, D), nn.Linear(D, D), nn.Linear(D, V, bias=bias)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(x))).cumsum(1))


@pytest.fixture(autouse=True)
def _small_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "LARGE_VOCABULARY", V)
    monkeypatch.setattr(head, "AT_ONCE", 7 * V)  # strips that do not divide the positions


def texts(seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x, y = torch.randint(V, (N, T), generator=rng), torch.randint(V, (N, T), generator=rng)
    y[0, 2:], y[3, :4] = -100, -100
    return x, y


def by_hand(net: nn.Module, x: Tensor, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss, gradient, Hessian product and Gauss–Newton product from the logits of all rows at once."""
    names, values = zip(*net.named_parameters(), strict=True)
    kept = y.flatten() != -100

    def logits(*at: Tensor) -> Tensor:
        return torch.func.functional_call(net, dict(zip(names, at, strict=True)), (x,)).flatten(0, 1)[kept]

    def loss(*at: Tensor) -> Tensor:
        return F.cross_entropy(logits(*at), y.flatten()[kept])

    parts = tuple(p.view_as(q) for p, q in zip(v.split([q.numel() for q in values]), values, strict=True))
    flat = lambda tensors: torch.cat([t.reshape(-1) for t in tensors])  # noqa: E731
    z, u = torch.func.jvp(logits, values, parts)
    p = z.softmax(1)
    curved = p * (u - (p * u).sum(1, keepdim=True)) / len(z)
    slopes = torch.autograd.grad(loss(*values), values, create_graph=True)
    product = torch.autograd.grad(slopes, values, parts)
    gauss = torch.autograd.grad(logits(*values), values, curved)
    return loss(*values).detach(), flat(slopes).detach(), flat(product), flat(gauss)


@pytest.mark.parametrize(("tied", "bias"), [(False, True), (True, False)])
def test_products_are_those_of_the_logits(tied: bool, bias: bool) -> None:
    torch.manual_seed(0)
    net, (x, y) = Texts(tied, bias).double(), texts()
    probe = ls.Probe(net, [(x[:4], y[:4]), (x[4:], y[4:])])
    assert probe.head is not None
    v = torch.randn(probe.n_params, dtype=torch.float64)
    loss, gradient, product, gauss = by_hand(net, x, y, v)
    assert probe.value() == pytest.approx(float(loss), rel=1e-12)
    for found, expected in (
        (probe.gradient(), gradient),
        (ls.Hessian(probe) @ v, product),
        (ls.GGN(probe) @ v, gauss),
        (ls.Fisher(probe) @ v, gauss),
    ):
        assert float((found - expected).norm()) < 1e-12 * float(expected.norm())
    block = torch.stack([v, v.flip(0), v.roll(1)], 1)
    for operator in (ls.Hessian, ls.GGN):
        assert torch.allclose((operator(probe) @ block)[:, 0], operator(probe) @ v, rtol=1e-10, atol=1e-14)


def test_a_part_of_the_network_and_weighted_rows() -> None:
    torch.manual_seed(0)
    net, (x, y) = Texts(tied=False, bias=True).double(), texts()
    probe = ls.Probe(net, (x, y))
    v = torch.randn(probe.n_params, dtype=torch.float64)
    part = probe.restrict("mix")
    inside = {name: slice_ for name, slice_ in probe.space.slices().items() if name.startswith("mix")}
    only = torch.zeros_like(v)
    for at in inside.values():
        only[at] = v[at]
    whole = torch.cat([(ls.Hessian(probe) @ only)[at] for at in inside.values()])
    assert torch.allclose(ls.Hessian(part) @ torch.cat([v[at] for at in inside.values()]), whole, rtol=1e-10)
    rows, weights = torch.tensor([4, 1]), torch.tensor([2.0, 0.5], dtype=torch.float64)
    few = probe.on_rows(rows, weights)
    plain = few.with_loss(probe.loss)
    assert plain.head is None
    assert torch.allclose(ls.Hessian(few) @ v, ls.Hessian(plain) @ v, rtol=1e-10)
    assert torch.allclose(ls.GGN(few) @ v, ls.GGN(plain) @ v, rtol=1e-10)


def test_the_logits_are_not_held() -> None:
    torch.manual_seed(0)
    net, data = Texts(tied=False, bias=True), texts()
    probe = ls.Probe(net, data)
    assert probe.activation_bytes < T * V * 4 / 2
    assert ls.Probe(net, data).with_loss(probe.loss).activation_bytes > T * V * 4


@pytest.mark.parametrize("key", ["gradient_noise", "fisher_trace", "relative_flatness_layerwise", "sam_sharpness"])
def test_measures_that_look_at_layers_are_the_same(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net, data = Texts(tied=False, bias=True).double(), texts()
    probe = ls.Probe(net, data)
    assert probe.head is not None
    monkeypatch.setattr(head, "LARGE_VOCABULARY", V + 1)
    plain = ls.Probe(net, data)
    assert plain.head is None
    found, expected = (ls.measure(at, measures=[key])[key] for at in (probe, plain))
    assert found.value == pytest.approx(expected.value, rel=1e-9)


class Capped(Texts):
    """Logits that are bent behind the last layer, as Gemma 2 does."""

    def forward(self, x: Tensor) -> Tensor:
        return 5 * torch.tanh(super().forward(x) / 5)


class Hooked(Texts):
    """A last layer whose output a hook changes."""

    def __init__(self) -> None:
        super().__init__(tied=False, bias=True)
        self.head.register_forward_hook(lambda _, __, out: 2 * out)


@pytest.mark.parametrize("make", [lambda: Capped(False, True), Hooked])
def test_outputs_that_are_not_the_layers_own_are_left_alone(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net, (x, y) = make().double(), texts()
    probe = ls.Probe(net, (x, y))
    assert probe.head is None
    v = torch.randn(probe.n_params, dtype=torch.float64)
    assert torch.allclose(ls.Hessian(probe) @ v, by_hand(net, x, y, v)[2], rtol=1e-9)


def test_smoothed_labels_are_left_alone() -> None:
    torch.manual_seed(0)
    x, y = texts()
    criterion = lambda z, t: nn.CrossEntropyLoss(label_smoothing=0.1)(z.flatten(0, 1), t.flatten())  # noqa: E731
    assert ls.Probe(Texts(tied=False, bias=True), (x, y.clamp(min=0)), criterion).head is None


def _t5() -> tuple[nn.Module, dict[str, Tensor]]:
    import transformers

    config = transformers.T5Config(
        vocab_size=V, d_model=4, d_kv=2, d_ff=4, num_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), {"input_ids": texts()[0]}


def _whisper() -> tuple[nn.Module, dict[str, Tensor]]:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=V,
        d_model=4,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=4,
        decoder_ffn_dim=4,
        num_mel_bins=4,
        max_source_positions=8,
        max_target_positions=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    sounds = torch.randn(N, 4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return transformers.WhisperForConditionalGeneration(config), {"input_features": sounds}


@pytest.mark.parametrize("make", [_t5, _whisper])
def test_decoders_that_are_fed_the_labels(make: Callable[[], tuple[nn.Module, dict[str, Tensor]]]) -> None:
    """The forward pass ends at the head: with labels it would go on to a loss of its own."""
    torch.manual_seed(0)
    net, batch = make()
    net.double().eval()
    batch["labels"] = texts()[1]
    probe = ls.Probe(net, batch)
    assert probe.layout.fed is not None
    assert probe.head is not None
    v = torch.randn(probe.n_params, dtype=torch.float64)
    values = [dict(net.named_parameters())[name] for name in probe.params]
    with sdpa_kernel(SDPBackend.MATH):
        loss = net(**batch).loss
    slopes = torch.autograd.grad(loss, values, create_graph=True, materialize_grads=True)
    parts = [p.view_as(q) for p, q in zip(v.split([q.numel() for q in values]), values, strict=True)]
    product = torch.autograd.grad(slopes, values, parts, materialize_grads=True)
    # The models compute their losses in float32.
    assert probe.value() == pytest.approx(float(loss.detach()), rel=1e-6)
    assert torch.allclose(ls.Hessian(probe) @ v, torch.cat([t.flatten() for t in product]), rtol=1e-5, atol=1e-6)
    apart = ls.Probe(net, batch)
    apart.head = None
    assert torch.allclose(ls.Hessian(probe) @ v, ls.Hessian(apart) @ v, rtol=1e-9, atol=1e-12)
    assert torch.allclose(ls.GGN(probe) @ v, ls.GGN(apart) @ v, rtol=1e-9, atol=1e-12)
    assert torch.allclose(probe.gradient(), apart.gradient(), rtol=1e-9, atol=1e-12)
