"""Cora in Planetoid's split (Yang et al. 2016): 2,708 papers, 1,433 words, 7 fields; 140 / 500 / 1,000 labelled nodes.

Shipped with the package. The graph is one sample, so the inputs of a split are node numbers; the node features
(2708, 1433) and the edges (2, 10556), both ways, are `extra["features"]` and `extra["edge_index"]`.
"""

from __future__ import annotations

import torch

from landscope.data.dataset import DataSet, Raw, Split
from landscope.data.files import Download, Files, Version
from landscope.data.formats import PARTS, parse_planetoid

_HOME = "https://github.com/kimiyoung/planetoid/raw/master/data/"
_SHA256 = dict(
    zip(
        PARTS,
        (
            "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
            "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
            "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
            "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
            "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
            "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
            "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
            "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
        ),
        strict=True,
    )
)
# The order in which Planetoid numbers the classes, as the graph libraries list them.
_CLASSES = (
    "theory", "reinforcement learning", "genetic algorithms", "neural networks", "probabilistic methods",
    "case based", "rule learning",
)  # fmt: skip


def _read(files: Files) -> Raw:
    graph = parse_planetoid(lambda part: files.read(f"ind.cora.{part}"), lambda part: files.path(f"ind.cora.{part}"))
    labels = torch.from_numpy(graph.labels)

    def split(nodes: torch.Tensor) -> Split:
        return Split(nodes, labels[nodes])

    return Raw(
        train=split(torch.from_numpy(graph.train)),
        validation=split(torch.from_numpy(graph.validation)),
        evaluation=split(torch.from_numpy(graph.test)),
        classes=_CLASSES if graph.n_classes == len(_CLASSES) else tuple(map(str, range(graph.n_classes))),
        extra={"features": torch.from_numpy(graph.features), "edge_index": torch.from_numpy(graph.edges)},
        notes="inputs are node numbers; the graph is in extra['features'] and extra['edge_index']",
    )


CORA = DataSet(
    name="cora",
    title="Cora (Planetoid split)",
    task="node classification",
    read=_read,
    licence="MIT",
    citation="Z. Yang, W. W. Cohen, R. Salakhutdinov. Revisiting Semi-Supervised Learning with Graph Embeddings. "
    "ICML 2016.",
    source="https://github.com/kimiyoung/planetoid",
    versions=(
        Version(
            name="planetoid",
            folders=("cora", "Cora/raw"),
            files={f"ind.cora.{part}": f"sha256:{checksum}" for part, checksum in _SHA256.items()},
            downloads=tuple(
                Download(f"{_HOME}ind.cora.{part}", f"cora/ind.cora.{part}", f"sha256:{checksum}")
                for part, checksum in _SHA256.items()
            ),
            bundled="cora",
        ),
    ),
)
