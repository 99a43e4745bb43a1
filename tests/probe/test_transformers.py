"""Transformers with their own loss: value, gradient, products and top eigenvalue against plain autograd on the model itself."""

from collections.abc import Callable

import pytest
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor
from torch.autograd.functional import jvp, vjp
from torch.func import functional_call
from torch.nn.functional import cross_entropy

pytest.importorskip("transformers", reason="needs transformers")

from transformer_models import CASES, SMALL, Case, N, T, V, case, drawn, mixtral

from landscope import Loss, Probe
from landscope.core.errors import LossError, NonFiniteLossError, NotApplicableError
from landscope.core.estimate import Status
from landscope.curvature import GGN, Fisher, Hessian
from landscope.measures import measure
from landscope.probe.conditions import measuring

IN_FLOAT32 = ("llama", "mixtral", "mamba", "t5")
"""Models that compute norms or states in float32 whatever the precision of their weights: two ways round differently."""


class Truth:
    """Derivatives of a loss that is written out on the logits of the model as the user has it."""

    def __init__(self, case: Case, names: tuple[str, ...]) -> None:
        held = dict(case.model.named_parameters())
        self.case, self.params = case, {name: held[name].detach() for name in names}
        self.batch = {key: t.double() if t.is_floating_point() else t for key, t in case.batch.items()}
        self.flat = torch.cat([p.flatten() for p in self.params.values()])

    def outputs(self, flat: Tensor) -> object:
        parts = flat.split([p.numel() for p in self.params.values()])
        values = {name: v.view(p.shape) for (name, p), v in zip(self.params.items(), parts, strict=True)}
        return functional_call(self.case.model, values, (), self.batch)

    def logits(self, flat: Tensor) -> Tensor:
        return self.case.logits(self.outputs(flat)).double()

    def loss(self, flat: Tensor) -> Tensor:
        return self.case.truth(self.outputs(flat), self.batch)

    def gradient(self) -> Tensor:
        leaf = self.flat.clone().requires_grad_()
        return torch.autograd.grad(self.loss(leaf), leaf)[0]

    def hessian(self, v: Tensor) -> Tensor:
        with measuring(torch.device("cpu")):  # attention that can be differentiated twice
            leaf = self.flat.clone().requires_grad_()
            (slope,) = torch.autograd.grad(self.loss(leaf), leaf, create_graph=True)
            return torch.autograd.grad(slope @ v, leaf)[0]

    def ggn(self, v: Tensor) -> Tensor:
        """Jᵀ (∂²L/∂z²) J v, the middle by automatic differentiation of the loss at the logits."""
        with measuring(torch.device("cpu")):
            z, tangent = jvp(self.logits, self.flat, v)  # two reverse passes: the row of padding is a constant to these
            leaf = z.detach().requires_grad_()
            loss = self.case.truth(_at(leaf, self.case), self.batch)
            (slope,) = torch.autograd.grad(loss, leaf, create_graph=True)
            return vjp(self.logits, self.flat, torch.autograd.grad((slope * tangent).sum(), leaf)[0])[1]

    def top(self, product: Callable[[Tensor], Tensor]) -> float:
        size = len(self.flat)
        operator = LinearOperator((size, size), lambda v: product(torch.from_numpy(v.reshape(-1))).numpy(), dtype=float)
        return float(eigsh(operator, k=1, which="LA", tol=1e-10, v0=torch.ones(size).double().numpy())[0][0])


class _Logits:
    def __init__(self, z: Tensor, spans: bool) -> None:
        if spans:
            self.start_logits, self.end_logits = z.unbind(1)
        else:
            self.logits = z


def _at(z: Tensor, case: Case) -> object:
    return _Logits(z, "start_positions" in case.batch)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("name", CASES)
