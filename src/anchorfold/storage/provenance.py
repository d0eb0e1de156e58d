"""Where a page's vectors come from, in few bytes: anchors, groups, weights and the grid of its patches.

Groups are exact. A weight is stored as its share of the largest weight of its group, in steps of half an octave (4
bits), which a picture does not show; weights of a group sum to 1 again when they are read.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from anchorfold.page import EncodedPage, PatchGrid

LAYOUT = 1  # the first byte of a stored provenance
STEPS_AN_OCTAVE, NOTHING = 2, 15  # of a weight's code: 0 is the largest of its group, 15 no weight at all


def pack(page: EncodedPage) -> bytes:
    """Return the provenance of a page."""
    groups, weights = page.groups.numpy().astype(np.int64), page.weights.numpy().astype(np.float32)
    anchors, vectors = page.anchors.numpy().astype(np.int64), len(page)
    tiles = None if page.grid is None else [list(asdict(tile).values()) for tile in page.grid.tiles]
    head = {"tokens": len(groups), "vectors": vectors, "tiles": tiles}
    itself = len(groups) == vectors and np.array_equal(groups, np.arange(vectors))  # the full index
    body = b""
    if not itself:
        kind = np.dtype("u1" if vectors < 255 else "<u2")
        steps = np.diff(anchors, prepend=0).astype("<u4")
        body = steps.tobytes() + (groups + 1).astype(kind).tobytes() + weight_codes(weights, groups, vectors).tobytes()
    text = json.dumps(head, separators=(",", ":")).encode()
    return bytes([LAYOUT]) + zlib.compress(text + b"\0" + body, 9, wbits=-15)


def unpack(stored: bytes) -> dict[str, Any]:
    """Return `anchors (m,)`, `groups (N,)`, `weights (N,)` as NumPy arrays, and `grid`."""
    if stored[:1] != bytes([LAYOUT]):
        raise ValueError("the provenance of a page has another layout")
    text, _, body = zlib.decompress(stored[1:], wbits=-15).partition(b"\0")
    head = json.loads(text)
    tokens, vectors = head["tokens"], head["vectors"]
    if not body and tokens == vectors:
        anchors = groups = np.arange(vectors)
        weights = np.ones(tokens, np.float32)
    else:
        kind = np.dtype("u1" if vectors < 255 else "<u2")
        anchors = np.frombuffer(body, "<u4", vectors).astype(np.int64).cumsum()
        groups = np.frombuffer(body, kind, tokens, 4 * vectors).astype(np.int64) - 1
        codes = np.frombuffer(body, np.uint8, tokens, 4 * vectors + tokens * kind.itemsize)
        weights = weights_of(codes, groups, vectors)
    return {"anchors": anchors, "groups": groups.copy(), "weights": weights, "grid": grid_of(head["tiles"])}


def grid_of(tiles: list[list[float]] | None) -> PatchGrid | None:
    """Return a grid from its tiles' rows, columns, left, top, right, bottom."""
    from anchorfold.page import PatchGrid, Tile

    return None if tiles is None else PatchGrid(tuple(Tile(int(r), int(c), *edges) for r, c, *edges in tiles))


def weight_codes(weights: np.ndarray, groups: np.ndarray, vectors: int) -> np.ndarray:
    """Return `(N,)` uint8 0 to 15."""
    members = groups >= 0
    largest = np.zeros(vectors, np.float32)
    np.maximum.at(largest, groups[members], weights[members])
    share = np.zeros(len(weights), np.float32)
    np.divide(weights, largest[groups] if vectors else 1, out=share, where=members & (weights > 0))
    with np.errstate(divide="ignore"):
        steps = np.rint(-STEPS_AN_OCTAVE * np.log2(share))
    return np.where(np.isfinite(steps), steps.clip(0, NOTHING - 1), NOTHING).astype(np.uint8)


def weights_of(codes: np.ndarray, groups: np.ndarray, vectors: int) -> np.ndarray:
    """Return `(N,)` float32 weights that sum to 1 in each group."""
    shares = np.where(codes == NOTHING, 0.0, 2.0 ** (-codes.astype(np.float64) / STEPS_AN_OCTAVE))
    members = groups >= 0
    sums = np.bincount(groups[members], shares[members], vectors)
    weights = np.zeros(len(codes), np.float32)
    np.divide(shares, sums[groups] if vectors else 1, out=weights, where=members & (shares > 0), casting="unsafe")
    return weights
