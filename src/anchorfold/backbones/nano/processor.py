"""Image processor: page images to grey pixels of nano's patch grid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from transformers import BaseImageProcessor, BatchFeature

STEP = 32  # side lengths are multiples of it, because the smaller scales of the stem need whole cells


class NanoImageProcessor(BaseImageProcessor):
    """Shrinks pages to at most `max_patches` patches of 16 x 32 pixels; smaller pages keep their size."""

    model_input_names = ["pixel_values", "patch_grid"]  # noqa: RUF012

    def __init__(
        self, max_patches: int = 1600, patch_height: int = 16, patch_width: int = 32, **kwargs: object
    ) -> None:
        super().__init__(**kwargs)
        self.max_patches, self.patch_height, self.patch_width = max_patches, patch_height, patch_width

    def fit_size(self, width: int, height: int) -> tuple[int, int]:
        """Choose the width and height in pixels, multiples of 32, to which a page is resized."""
        limit = self.max_patches * self.patch_height * self.patch_width
        scale = min(1.0, (limit / (width * height)) ** 0.5)
        while True:
            w, h = (max(STEP, round(side * scale / STEP) * STEP) for side in (width, height))
            if w * h <= limit or (w == STEP and h == STEP):
                return w, h
            # A very long page cannot be narrower than a patch: only its length is reduced.
            scale *= 0.98
            if w == STEP or h == STEP:
                longest = limit // STEP // STEP * STEP
                return (w, min(h, longest)) if w == STEP else (min(w, longest), h)

    def preprocess(self, images: Sequence[Image.Image], return_tensors: str | None = None, **_: object) -> BatchFeature:
        """Convert page images to model inputs.

        Returns:
            `pixel_values (B, 1, H, W)` in [-1, 1], padded with white, and `patch_grid (B, 2)` rows and columns.
        """
        pages = []
        for image in images:
            size = self.fit_size(*image.size)
            grey = image.convert("L")
            # One resize with a reducing gap preserves thin strokes.
            grey = grey if grey.size == size else grey.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
            pages.append(np.asarray(grey, np.float32) / 127.5 - 1)
        height, width = (max(p.shape[i] for p in pages) for i in (0, 1))
        pixels = np.ones((len(pages), 1, height, width), np.float32)
        for i, page in enumerate(pages):
            pixels[i, 0, : page.shape[0], : page.shape[1]] = page
        grid = [(p.shape[0] // self.patch_height, p.shape[1] // self.patch_width) for p in pages]
        data = {"pixel_values": torch.from_numpy(pixels), "patch_grid": torch.tensor(grid)}
        return BatchFeature(data, tensor_type=return_tensors)
