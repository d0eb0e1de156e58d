"""Convolutional stem: pixels to characters in 8 x 8 cells at several scales, then to one feature per patch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorfold.backbones.nano.config import NanoConfig

READS_PER_CELL = 2  # a cell is wider than a small letter: classify the characters at 1/4 and 3/4 of its width


class ConvNorm(nn.Sequential):
    """Convolution, batch normalisation and GELU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs), nn.GELU()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block: `(B, inputs, H, W)` to `(B, outputs, H / stride, W / stride)`."""
        layers: list[Any] = list(self)
        conv, norm, gelu = layers
        if norm.training:
            y: Tensor = gelu(norm(conv(x)))
            return y
        # Fixed statistics are folded into the convolution, which saves a pass over the page.
        factor = norm.weight.float() * (norm.running_var.float() + norm.eps).rsqrt()
        shift = norm.bias.float() - norm.running_mean.float() * factor
        weight = (conv.weight * factor[:, None, None, None]).to(conv.weight.dtype)
        y = gelu(F.conv2d(x, weight, shift.to(weight.dtype), conv.stride, conv.padding))
        return y


class Reader(nn.Module):
    """Character classifier of 8 x 8 cells."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        c = config.stem_channels
        self.down = nn.Sequential(
            ConvNorm(1, c // 4, 5, 2), ConvNorm(c // 4, c // 2, 3, 2), ConvNorm(c // 2, c, 3, 2), ConvNorm(c, c, 3, 1)
        )
        self.residual = ConvNorm(c, c, 3, 1)
        self.name = nn.Conv2d(c, READS_PER_CELL * (len(config.characters) + 1), 1)  # the last class is blank

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Classify the cells of a page.

        Args:
            pixels: `(B, 1, H, W)` grey in [-1, 1].

        Returns:
            `(B, C, H / 8, W / 8)` features and `(B, 2 * symbols, H / 8, W / 8)` logits.
        """
        features = self.down(pixels.contiguous(memory_format=torch.channels_last))
        features = features + self.residual(features)
        return features, self.name(features)


class PatchStem(nn.Module):
    """Patch features from character features at several scales.

    The same reader processes the page at full, half and quarter size, so that letters from 8 to 60 pixels appear at
    a height that it was trained on. Receptive fields overlap, because words cross patch borders. With
    `config.eighth_scale` it processes an eighth of the size too, where titles of slides and posters become lines.
    """

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.reader = Reader(config)
        inputs = config.stem_channels + READS_PER_CELL * (len(config.characters) + 1)
        c, d = config.run_channels, config.hidden_size
        self.cell = nn.Conv2d(inputs, config.cell_channels, 1)
        # Letter sequences do not depend on patch borders: detect them before splitting into patches.
        self.run = nn.Conv2d(config.cell_channels, c, (1, 7), 1, (0, 3))
        self.at_full = nn.Conv2d(c, d, (4, 6), (2, 4), (1, 1))
        self.at_half = nn.Conv2d(c, d, (3, 4), (1, 2), (1, 1))
        self.at_quarter = nn.Conv2d(c, d, (1, 3), 1, (0, 1))
        # At an eighth of the size a cell is two patches wide: it has one output per patch.
        self.at_eighth = nn.Conv2d(c, 2 * d, 3, 1, 1) if config.eighth_scale else None

    def encode_cells(self, pixels: Tensor) -> Tensor:
        """Encode letter sequences from features and predicted characters: `(B, run_channels, H / 8, W / 8)`."""
        features, logits = self.reader(pixels)
        b, _, h, w = logits.shape
        names = logits.view(b, READS_PER_CELL, -1, h, w).softmax(2).view(b, -1, h, w)
        return F.gelu(self.run(F.gelu(self.cell(torch.cat((features, names), 1)))))

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode patches: `(B, 1, H, W)` to `(B, patches, hidden)`."""
        half = F.avg_pool2d(pixels, 2)
        quarter = F.avg_pool2d(half, 2)
        patches: Tensor = self.at_full(self.encode_cells(pixels)) + self.at_half(self.encode_cells(half))
        patches = patches + self.at_quarter(self.encode_cells(quarter)).repeat_interleave(2, 2)
        if self.at_eighth is not None:
            left, right = self.at_eighth(self.encode_cells(F.avg_pool2d(quarter, 2))).chunk(2, 1)
            cells = torch.stack((left, right), -1).flatten(-2).repeat_interleave(4, 2)
            patches = patches + cells[:, :, : patches.shape[2], : patches.shape[3]]
        return patches.flatten(2).transpose(1, 2)
