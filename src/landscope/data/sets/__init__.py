"""One file per data set; importing this package registers them all."""

from landscope.data.sets import abalone, cifar, circles, cora, digits, functions, mnist, rte, skulls, svhn, tinyimagenet
from landscope.data.sets import cifar as human

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
