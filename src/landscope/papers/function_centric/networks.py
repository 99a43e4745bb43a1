"""Networks that only paper 2 uses: a vision transformer for small data sets, and a small GPT-2 that classifies.

`SmallDataViT` (Lee, Lee and Song 2021) reads patches of the image and of four copies shifted by a pixel, and its attention has a
learnt temperature and no weight of a token on itself. `NameGPT` is GPT-2 (Radford et al. 2019) with a linear classifier on its
last token. Attention is written out: the fused kernels have no second derivatives.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

__all__ = ["NameGPT", "SmallDataViT"]

SHIFTS = ((1, -1, 0, 0), (-1, 1, 0, 0), (0, 0, 1, -1), (0, 0, -1, 1))
"""Of a pixel: right, left, down, up."""
STD = 0.02


class _LocalAttention(nn.Module):
    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads = heads
        self.log_scale = nn.Parameter(torch.tensor(-0.5 * math.log(head_width)))
        self.qkv = nn.Linear(width, 3 * heads * head_width, bias=False)
        self.output = nn.Linear(heads * head_width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * self.log_scale.exp()
        itself = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        weights = scores.masked_fill(itself, -torch.inf).softmax(-1)
        mixed: Tensor = self.output((weights @ value).transpose(1, 2).flatten(2))
        return mixed


class _LocalBlock(nn.Module):
    def __init__(self, width: int, heads: int, head_width: int, mlp_width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = _LocalAttention(width, heads, head_width)
        self.mlp = nn.Sequential(nn.Linear(width, mlp_width), nn.GELU(), nn.Linear(mlp_width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        total: Tensor = x + self.mlp(self.norm2(x))
        return total


class SmallDataViT(nn.Module):
    """Patch 4, width 512, 6 blocks of 6 heads of 64, MLPs of 256: as in the paper's code.

    >>> net = SmallDataViT(num_classes=3, width=8, layers=1, heads=2, head_width=4, mlp_width=8)
    >>> net(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        image_size: int = 32,
        width: int = 512,
        layers: int = 6,
        heads: int = 6,
        head_width: int = 64,
        mlp_width: int = 256,
    ) -> None:
        super().__init__()
        self.patch, pixels = 4, 16 * 5 * in_channels
        self.tokens = nn.Sequential(nn.LayerNorm(pixels), nn.Linear(pixels, width))
        self.positions = nn.Parameter(torch.randn(1, (image_size // self.patch) ** 2 + 1, width))
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.blocks = nn.Sequential(*(_LocalBlock(width, heads, head_width, mlp_width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        seen = torch.cat([x, *(pad(x, shift) for shift in SHIFTS)], 1)
        patches = seen.unfold(2, self.patch, self.patch).unfold(3, self.patch, self.patch)
        tokens = self.tokens(patches.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2))
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], 1) + self.positions
        logits: Tensor = self.fc(self.norm(self.blocks(tokens)[:, 0]))
        return logits


class _CausalBlock(nn.Module):
    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        for layer in (self.qkv, self.output, self.mlp[0], self.mlp[2]):
            shrunk = layer in (self.output, self.mlp[2])  # they are added up, twice in each block
            nn.init.normal_(layer.weight, std=STD / math.sqrt(2 * layers) if shrunk else STD)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
        x = x + self.output((weights @ value).transpose(1, 2).flatten(2))
        total: Tensor = x + self.mlp(self.norm2(x))
        return total


class NameGPT(nn.Module):
    """GPT-2 of width 128, 4 blocks of 4 heads on 25 characters of 56: as in the paper's code, without dropout.

    Names are padded on the left, so that the last token is a letter; padding is not attended to.

    >>> net = NameGPT(num_classes=15)
    >>> net(torch.tensor([[0, 0, 5, 6], [0, 3, 5, 6]])).shape, sum(p.numel() for p in net.parameters())
    (torch.Size([2, 15]), 805632)
    """

    def __init__(
        self,
        *,
        num_classes: int = 15,
        width: int = 128,
        layers: int = 4,
        heads: int = 4,
        length: int = 25,
        characters: int = 56,
    ) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(length, width)
        for embedding in (self.characters, self.places):
            nn.init.normal_(embedding.weight, std=STD)
        self.blocks = nn.ModuleList(_CausalBlock(width, heads, layers) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, num_classes, bias=False)
        nn.init.normal_(self.fc.weight, std=STD)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits from the last token."""
        n = tokens.shape[1]
        x = self.characters(tokens) + self.places.weight[:n]
        later = torch.ones(n, n, dtype=torch.bool, device=tokens.device).triu(1)
        hidden = later | (tokens == 0)[:, None, None, :]
        for block in self.blocks:
            x = block(x, hidden)
        logits: Tensor = self.fc(self.norm(x[:, -1]))
        return logits
