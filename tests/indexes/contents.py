"""What an index contains."""

from anchorfold import Index
from anchorfold.retrieval.embedded_store import EmbeddedStore
from tests.storage.page_rows import live_pages

REPORT_PAGES = [
    ("reports/a.pdf", 1), ("reports/a.pdf", 2), ("reports/a.pdf", 3), ("reports/b.pdf", 1), ("reports/b.pdf", 2),
    ("reports/c.png", 1),
]  # fmt: skip


def indexed_pages(index: Index) -> list[tuple[str, int]]:
    """Names and numbers of all live pages that have vectors."""
    assert isinstance(index.store, EmbeddedStore)
    names = index.store.names()
    return sorted((names[source], page) for source, page, _ in live_pages(index.store))
