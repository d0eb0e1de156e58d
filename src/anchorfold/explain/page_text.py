"""The text of an indexed page: as it is stored, or from its original file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anchorfold.documents.files import system_path
from anchorfold.documents.originals import is_unchanged
from anchorfold.documents.page_text import Box, page_text, word_boxes
from anchorfold.errors import UnreadableDocumentError
from anchorfold.index import Index


def text_of_page(index: Index, source: str, page: int) -> str | None:
    """What a page says, empty if it says nothing: as stored, else from the original file; None if that is not at hand.

    Args:
        index: where.
        source: the absolute path of the document.
        page: from 1.
    """
    if index.settings.text and (stored := index.text_at(source, page)) is not None:
        return stored.text
    return find_text(index.details_at(source, page))


def find_text(row: Mapping[str, Any]) -> str | None:
    """A page's text layer, empty if it has none; None if the original is gone, has changed or cannot be read.

    Args:
        row: what the index knows of the page: source, page, digest, size, modified.
    """
    if not is_unchanged(row):
        return None
    try:
        return page_text(system_path(row["source"]), row["digest"], row["page"] - 1)
    except UnreadableDocumentError:
        return None


def find_words(index: Index, query: str, source: str, page: int) -> list[Box]:
    """Where the words of a query stand on a page, by the text's own boxes.

    There are none on a page that was read by OCR, or whose original is gone or has changed.
    """
    words = {word for match in index.matched_words(query, source, page) for word in match.split()}
    row = index.details_at(source, page)
    if not words or not is_unchanged(row):
        return []
    try:
        return word_boxes(system_path(source), row["digest"], page - 1, tuple(sorted(words)))
    except UnreadableDocumentError:
        return []
