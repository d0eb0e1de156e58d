"""What follows from the operations of any store, for search and its messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from anchorfold.errors import AnchorFoldError
from anchorfold.storage.hits import SearchRequest
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.protocol import PageStore
from anchorfold.storage.text_search import query_terms

NO_WORD = "the query contains no word"


def check_where(store: PageStore, where: str) -> None:
    """Raise FilterError if a filter is invalid."""
    from anchorfold.filters.where import parse_where  # imports sqlglot, which most searches do not need

    parse_where(where, store.columns())


class Located(Protocol):
    """A store, or a part of one that has its settings."""

    settings: IndexSettings

    @property
    def location(self) -> str: ...  # noqa: D102


def require_text(store: Located) -> None:
    """Raise AnchorFoldError if the index stores no text."""
    if not store.settings.text:
        raise AnchorFoldError(
            f"{store.location} stores no text: search it with --mode visual, or add the text with `anchorfold index "
            f"DOCUMENTS -o {store.location} --text`, which encodes no page again."
        )


def no_match_reason(store: PageStore, query: str, where: str | None = None) -> str:
    """Return why a text search had no results."""
    phrases, words = query_terms(query)
    if not phrases and not words:
        return NO_WORD
    missing = "these words" if not phrases else "the quoted phrase" if len(phrases) == 1 else "all quoted phrases"
    if where is not None and store.search_text(SearchRequest([query], top_k=1))[0]:
        return f"no page that the filter allows contains {missing}"
    return f"no page contains {missing}"


def has_searchable_pages(store: PageStore, request: SearchRequest) -> bool:
    """Return whether the filters of a request allow any page with vectors."""
    probe = np.ones((1, store.settings.dim), np.float32)
    return bool(store.search_visual(replace(request, vectors=[probe], top_k=1))[0])
