"""One file per data set; importing this package registers them all."""

from landscope.data.sets import (
    abalone,
    cifar,
    circles,
    cora,
    digits,
    functions,
    human,
    mnist,
    rte,
    skulls,
    svhn,
    tinyimagenet,
)

__all__ = [
    "abalone",
    "cifar",
    "circles",
    "cora",
    "digits",
    "functions",
    "human",
    "mnist",
    "rte",
    "skulls",
    "svhn",
    "tinyimagenet",
]
