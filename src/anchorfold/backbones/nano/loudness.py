"""How loudly a patch speaks: what a page repeats, or prints large, it is about; a passing mention says its word less.

MaxSim takes a word's best match, and that is as good in a passing mention as in a title. A patch's vector has length 1,
so it cannot be shorter; but it can turn away from its word, into dimensions that no word has.
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


def speak(vectors: Tensor, quietest: Tensor, silent: int) -> Tensor:
    """A page's vectors `(N, d)` of any length, turned until their cosine with themselves is their loudness.

    They turn into the last `silent` dimensions, where no word lies, so all words lose alike and keep their order. Where
    to depends on what a patch says: patches that are alike stay alike, and what is unsaid cancels in averages of
    different ones as what is said does. (One direction for all would not cancel.)
    """
    said = vectors.float()[:, :-silent]
    unit = F.normalize(said, dim=-1)
    unsaid = F.normalize(unit.unflatten(-1, (-1, silent)).sum(1), dim=-1) * said.norm(dim=-1, keepdim=True)
    loud = loudness(unit, quietest.float())[:, None]
    return torch.cat((loud * said, (1 - loud.square()).clamp(min=0).sqrt() * unsaid), -1).to(vectors.dtype)
