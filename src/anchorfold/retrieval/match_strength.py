"""Whether the best result of a query is a strong match.

The highest possible MaxSim score of a query is the sum of the lengths of its vectors. A score divided by it is a mean
cosine similarity of the query words, which unlike the score is comparable between queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from anchorfold.storage.hits import Hit
from anchorfold.storage.protocol import PageStore

if TYPE_CHECKING:
    from torch import Tensor

# Similarities below which the best page is a weak match, by model, unless a passage contains half of the query words.
# The second holds if the best page has text, and no result contains a word of the query. Measured in
# docs/research/hybrid.md.
WEAK_SIMILARITY = {"nano": (0.4, 0.5)}


def is_weak_match(store: PageStore, query: str, vectors: Tensor | np.ndarray, hits: Sequence[Hit]) -> bool | None:
    """Return whether the results match few words of the query, whose vectors are `(tokens, d)`.

    Returns:
        None if this is unknown: for other models, in text mode, and without results.
    """
    limits = WEAK_SIMILARITY.get(store.settings.model)
    scores = [(hit.visual, (hit.source, hit.page)) for hit in hits if hit.visual is not None]
    if limits is None or not scores:
        return None
    highest = float(np.linalg.norm(np.asarray(vectors, np.float32), axis=1).sum())
    best, page = max(scores)
    words = max(len({hit.snippet[first:last].casefold() for first, last in hit.matches}) for hit in hits)
    if best >= max(limits) * highest or 2 * words >= len(vectors):
        return False
    no_words = all(hit.text == 0 for hit in hits) and store.text_scores(query, [page])[page] is not None
    return best < limits[no_words] * highest