def test_loss_gradient_products_and_top_eigenvalue(name: str) -> None:
    one = case(name)
    probe = Probe(one.model, one.batch)
    truth = Truth(one, probe.space.names)
    within = 5e-7 if name in IN_FLOAT32 else 1e-10
    assert probe.loss.name.startswith(f"model's {one.name}")
    assert probe.value() == pytest.approx(float(truth.loss(truth.flat).detach()), rel=within)
    with torch.no_grad():
        assert probe.value() == pytest.approx(float(truth.outputs(truth.flat).loss), rel=1e-6)  # type: ignore[attr-defined]
    assert relative(probe.gradient(), truth.gradient()) < within
    v = torch.randn(len(truth.flat), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert relative(Hessian(probe) @ v, truth.hessian(v)) < within
    assert relative(GGN(probe) @ v, truth.ggn(v)) < within
    assert relative(Fisher(probe) @ v, truth.ggn(v)) < within
    found = measure(probe, measures={"hessian_top_eigenvalue": {"tol": 1e-7}})["hessian_top_eigenvalue"]
    assert found.status is Status.CONVERGED
    assert found.value == pytest.approx(truth.top(truth.hessian), rel=1e-7 + within)


def test_a_routers_loss_is_the_models_number_and_no_likelihood() -> None:
    """A loss that keeps experts busy alike depends on which sequences share a batch: batches stay whole."""
    torch.manual_seed(0)
    one = mixtral(router=True)
    model, batch = one.model.double().eval(), one.batch
    with torch.no_grad():
        returned = model(**batch)
    assert float(returned.aux_loss) > 0
    probe = Probe(model, batch)
    assert probe.value() == pytest.approx(float(returned.loss), rel=1e-6)
    assert any("share a batch" in notice for notice in probe.notices)
    truth = Truth(Case(model, batch, lambda outputs, _: outputs.loss), probe.space.names)  # type: ignore[attr-defined]
    assert relative(probe.gradient(), truth.gradient()) < 5e-7
    v = torch.randn(len(truth.flat), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert relative(Hessian(probe) @ v, truth.hessian(v)) < 5e-7
    plain = float(one.truth(returned, batch))
    asked = ["ggn_top_eigenvalue", "fisher_trace", "accuracy", "ece", "gradient_noise", "hessian_top_eigenvalue"]
    found = measure(probe, measures=asked)
    assert found["hessian_top_eigenvalue"].status.has_value
    for key in asked[:4]:
        assert found[key].status is Status.NOT_APPLICABLE, key
        assert f"{float(returned.loss):.5g}"[:5] in found[key].reason
        assert f"{plain:.5g}"[:5] in found[key].reason
    halves = [{key: t[rows] for key, t in batch.items()} for rows in (slice(0, 3), slice(3, 6))]
    with torch.no_grad():
        values = [float(model(**half).loss) for half in halves]
    tokens = [float((half["labels"][:, 1:] != -100).sum()) for half in halves]
    mean = sum(v * t for v, t in zip(values, tokens, strict=True)) / sum(tokens)
    assert Probe(model, halves).value() == pytest.approx(mean, rel=1e-6)


def test_a_models_number_where_all_rows_are_full() -> None:
    """Samples with as many labels each: a mean over labels is the mean over samples, not their sum over positions."""
    torch.manual_seed(0)
    ids = drawn(N, T)
    data = {"input_ids": ids, "labels": ids}
    for made in (mixtral(router=True).model, Smoothed(case("gpt2").model)):
        model = made.double().eval()
        full = {**data, "attention_mask": torch.ones_like(ids)}
        with torch.no_grad():
            returned = float(model(**full)["loss"])
        for per in ("token", "sequence"):
            assert Probe(model, full, per=per).value() == pytest.approx(returned, rel=1e-6), per  # type: ignore[arg-type]


def test_a_mean_over_labels_that_is_declared() -> None:
    net = torch.nn.Embedding(5, 4)
    x, y = drawn(8, 3, below=5), drawn(8, 3, below=4, seed=1)
    loss = Loss(lambda z, t: cross_entropy(z.transpose(1, 2), t), reduction="label_mean")
    truth = float(cross_entropy(net(x).transpose(1, 2), y).detach())
    assert Probe(net, (x, y), loss).value() == pytest.approx(truth, rel=1e-6)


class Smoothed(torch.nn.Module):
    """A language model that smooths its labels: a mean over labels that is not a likelihood."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        z = self.inner(input_ids, attention_mask=attention_mask).logits
        if labels is None:
            return {"logits": z}
        loss = cross_entropy(z[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=0.1)
        return {"logits": z, "loss": loss}


def test_smoothed_labels_are_a_mean_over_labels() -> None:
    one = case("gpt2")
    model = Smoothed(one.model)
    truth = float(model(**one.batch)["loss"].detach())
    halves = [{key: t[rows] for key, t in one.batch.items()} for rows in (slice(0, 2), slice(2, 6))]
    for data in (one.batch, halves):
        probe = Probe(model, data)
        assert probe.value() == pytest.approx(truth, rel=1e-10)
        assert not any("share a batch" in notice for notice in probe.notices)
    with pytest.raises(NotApplicableError, match=r"cross_entropy of the next token"):
        Fisher(probe)
    with pytest.raises(LossError, match="per='sequence'"):
        Probe(model, one.batch, per="sequence")


def test_by_token_and_by_sequence() -> None:
    one = case("gpt2")
    labels, log_p = one.batch["labels"][:, 1:], one.model(**one.batch).logits.detach()[:, :-1].log_softmax(2)
    kept = labels != -100
    losses = -log_p.gather(2, labels.clamp(min=0)[..., None])[..., 0] * kept
    assert Probe(one.model, one.batch).value() == pytest.approx(float(losses.sum() / kept.sum()), rel=1e-10)
    by_sequence = Probe(one.model, one.batch, per="sequence")
    assert by_sequence.value() == pytest.approx(float((losses.sum(1) / kept.sum(1)).mean()), rel=1e-10)
    assert "6 sequences, 24 tokens" in repr(by_sequence)
    with pytest.raises(LossError, match="per must be"):
        Probe(one.model, one.batch, per="word")  # type: ignore[arg-type]


def test_a_decoder_that_takes_its_inputs_where_there_are_no_labels() -> None:
    """Labels that equal the inputs must not hide that the decoder reads them: other rows have others."""
    import transformers

    torch.manual_seed(0)
    sizes = {
        f"{side}_{what}": 1 if what == "layers" else 4
        for side in ("encoder", "decoder")
        for what in ("layers", "ffn_dim")
    }
    config = transformers.BartConfig(
        vocab_size=V,
        d_model=4,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        decoder_start_token_id=1,
        max_position_embeddings=20,
        forced_eos_token_id=None,
        **sizes,
        **SMALL,
    )
    model = transformers.BartForConditionalGeneration(config).double().eval()
    ids = drawn(12, T)
    labels = ids.clone()
    labels[10:] = drawn(2, T, seed=5)
    probe = Probe(model, {"input_ids": ids, "labels": labels})
    assert probe.layout.fed == "labels"
    with torch.no_grad():
        assert probe.value() == pytest.approx(float(model(input_ids=ids, labels=labels).loss), rel=1e-6)


class OnlyItsLoss(torch.nn.Module):
    """A language model that returns one number."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **batch: Tensor) -> Tensor:
        return self.inner(**batch).loss


def test_a_model_that_returns_its_loss_alone() -> None:
    one = case("gpt2")
    truth = Truth(one, Probe(one.model, one.batch).space.names)
    halves = [{key: t[rows] for key, t in one.batch.items()} for rows in (slice(0, 2), slice(2, 6))]
    for data in (one.batch, halves):
        probe = Probe(OnlyItsLoss(one.model), data)
        assert probe.value() == pytest.approx(float(truth.loss(truth.flat)), rel=1e-6)
        assert probe.n_tokens == 24
        assert relative(probe.gradient(), truth.gradient()) < 5e-7
        assert not any("share a batch" in notice for notice in probe.notices)


class Untrained(torch.nn.Module):
    """All logits are 0, so that every reading of the labels has one value: the gradient shows which is right."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(V, 4), torch.nn.Linear(4, V)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        z = self.head(self.embed(input_ids))
        if labels is None:
            return {"logits": z}
        return {"logits": z, "loss": cross_entropy(z[:, :-1].flatten(0, 1), labels[:, 1:].flatten())}


def test_equal_values_do_not_hide_another_loss() -> None:
    ids = drawn(6, T)
    assert Probe(Untrained(), {"input_ids": ids, "labels": ids}).loss.name == "model's cross_entropy of the next token"


def test_texts_that_are_packed_into_a_row_are_apart() -> None:
    """Positions that begin again part texts where no keys and values are cached, as in a training by the Trainer."""
    one = case("llama")
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]]).expand(N, T)
    batch = {"input_ids": drawn(N, T), "labels": drawn(N, T), "position_ids": positions}
    truth = Truth(
        Case(one.model, {**batch, "use_cache": torch.tensor(False)}, one.truth), Probe(one.model, batch).space.names
    )
    probe = Probe(one.model, batch)
    assert relative(probe.gradient(), truth.gradient()) < 5e-7
    v = torch.randn(len(truth.flat), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert relative(Hessian(probe) @ v, truth.hessian(v)) < 5e-7
    apart = [{key: t[:, at] for key, t in batch.items()} for at in (slice(0, 3), slice(3, 7))]
    with torch.no_grad():
        logits = torch.cat([one.model(**part).logits for part in apart], 1)
    assert float(cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())) == pytest.approx(
        probe.value(), rel=1e-6
    )


def test_logits_that_are_not_numbers_are_said_to_be() -> None:
    class Overflowing(torch.nn.Module):
        """Its padded positions are NaN, and so is its loss, as of a Gemma 2 in float64."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Embedding(V, V)

        def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            z = self.inner(input_ids)
            z = torch.where(input_ids[..., None] == 0, torch.nan, z)
            if labels is None:
                return {"logits": z}
            return {"loss": cross_entropy(z.flatten(0, 1), labels.flatten()), "logits": z}

    ids = drawn(6, T)
    ids[0, 3:] = 0
    with pytest.raises(NonFiniteLossError, match="not finite"):
        Probe(Overflowing(), {"input_ids": ids, "labels": ids})
