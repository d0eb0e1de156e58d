"""Hits and stored texts of an index, comparable."""

from pathlib import Path
from typing import Any

from anchorfold import Index
from anchorfold.retrieval.embedded_store import EmbeddedStore


def pages(hits: Any) -> list[tuple[str, int]]:
    """File names and page numbers of hits."""
    return [(Path(hit.document).name, hit.page) for hit in hits]


def stored_texts(index: Index) -> dict[tuple[str, int], str]:
    """Texts of all pages, live or staged, by file name and page number."""
    query = (
        "SELECT d.name, t.page_id & 0xFFFFFF, replace(t.text, char(0x200b), '') FROM texts t "
        "JOIN versions v ON v.id = t.page_id >> 24 JOIN documents d ON d.id = v.document_id ORDER BY t.page_id"
    )
    assert isinstance(index.store, EmbeddedStore)
    rows = index.store.read(lambda snapshot: snapshot.connection.execute(query).fetchall())
    return {(Path(name).name, page): text for name, page, text in rows}
