"""The contents of an index, for comparing two."""

from collections.abc import Iterator

from anchorfold.storage.checking import check
from anchorfold.storage.snapshot import Snapshot, StoredPage


def contents(index) -> dict:
    """Each live page by document and number: its bytes, and where they come from."""
    assert check(index.path) == []
    return index.store.read(_pages)


def _pages(snapshot: Snapshot) -> dict:
    pages = {}
    for page in stored_pages(snapshot):
        key = (page.document, page.page)
        assert key not in pages, f"{key} is stored twice"
        made_of = page.provenance if page.kept else {}
        arrays = {name: value if name == "grid" else value.tolist() for name, value in made_of.items()}
        details = page.details()
        pages[key] = (page.vectors.tobytes() if page.kept else b"", arrays, details)
    return pages


def stored_pages(snapshot: Snapshot) -> Iterator[StoredPage]:
    """All live pages, also those that could not be read."""
    versions = snapshot.versions_by_id(snapshot.live_ids().tolist())
    for segment in snapshot.segments().values():
        for row, version in enumerate(segment.version.tolist()):
            if version in versions:
                yield StoredPage(snapshot, versions[version], segment, row)
