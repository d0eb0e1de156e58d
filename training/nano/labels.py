"""Labels of cells and patches, from the characters of a page and their boxes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorfold.backbones.nano.text import CHARACTERS, LETTERS

INDEX = {c: i for i, c in enumerate(CHARACTERS)}
BLANK = len(CHARACTERS)
IGNORE = -100
READABLE = (8.0, 40.0)  # range of line heights in pixels that the reader is trained on at one scale


@dataclass
class Words:
    """Words of a page: `texts` and `boxes (n, 4)` in pixels."""

    texts: list[str]
    boxes: np.ndarray


def group_words(symbols: str, boxes: np.ndarray) -> Words:
    """Join adjacent letters and digits into words: same line, no gap wider than a thin space."""
    texts: list[str] = []
    spans: list[tuple[int, int]] = []
    if len(symbols):
        alnum = np.array([s in LETTERS for s in symbols])
        height = np.maximum(boxes[:, 3] - boxes[:, 1], 1)
        gap = boxes[1:, 0] - boxes[:-1, 2]
        level = np.minimum(boxes[1:, 3], boxes[:-1, 3]) - np.maximum(boxes[1:, 1], boxes[:-1, 1])
        joined = (np.abs(gap) < 0.14 * height[1:]) & (level > 0.5 * height[1:]) & alnum[1:] & alnum[:-1]
        start = 0
        for end in [*(np.flatnonzero(~joined) + 1), len(symbols)]:
            if alnum[start]:
                texts.append(symbols[start:end])
                spans.append((start, end))
            start = int(end)
    merged = [(boxes[a:b, 0].min(), boxes[a:b, 1].min(), boxes[a:b, 2].max(), boxes[a:b, 3].max()) for a, b in spans]
    return Words(texts, np.array(merged, np.float32).reshape(-1, 4))


def map_characters(symbols: str, boxes: np.ndarray, height: int, width: int) -> np.ndarray:
    """Map the symbols to the classification points of the reader.

    Returns:
        `(height / 8, width / 4)` symbol numbers; `BLANK` on background, `IGNORE` where the size is unreadable.
    """
    labels = np.full((height // 8, width // 4), BLANK, np.int64)
    tall = boxes[:, 3] - boxes[:, 1]
    margin = 0.08 * tall
    rows = np.ceil((np.stack((boxes[:, 1] + margin, boxes[:, 3] - margin), 1) - 4) / 8).astype(int)
    columns = np.ceil((boxes[:, [0, 2]] - 2) / 4).astype(int)
    rows, columns = rows.clip(0, height // 8), columns.clip(0, width // 4)
    readable = (tall >= READABLE[0]) & (tall <= READABLE[1])
    for symbol, (top, bottom), (left, right), good in zip(symbols, rows, columns, readable, strict=True):
        labels[top:bottom, left:right] = INDEX[symbol] if good else IGNORE
    return labels


def assign_words(words: Words, rows: int, columns: int, ph: int = 16, pw: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Assign words to patches by overlap.

    The overlap uses the middle band of a word's box, because the boxes of adjacent lines touch. A patch is labelled
    with at most two words, those with the largest overlaps above a minimum.

    Returns:
        `(k, 2)` patch and word numbers, and `(k,)` shares, which sum to 1 per patch.
    """
    overlaps: dict[int, list[tuple[float, int]]] = {}
    for number, (left, high, right, low) in enumerate(words.boxes):
        band = 0.2 * (low - high)
        top, bottom = high + band, low - band
        area = max((right - left) * (bottom - top), 1e-3)
        for r in range(max(int(top // ph), 0), min(int(bottom // ph) + 1, rows)):
            tall = min(bottom, (r + 1) * ph) - max(top, r * ph)
            for c in range(max(int(left // pw), 0), min(int(right // pw) + 1, columns)):
                covered = tall * (min(right, (c + 1) * pw) - max(left, c * pw))
                if covered > 0.08 * ph * pw or covered > 0.45 * area:
                    overlaps.setdefault(r * columns + c, []).append((covered, number))
    pairs, shares = [], []
    for patch, words_here in overlaps.items():
        best = sorted(words_here, reverse=True)[:2]
        total = sum(c for c, _ in best)
        for covered, number in best:
            pairs.append((patch, number))
            shares.append(covered / total)
    return np.array(pairs, np.int64).reshape(-1, 2), np.array(shares, np.float32)
