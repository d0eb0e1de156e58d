"""Hybrid search: visual and text results of any store, fused into one ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anchorfold.retrieval.fusion import POOL, fused_scores
from anchorfold.storage.hits import Hit, PageKey, SearchRequest
from anchorfold.storage.protocol import PageStore
from anchorfold.storage.text_search import has_phrase


def hybrid_hits(store: PageStore, request: SearchRequest) -> list[list[Hit]]:
    """Return the best pages for each query by visual and text scores.

    The top pages of both searches are scored visually and by text, and ranked by the fused score. A quoted phrase
    excludes pages whose text does not contain it.
    """
    pool = replace(request, top_k=max(request.top_k, POOL))
    results = zip(request.texts, request.vectors, store.search_visual(pool), store.search_text(pool), strict=True)
    return [_fuse(store, *result, request.top_k) for result in results]


def _fuse(
    store: PageStore, query: str, vector: Any, visual: Sequence[Hit], text: Sequence[Hit], top_k: int
) -> list[Hit]:
    hits: dict[PageKey, Hit] = {(hit.source, hit.page): hit for hit in (*text, *visual)}
    seen = {(hit.source, hit.page): hit.score for hit in visual}
    seen |= store.page_scores(vector, [key for key in hits if key not in seen])
    if not seen:
        return list(text[:top_k])  # the query has no token that the model recognizes
    words = store.text_scores(query, list(hits))
    keys = sorted(key for key in hits if key in seen and key in words)
    if has_phrase(query):
        keys = [key for key in keys if words[key] != 0]  # None (no text) passes, because the phrase cannot be checked
    if not keys:
        return []
    visual_scores = np.array([seen[key] for key in keys])
    text_scores = np.array([words[key] or 0.0 for key in keys])
    no_text = np.array([words[key] is None for key in keys])
    scores = fused_scores(visual_scores, text_scores, no_text)
    chosen = sorted(range(len(keys)), key=lambda i: (-scores[i], keys[i]))[:top_k]
    snippets = {(hit.source, hit.page): hit for hit in text}
    missing = store.snippets(query, [keys[i] for i in chosen if keys[i] not in snippets])
    results = []
    for i in chosen:
        key = keys[i]
        hit = replace(hits[key], score=float(scores[i]), visual=float(visual_scores[i]), text=float(text_scores[i]))
        if key in snippets:
            hit = replace(hit, snippet=snippets[key].snippet, matches=snippets[key].matches)
        elif key in missing:
            hit = replace(hit, snippet=missing[key].text, matches=missing[key].matches)
        results.append(hit)
    return results
