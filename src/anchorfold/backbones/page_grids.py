"""Patch grids of pages, derived from the inputs that a processor created."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anchorfold.page import PatchGrid


def merged_grids(image_grid_thw: Tensor, merge: int) -> list[PatchGrid | None]:
    """Convert Qwen's `(B, 3)` time, height and width in patches to grids of tokens."""
    return [PatchGrid.single(h // merge, w // merge) for _, h, w in image_grid_thw.tolist()]


def patch_grids(processor: Any, inputs: dict[str, Any]) -> list[PatchGrid | None]:
    """Return the patch grid of each page of a batch; None if the processor does not define one.

    Args:
        processor: transformers processor with `tokenizer` and `image_processor`.
        inputs: its page inputs: `image_grid_thw` (Qwen), `<row_1_col_1>` marks of tiles in `input_ids` (Idefics3), or
            neither, for a square grid of `image_seq_length` tokens.
    """
    if "image_grid_thw" in inputs:
        return merged_grids(inputs["image_grid_thw"], processor.image_processor.merge_size)
    # Idefics3's processor has the shorter name.
    length = getattr(processor, "image_seq_length", None) or getattr(processor, "image_seq_len", None)
    if length is None or (side := round(length**0.5)) ** 2 != length:
        return [None] * len(inputs["input_ids"])
    return [_tiles(processor.tokenizer, ids, side) for ids in inputs["input_ids"].tolist()]


def image_token_id(processor: Any) -> int | None:
    """Return the token of a visual token in a processor's prompts, or None if it has none.

    Gemma's processor has another token in `image_token`, for the position before the image.
    """
    token = getattr(processor.tokenizer, "image_token", None) or getattr(processor, "image_token", None)
    return None if token is None else int(processor.tokenizer.convert_tokens_to_ids(token))


def _tiles(tokenizer: Any, ids: list[int], side: int) -> PatchGrid:
    """Return the grid of square tiles in reading order and the whole page, or of the page alone without marks."""
    tokens = tokenizer.convert_ids_to_tokens(sorted(set(ids)))
    marks = [token.strip("<>").split("_") for token in tokens if token.startswith("<row_")]
    if not marks:
        return PatchGrid.single(side, side)
    down, across = max(int(mark[1]) for mark in marks), max(int(mark[3]) for mark in marks)
    return PatchGrid.tiled(across, down, side, side, thumbnail=True)
