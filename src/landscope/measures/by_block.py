"""Where in a deep network the sharpness is: measures of its blocks by role and depth.

A transformer is a stack of blocks alike, each with attention (q, k, v, o), an MLP and norms, between an embedding and a head.
The stack is found by its containers (children of one class, with children of their own, in a `ModuleList` or `Sequential`), roles
by what libraries call their layers: GPT-2, Llama, Mixtral, BERT, T5, Whisper, ViT, `nn.TransformerEncoder`. What has no such name
is called after its kind (`conv`, `linear`) or by its own path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from landscope.core.errors import OperandError
from landscope.core.estimate import Estimate
from landscope.measures.base import MEASURES
from landscope.measures.by_layer import PartReport, measured_parts
from landscope.measures.measuring import probe_at
from landscope.probe.probe import Probe
from landscope.probe.reading import DataLike

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLOCK_MEASURES = ("hessian_trace", "hessian_top_eigenvalue", "relative_flatness")

ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
CROSS = re.compile(r"encdec|crossattention|encoder_attn|multihead_attn", re.IGNORECASE)
MLP = re.compile(
    r"mlp|ffn|feed_?forward|intermediate|experts|densereludense|^(fc|lin|linear)_?[12]$|^c_fc$|^output$", re.IGNORECASE
)
PROJECTIONS = {
    "q": {"q", "q_proj", "query", "q_lin", "wq", "to_q", "query_proj"},
    "k": {"k", "k_proj", "key", "k_lin", "wk", "to_k", "key_proj"},
    "v": {"v", "v_proj", "value", "v_lin", "wv", "to_v", "value_proj"},
    "qkv": {"c_attn", "qkv", "qkv_proj", "query_key_value", "wqkv", "in_proj_weight", "in_proj_bias"},
    "o": {"o", "o_proj", "out_proj", "out_lin", "wo", "to_out", "dense", "c_proj"},
}
ROUTERS = {"gate", "router"}
ADAPTER = re.compile(r"^(base_layer|lora_\w+|default)$")


@dataclass(frozen=True)
class Block:
    """A role at a place: `place` is the path of the block of the stack ("h.3"), empty outside of it; `depth` counts them."""

    role: str
    place: str = ""
    depth: int | None = None

    def __str__(self) -> str:
        return f"{self.place} {self.role}".strip()


def blocks_of(model: nn.Module, names: Iterable[str]) -> dict[Block, tuple[str, ...]]:
    """The named parameters by block, in the order of the model.

    >>> layer = nn.TransformerEncoderLayer(4, 1, 8, batch_first=True)
    >>> net = nn.Sequential(nn.Embedding(5, 4), nn.TransformerEncoder(layer, 2), nn.Linear(4, 5))
    >>> [str(block) for block in blocks_of(net, dict(net.named_parameters()))][:6]
    ['embedding', '1.layers.0 qkv', '1.layers.0 o', '1.layers.0 mlp', '1.layers.0 norm', '1.layers.1 qkv']
    """
    stack = _stack(model)
    depths = {place: depth for depth, place in enumerate(stack)}
    modules = dict(model.named_modules())
    found: dict[Block, list[str]] = {}
    behind = False
    for name in names:
        place = next((p for p in stack if name.startswith(f"{p}.")), "")
        behind = behind or bool(place)
        role = _role(name, place, modules, behind)
        found.setdefault(Block(role, place, depths.get(place)), []).append(name)
    return {block: tuple(held) for block, held in found.items()}


def _stack(model: nn.Module) -> list[str]:
    """The paths of the blocks: the outermost children of one class that several share, and that have children of their own."""
    found: list[str] = []
    for path, module in model.named_modules():
        inside = any(path == place or path.startswith(f"{place}.") for place in found)
        if inside or not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        held = {key: child for key, child in module.named_children() if any(True for _ in child.children())}
        kinds = [type(child) for child in held.values()]
        found += [f"{path}.{key}".lstrip(".") for key, child in held.items() if kinds.count(type(child)) > 1]
    return found


def _role(name: str, place: str, modules: Mapping[str, nn.Module], behind: bool) -> str:
    layer, _, own = name.rpartition(".")
    module = modules[layer]
    inner = [part for part in name.removeprefix(f"{place}.").split(".")[:-1] if not ADAPTER.match(part)]
    last = inner[-1] if inner else ""
    kind = type(module).__name__
    if "Norm" in kind:
        return "norm" if place or not behind else "final norm"
    path = ".".join(inner)
    attention = bool(ATTENTION.search(path)) or isinstance(module, nn.MultiheadAttention)
    if isinstance(module, nn.Embedding) or "Embed" in kind:
        return "positions" if attention else "embedding"
    for role, called in PROJECTIONS.items():
        if attention and (last.lower() in called or own in called):
            return f"cross {role}" if CROSS.search(path) else role
    if last in ROUTERS and place:
        return "router"
    if any(MLP.search(part) for part in inner) and place:
        return "mlp"
    linear = isinstance(module, nn.Linear) or kind == "Conv1D"
    if not place:
        return "head" if behind and linear else layer or own
    if linear:
        return "linear"
    return "conv" if "Conv" in kind else path or own


def by_block(
    model: nn.Module | Probe,
    data: DataLike | None = None,
    measures: Sequence[str] = BLOCK_MEASURES,
    *,
    seconds: float | None = None,
    **options: Any,
) -> BlockReport:
    """Measures of every block: embedding, attention (q, k, v, o), MLP, norm and head, by depth.

    Traces of all blocks come from the same products (`landscope.measures.by_layer`), so that their number costs nothing; other
    measures are those of each block with the rest held constant. `seconds` is a budget for all together, of which every block has
    its part. `options` are those of `landscope.Probe`.

    >>> layer = nn.TransformerEncoderLayer(4, 1, 8, 0.0, batch_first=True)
    >>> net = nn.Sequential(nn.Embedding(5, 4), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(12, 5))
    >>> import torch
    >>> found = by_block(net, (torch.randint(5, (20, 3)), torch.arange(20) % 5), ["l2_norm"])
    >>> [str(block) for block in found["l2_norm"]][-2:]
    ['1.layers.1 norm', 'head']
    """
    if isinstance(model, Probe) and options:
        raise OperandError(f"a Probe has its own options already; leave out {', '.join(options)}")
    probe = probe_at(model, data, **options)
    blocks = blocks_of(probe.module(""), probe.params)
    found = measured_parts(probe, {str(block): names for block, names in blocks.items()}, measures, seconds)
    return BlockReport({name: {block: each[str(block)] for block in blocks} for name, each in found.items()})


class BlockReport(PartReport[Block]):
    """Estimates by measure and block: a table (`print`), a frame, a heat map."""

    part = "block"

    def to_frame(self) -> pd.DataFrame:
        """One row per block (place, depth, role) and two columns (value, stderr) per measure."""
        import pandas as pd

        return pd.DataFrame(
            [{"place": one.place, "depth": one.depth, "role": one.role, **self.columns(one)} for one in self.parts]
        )

    def plot(self) -> Figure:
        """A heat map for each measure on a log scale: roles down, depth across; what lies outside of the stack is at its ends."""
        from matplotlib.figure import Figure

        roles = list(dict.fromkeys(block.role for block in self.parts))
        places = _columns(self.parts)
        size = (0.45 * len(places) + 2.2, 0.32 * len(roles) + 1.3)
        figure = Figure(figsize=(size[0], size[1] * len(self.estimates)), layout="constrained")
        axes = figure.subplots(len(self.estimates), 1, squeeze=False)[:, 0]
        for axis, (name, found) in zip(axes, self.estimates.items(), strict=True):
            _heat(axis, MEASURES[name].title, found, roles, places)
        return figure


def _columns(blocks: Sequence[Block]) -> dict[str, int]:
    """Places across: what comes before the stack, its blocks, what comes behind."""
    names: list[str] = []
    for block in blocks:
        place = block.place or ("before" if not any(name not in ("before", "behind") for name in names) else "behind")
        if place not in names:
            names.append(place)
    return {name: at for at, name in enumerate(names)}


def _heat(
    axis: Axes, title: str, found: Mapping[Block, Estimate], roles: Sequence[str], places: Mapping[str, int]
) -> None:
    from matplotlib.colors import LogNorm

    values = np.full((len(roles), len(places)), np.nan)
    inside = False
    for block, one in found.items():
        inside = inside or bool(block.place)
        column = places[block.place or ("behind" if inside else "before")]
        if one.status.has_value and one.value > 0:
            values[roles.index(block.role), column] = one.value
    known = values[np.isfinite(values)]
    norm = LogNorm(known.min(), max(known.max(), known.min() * 1.01)) if known.size else None
    picture = axis.imshow(values, aspect="auto", cmap="viridis", norm=norm)
    axis.set_title(title, loc="left", fontsize=9)
    axis.set_yticks(range(len(roles)), roles, fontsize=8)
    labels = [name.rpartition(".")[2] if name not in ("before", "behind") else name for name in places]
    axis.set_xticks(range(len(places)), labels, fontsize=7, rotation=90 if len(places) > 24 else 0)
    axis.spines[:].set_visible(False)
    axis.get_figure().colorbar(picture, ax=axis, fraction=0.04)  # type: ignore[union-attr]
