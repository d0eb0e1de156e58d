"""Text of indexed pages and positions of query words, from the index or the original file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anchorfold.documents.original_pages import find_text, find_word_boxes

if TYPE_CHECKING:
    from anchorfold.documents.formats import Box
    from anchorfold.indexes.index import Index


def page_text(index: Index, source: str, page: int) -> str | None:
    """Return the text of a page, stored or from the original file; None if neither is available.

    Args:
        index: the index.
        source: absolute path of the document.
        page: page number from 1.
    """
    if index.settings.text and (stored := index.store.page_text(source, page)) is not None:
        return stored.text
    return find_text(vars(index.page_at(source, page, vectors=False)))


def query_word_boxes(index: Index, query: str, source: str, page: int) -> list[Box]:
    """Return the positions of the words of a query in the text layer of a page.

    Pages read by OCR, and pages whose original file was deleted or changed, have none.
    """
    words = {word for match in index.store.matched_words(query, source, page) for word in match.split()}
    return find_word_boxes(vars(index.page_at(source, page, vectors=False)), tuple(sorted(words)))
