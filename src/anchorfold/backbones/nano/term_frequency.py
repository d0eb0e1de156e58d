"""Weight patch vectors by in-page term frequency.

MaxSim takes the best match of each query term, which is as good in a passing mention as in a title. Vectors have unit
length, so a weight cannot scale them. Instead, a vector is rotated towards null dimensions, which are zero in all
word vectors: its cosine with every word is multiplied by its weight.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SIMILARITY_RANGE = (0.6, 0.9)  # cosine at which two patches begin to count as the same word, and fully do
PATCHES_PER_WORD = 2.0  # in body type; larger type covers more patches and gets a higher weight
SATURATION = 1.2  # k1 of BM25: occurrences at which the weight is halfway between its minimum and 1


def term_frequency_weights(vectors: Tensor, minimum_weight: Tensor) -> Tensor:
    """Compute the weight of each patch from how many patches of its page show the same word.

    Args:
        vectors: `(n, d)` unit vectors of the patches of one page.
        minimum_weight: Weight of a patch that resembles no other.

    Returns:
        `(n,)` weights from `minimum_weight` to 1.
    """
    low, high = SIMILARITY_RANGE
    similar = ((vectors @ vectors.T).clamp_(low, high).mean(1) - low) / (high - low)
    occurrences = similar * len(vectors) / PATCHES_PER_WORD
    return minimum_weight + (1 - minimum_weight) * occurrences / (occurrences + SATURATION)


def apply_term_frequency(vectors: Tensor, minimum_weight: Tensor, null_dimensions: int) -> Tensor:
    """Rotate the vectors of one page until the cosine with their original direction equals their weight.

    The direction within the null dimensions depends on the vector: similar patches stay similar, and averages of
    different patches cancel it as they cancel the rest. A common direction would not cancel.

    Args:
        vectors: `(n, d)` vectors of any length; their null dimensions are overwritten.
        minimum_weight: See `term_frequency_weights`.
        null_dimensions: Number of trailing dimensions that are zero in all word vectors.

    Returns:
        `(n, d)` vectors of the same lengths.
    """
    words = vectors.float()[:, :-null_dimensions]
    unit = F.normalize(words, dim=-1)
    null = F.normalize(unit.unflatten(-1, (-1, null_dimensions)).sum(1), dim=-1) * words.norm(dim=-1, keepdim=True)
    weights = term_frequency_weights(unit, minimum_weight.float())[:, None]
    return torch.cat((weights * words, (1 - weights.square()).clamp(min=0).sqrt() * null), -1).to(vectors.dtype)
