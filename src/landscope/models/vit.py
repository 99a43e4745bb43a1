"""Vision transformer (Dosovitskiy et al. 2021) for 32×32 images: pre-norm blocks, GELU, a class token.

The default has the widths of ViT-Tiny on 4×4 patches. Attention is written out, softmax(Q Kᵀ/√d) V, because PyTorch's
fused kernels have no forward-mode and no second derivatives, which curvature needs; 65 tokens do not need them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from landscope.models.catalogue import OptionError, ParameterCount, register
from landscope.specs.schema import Natural, Probability

_START_STD = 0.02


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (self.scale * query @ key.transpose(-2, -1)).softmax(-1)
        return self.output((weights @ value).transpose(1, 2).flatten(2))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, mlp_width: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = _Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            *(nn.Linear(width, mlp_width), nn.GELU(), nn.Dropout(dropout)), nn.Linear(mlp_width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


@register(
    "vit32",
    description="vision transformer for 32×32 images, patches of 4×4",
    input_shape=(3, 32, 32),
    classifier="fc",
    counts=(
        ParameterCount(
            (48 * 192 + 192)  # patches
            + 192 * (1 + 65)  # class token, positions
            + 12 * (2 * 2 * 192 + 3 * 192 * 193 + 192 * 193 + 768 * 193 + 192 * 769)
            + 2 * 192
            + 10 * 193,
            "matrix sizes of ViT-Tiny with 4×4 patches",
        ),
    ),
)
class VisionTransformer(nn.Module):
    """Patches, a class token and learned positions through `layers` pre-norm blocks; `fc` reads the class token."""

    def __init__(
        self,
        *,
        num_classes: Natural = 10,
        in_channels: Natural = 3,
        image_size: Natural = 32,
        patch_size: Natural = 4,
        width: Natural = 192,
        layers: Natural = 12,
        heads: Natural = 3,
        mlp_width: Natural = 768,
        dropout: Probability = 0.0,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise OptionError(f"image_size {image_size} must be a multiple of patch_size {patch_size}")
        if width % heads:
            raise OptionError(f"width {width} must be a multiple of heads {heads}")
        self.patches = nn.Conv2d(in_channels, width, patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + (image_size // patch_size) ** 2, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(_Block(width, heads, mlp_width, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, num_classes)
        for start in (self.class_token, self.positions):
            nn.init.trunc_normal_(start, std=_START_STD)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=_START_STD)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images with side `image_size`."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(x.shape[0], -1, -1), tokens], dim=1) + self.positions
        tokens = self.norm(self.blocks(self.dropout(tokens)))
        return self.fc(tokens[:, 0])
