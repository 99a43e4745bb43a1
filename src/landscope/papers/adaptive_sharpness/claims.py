"""Paper 5 says: adaptive sharpness correlates negatively with the test loss, in three families of models.

Models of one training differ in nothing but their seed, so each model is a unit, and each training has its own correlation.
"""

from __future__ import annotations

from collections.abc import Iterator

from landscope.analysis import Order
from landscope.papers.framework.claims import Claim
from landscope.papers.framework.questions import above, correlates, every, share
from landscope.papers.framework.values import Values

__all__ = ["claims"]

FAMILIES = {
    "fcnn": ("FCNN on Abalone", "adaptive_sharpness_fcnn", -0.311, ()),
    "lenet5": ("LeNet-5 on FashionMNIST", "adaptive_sharpness_lenet5", -0.180, ()),
    "gat": ("graph attention network on Cora", "adaptive_sharpness_gat", -0.185, ()),
    "fcnn-notebook": ("FCNN on Abalone", "adaptive_sharpness_fcnn", -0.311, ("as coded", "as described")),
    "lenet5-notebook": (
        "LeNet-5 on FashionMNIST",
        "adaptive_sharpness_lenet5",
        -0.180,
        ("as coded", "in training mode", "as described"),
    ),
    "gat-notebook": ("graph attention network on Cora", "adaptive_sharpness_gat", -0.185, ("as coded", "until learnt")),
    "gat-seeds": ("graph attention network on Cora, a measuring seed for each model", "adaptive_sharpness_gat", -0.185,
                  ("as coded", "until learnt")),
}  # fmt: skip
"""Part → what it is of, the measure, the paper's τ, its trainings."""
MODELS = 50
STALE = "more than half of what the LeNet notebook measured is the replacement of stale BatchNorm statistics"
KINDS = {"published": "as its notebook computed it", "corrected": "as its text describes it"}


def claims() -> Iterator[Claim]:
    """Of each family and training, and what the LeNet notebook measured."""
    for part, (family, measure, tau, trainings) in FAMILIES.items():
        for training in trainings or ("",):
            for kind, meaning in KINDS.items():
                trained = f", trained {training}" if training else ""
                values = Values(part=part, column=f"train.{kind}.{measure}", condition=training or None)
                yield Claim(
                    part=part,
                    text=f"{family}{trained}: adaptive sharpness, {meaning}, correlates negatively with test loss",
                    question=correlates(values, "test.loss", -1, over="models", theirs=Order(-tau, MODELS)),
                    paper=f"τ = {tau}".replace("-", "−"),
                    headline=19 if (part, training, kind) == ("lenet5-notebook", "as coded", "published") else 0,
                    explained_by=STALE if part.startswith("lenet5") and kind == "published" else "",
                )
    for gat in ("gat-seeds", "gat-notebook"):  # draws of its own for each model, as in the notebook, count first
        both = (
            correlates(
                Values(part=part, column=f"train.published.{FAMILIES[part][1]}", condition=training),
                "test.loss",
                -1,
                over="models",
                theirs=Order(-FAMILIES[part][2], MODELS),
                label=label,
            )
            for part, training, label in (("fcnn-notebook", "as coded", "FCNN"), (gat, "until learnt", "GAT"))
        )
        draws = ", a measuring seed for each model" if gat == "gat-seeds" else ""
        yield Claim(
            part=gat,
            text=f"FCNN as coded and GAT once learnt{draws}: adaptive sharpness, as coded, correlates negatively with test loss",
            question=every(both),
            paper="τ = −0.311, −0.185",
            headline=18,
        )
    yield Claim(
        part="lenet5-notebook",
        text=STALE,
        question=above("lenet5-notebook", "share", share(_coded("lenet5-notebook", "stale_statistics"), _coded()), 0.5),
        ours=True,
    )
    yield from _radii()
    ratio = share(_coded("lenet5-radii", "notebook 1e-3"), _coded("lenet5-radii"))
    yield Claim(
        part="lenet5-radii",
        text="raising the radius tenfold raises what the LeNet notebook measured by less than a tenth",
        question=above("lenet5-radii", "at radius 1e-3 over at 1e-4", ratio, 1.1, below=True),
        ours=True,
    )


def _radii() -> Iterator[Claim]:
    """Ours: the paper says that it tried several radii, and does not show them."""
    for part, training in (("fcnn-radii", "as coded"), ("gat-radii", "until learnt")):
        measure = FAMILIES[part.replace("radii", "notebook")][1]
        for kind, name in (("published", "notebook"), ("corrected", "text")):
            for much, words in (("a_tenth", "a tenth of the radius"), ("ten_times", "ten times the radius")):
                ends = (f"train.{name}_{much}", f"train.{kind}.{measure}")
                first, second = (Values(part=part, column=column, condition=training) for column in ends)
                yield Claim(
                    part=part,
                    text=f"{part}: adaptive sharpness, {KINDS[kind]}, orders models at {words} as it does at the radius",
                    question=correlates(first, second.column, 1, over="models"),
                    ours=True,
                )
                yield Claim(
                    part=part,
                    text=f"{part}: adaptive sharpness, {KINDS[kind]}, at {words} correlates negatively with test loss",
                    question=correlates(first, "test.loss", -1, over="models"),
                    paper=f"τ = {FAMILIES[part.replace('radii', 'notebook')][2]} at the radius".replace("-", "−"),
                )


def _coded(part: str = "lenet5-notebook", name: str = "published.adaptive_sharpness_lenet5") -> Values:
    return Values(part=part, column=f"train.{name}", condition="as coded")
