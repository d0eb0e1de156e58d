"""Compressed pages into an index: the one file of this room that knows how pages are stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from anchorfold.index import Index
from anchorfold.index.store.records import PageRow
from anchorfold.page import EncodedPage


class IndexWriter:
    """Appends pages of one source to an index. The caller holds the writer's lock: see `open_writer`.

    Args:
        index: where to.
        identity: of the source; pages of others in the same index are left alone.
    """

    def __init__(self, index: Index, identity: str) -> None:
        self._store = index._store
        self._prefix = f"vectors:{identity}#"

    def stored_pages(self) -> set[tuple[str, int]]:
        """Document and page of all that the index has from this source."""
        names = {s: d.document for s, d in self._store.documents().items() if s.startswith(self._prefix)}
        stored = self._store.stored_pages(list(names))
        return {(names[s], page) for s, versions in stored.items() for pages in versions.values() for page in pages}

    def row(self, document: str, page: int, encoded: EncodedPage) -> PageRow:
        """A page as it is stored. Nobody knows the file behind it, nor how many pages that has: 0."""
        source = self._prefix + document
        digest = hashlib.blake2b(source.encode(), digest_size=16).hexdigest()
        return PageRow(
            source=source, document=document, page=page, pages=0, digest=digest, size=0, modified=0, live=True,
            encoded=encoded,
        )  # fmt: skip

    def append(self, rows: Sequence[PageRow]) -> None:
        """Store pages in one commit."""
        self._store.append(rows)

    def finish(self) -> None:
        """Tidy up at the end of a run, and bring the lists of candidates up to date."""
        self._store.finish()


@contextmanager
def open_writer(
    index: Index,
    identity: str,
    wait: float = -1,
    waiting: Callable[[str], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Iterator[IndexWriter]:
    """A writer that nobody else writes beside; the arguments are those of `Index.add`."""
    with index._store.writing(wait, waiting, stop):
        yield IndexWriter(index, identity)
