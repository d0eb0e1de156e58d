"""The reading stem: pixels to characters in 8 x 8 cells at several scales, then to one feature per patch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorfold.backbones.nano.config import NanoConfig

READS_PER_CELL = 2  # a cell is wider than a small letter: it names the characters at 1/4 and 3/4 of its width


class ConvNorm(nn.Sequential):
    """Convolution, batch norm, GELU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs), nn.GELU()
        )

    def forward(self, x: Tensor) -> Tensor:
        """`(B, inputs, H, W)` to `(B, outputs, H/stride, W/stride)`."""
        layers: list[Any] = list(self)
        conv, norm, gelu = layers
        if norm.training:
            y: Tensor = gelu(norm(conv(x)))
            return y
        # Fixed statistics are a factor and a shift: the convolution takes them along, which saves a pass over the page.
        factor = norm.weight.float() * (norm.running_var.float() + norm.eps).rsqrt()
        shift = norm.bias.float() - norm.running_mean.float() * factor
        weight = (conv.weight * factor[:, None, None, None]).to(conv.weight.dtype)
        y = gelu(F.conv2d(x, weight, shift.to(weight.dtype), conv.stride, conv.padding))
        return y


class Reader(nn.Module):
    """`(B, 1, H, W)` grey in [-1, 1] to `(B, C, H/8, W/8)` features and `(B, 2 x symbols, H/8, W/8)` logits."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        c = config.stem_channels
        self.down = nn.Sequential(
            ConvNorm(1, c // 4, 5, 2), ConvNorm(c // 4, c // 2, 3, 2), ConvNorm(c // 2, c, 3, 2), ConvNorm(c, c, 3, 1)
        )
        self.residual = ConvNorm(c, c, 3, 1)
        self.name = nn.Conv2d(c, READS_PER_CELL * (len(config.characters) + 1), 1)  # the last symbol is blank paper

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Features and character logits."""
        features = self.down(pixels.contiguous(memory_format=torch.channels_last))
        features = features + self.residual(features)
        return features, self.name(features)


class PatchStem(nn.Module):
    """One page `(1, 1, 16 rows, 32 columns)` to `(rows x columns, hidden)` patch features.

    The same reader looks at the page at full, half and quarter size, so that letters of 8 and of 60 pixels
    both meet it at a height that it knows. Every patch sees a little of its neighbours, as words cross borders.
    With `config.eighth` it looks at an eighth of the size too, where titles of slides and posters are lines of text.
    """

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.reader = Reader(config)
        inputs = config.stem_channels + READS_PER_CELL * (len(config.characters) + 1)
        c, d = config.run_channels, config.hidden_size
        self.cell = nn.Conv2d(inputs, config.cell_channels, 1)
        # Runs of letters look the same wherever a patch's border falls: find them before cutting patches.
        self.run = nn.Conv2d(config.cell_channels, c, (1, 7), 1, (0, 3))
        self.at_full = nn.Conv2d(c, d, (4, 6), (2, 4), (1, 1))
        self.at_half = nn.Conv2d(c, d, (3, 4), (1, 2), (1, 1))
        self.at_quarter = nn.Conv2d(c, d, (1, 3), 1, (0, 1))
        # A cell is two patches wide at an eighth of the size, and speaks for each of them.
        self.at_eighth = nn.Conv2d(c, 2 * d, 3, 1, 1) if config.eighth else None

    def cells(self, pixels: Tensor) -> Tensor:
        """`(B, run_channels, H/8, W/8)` runs of letters, from what is seen and what is read."""
        features, logits = self.reader(pixels)
        b, _, h, w = logits.shape
        names = logits.view(b, READS_PER_CELL, -1, h, w).softmax(2).view(b, -1, h, w)
        return F.gelu(self.run(F.gelu(self.cell(torch.cat((features, names), 1)))))

    def forward(self, pixels: Tensor) -> Tensor:
        """`(B, 1, H, W)` to `(B, patches, hidden)`."""
        half = F.avg_pool2d(pixels, 2)
        quarter = F.avg_pool2d(half, 2)
        patches: Tensor = self.at_full(self.cells(pixels)) + self.at_half(self.cells(half))
        patches = patches + self.at_quarter(self.cells(quarter)).repeat_interleave(2, 2)
        if self.at_eighth is not None:
            left, right = self.at_eighth(self.cells(F.avg_pool2d(quarter, 2))).chunk(2, 1)
            cells = torch.stack((left, right), -1).flatten(-2).repeat_interleave(4, 2)
            patches = patches + cells[:, :, : patches.shape[2], : patches.shape[3]]
        return patches.flatten(2).transpose(1, 2)
