"""Hybrid search: visual and text results of any store in one ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anchorfold.index.fusion import POOL, fused
from anchorfold.index.hits import Hit, PageKey, Selection
from anchorfold.index.store.protocol import PageStore


def hybrid_hits(
    store: PageStore,
    queries: Sequence[str],
    vectors: Sequence[Any],
    top: int,
    selection: Selection,
    **options: Any,
) -> list[list[Hit]]:
    """The best pages for each query by visual and text scores.

    Each side contributes its best pages; the other side scores these as well, and all are ranked by both scores.

    Args:
        store: where to search.
        queries: query texts.
        vectors: `(tokens, d)` vectors of the same queries.
        top: maximum number of hits per query.
        selection: the pages that may be returned.
        **options: further options of `PageStore.search`.
    """
    visual = store.search(vectors, max(top, POOL), selection, **options)
    return [
        _fuse(store, query, vector, hits, top, selection)
        for query, vector, hits in zip(queries, vectors, visual, strict=True)
    ]


def _fuse(
    store: PageStore, query: str, vector: Any, visual: Sequence[Hit], top: int, selection: Selection
) -> list[Hit]:
    text = store.search_text(query, max(top, POOL), selection)
    hits: dict[PageKey, Hit] = {(hit.source, hit.page): hit for hit in (*text, *visual)}
    seen = {(hit.source, hit.page): hit.score for hit in visual}
    seen |= store.page_scores(vector, [key for key in hits if key not in seen])
    words = store.text_scores(query, list(hits))
    keys = sorted(key for key in hits if key in seen and key in words)
    if not keys:
        return []
    looks = np.array([seen[key] for key in keys])
    matches = np.array([words[key] or 0.0 for key in keys])
    no_text = np.array([words[key] is None for key in keys])
    both = fused(looks, matches, no_text)
    chosen = sorted(range(len(keys)), key=lambda i: (-both[i], keys[i]))[:top]
    snippets = {(hit.source, hit.page): hit for hit in text}
    missing = store.snippets(query, [keys[i] for i in chosen if keys[i] not in snippets])
    results = []
    for i in chosen:
        key = keys[i]
        hit = replace(hits[key], score=float(both[i]), visual=float(looks[i]), text=float(matches[i]))
        if key in snippets:
            hit = replace(hit, snippet=snippets[key].snippet, matches=snippets[key].matches)
        elif key in missing:
            hit = replace(hit, snippet=missing[key].text, matches=missing[key].matches)
        results.append(hit)
    return results
