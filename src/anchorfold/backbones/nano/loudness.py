"""How loudly a patch speaks: what a page repeats, or prints large, it is about; a passing mention says its word less.

MaxSim takes a word's best match, and that is as good in a passing mention as in a title. A patch's vector has length 1,
so it cannot be shorter; but it can turn away from its word.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ALIKE = (0.6, 0.9)  # cosine from which two patches show somewhat the same, and the same
PATCHES = 2.0  # that a word of usual size covers
SATURATION = 1.2  # as in BM25: mentions after which a word is half as loud as it can be, above the quietest


def loudness(vectors: Tensor, quietest: Tensor) -> Tensor:
    """`(N,)` from `quietest` to 1, by how many of a page's patches, `vectors (N, d)` of length 1, show the same."""
    low, high = ALIKE
    alike = ((vectors @ vectors.T).clamp_(low, high).mean(1) - low) / (high - low)
    times = alike * len(vectors) / PATCHES
    return quietest + (1 - quietest) * times / (times + SATURATION)


def speak(vectors: Tensor, quietest: Tensor) -> Tensor:
    """A page's vectors `(N, d)` of any length, turned until their cosine with themselves is their loudness.

    All turn in the same planes, one for each pair of dimensions. So a word's similarity to a patch that shows it is
    multiplied by the patch's loudness, whatever the word; patches that are alike stay alike; and averages lose as much
    of their length by it as they did before. (A common direction away from all words would not cancel in averages.)
    """
    loud = loudness(F.normalize(vectors.float(), dim=-1), quietest.float())[:, None]
    first, second = vectors.float().chunk(2, -1)
    turned = loud * vectors + (1 - loud.square()).sqrt() * torch.cat((-second, first), -1)
    return turned.to(vectors.dtype)
