"""Small synthetic indexes for the reliability tests of the store: no model, no documents, no torch.

The content of a page is determined by its document name, revision and page number, so that every test can compute the
expected search results.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage.database import make_folder
from anchorfold.storage.file_errors import is_there
from anchorfold.storage.hits import SearchRequest
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.lock import writer_lock
from anchorfold.storage.records import PageRow, PageText
from anchorfold.storage.snapshot import Snapshot

DIM, VECTORS, PAGES = 16, 6, 3
FOLDER = "/documents"
NAMES = ("alpha", "bravo", "charlie", "delta", "echo")


class _Array:
    """Array with the subset of the tensor interface that the store uses."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def numpy(self) -> np.ndarray:
        return self.values


@dataclass(frozen=True)
class ArrayPage:
    """Subset of the `EncodedPage` interface that the store uses, without torch."""

    vectors: _Array
    anchors: _Array
    groups: _Array
    weights: _Array
    grid: None = None

    def __len__(self) -> int:
        return len(self.vectors.values)

    @property
    def full(self) -> int:
        return len(self.groups.values)


def index_settings(**changes: Any) -> IndexSettings:
    defaults: dict[str, Any] = {
        "model": "synthetic", "fingerprint": "synthetic-1", "dim": DIM, "method": "1d-pooling", "options": {},
        "text": True,
    }  # fmt: skip
    return IndexSettings(**{**defaults, **changes})


def source(name: str) -> str:
    return f"{FOLDER}/{name}.pdf"


def digest(revision: int) -> str:
    return f"revision-{revision}"


def page_vectors(name: str, revision: int, page: int, count: int = VECTORS) -> np.ndarray:
    """Return `(count, DIM)` float32 unit vectors."""
    vectors = np.random.default_rng([zlib.crc32(name.encode()), revision, page]).normal(size=(count, DIM))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def page_word(name: str, revision: int, page: int) -> str:
    """Return a word that only this revision of this page contains."""
    return f"{name}r{revision}p{page}"


def page_row(
    name: str, revision: int = 1, page: int = 1, pages: int = PAGES, live: bool = True, vectors: int = VECTORS
) -> PageRow:
    found = page_vectors(name, revision, page, vectors)
    count = len(found)
    encoded = ArrayPage(
        _Array(found),
        _Array(np.arange(count)),
        _Array(np.repeat(np.arange(count), 2)),
        _Array(np.full(2 * count, 0.5, np.float32)),
    )
    return PageRow(
        source=source(name), document=f"{name}.pdf", page=page, pages=pages, digest=digest(revision), size=1000,
        modified=1_700_000_000_000_000_000, live=live, encoded=cast(Any, encoded),
        thumbnail=np.random.default_rng([page, revision]).bytes(300),
        text=PageText(f"common {page_word(name, revision, page)} report"), file_metadata={"title": name.title()},
    )  # fmt: skip


def document_rows(name: str, revision: int = 1, pages: int = PAGES, live: bool = True, **options: Any) -> list[PageRow]:
    return [page_row(name, revision, page, pages, live, **options) for page in range(1, pages + 1)]


def create_store(folder: Path, settings: IndexSettings | None = None) -> EmbeddedStore:
    """Return the store in a folder; create it if it does not exist, like `Index.create`."""
    if is_there(folder):
        return EmbeddedStore.open(folder)
    make_folder(folder)
    with writer_lock(folder, 30):
        return EmbeddedStore.create(folder, settings or index_settings())


def make_index(folder: Path, names: Collection[str] = NAMES, **changes: Any) -> EmbeddedStore:
    """Create an index with one vector file per document, metadata, and one removed document."""
    store = create_store(folder, index_settings(**changes))
    with store.writing():
        for name in names:
            store.append(document_rows(name))
        store.append(document_rows("removed"))
        store.append(document_rows("kept") + document_rows("gone"))
        store.set_metadata({source(n): {"year": 2020 + i} for i, n in enumerate(names)}, {"year": "integer"})
        store.remove([source("removed"), source("gone")])
    return store


def add_document(store: EmbeddedStore, name: str, revision: int = 1, pages: int = PAGES) -> None:
    """Add or replace a document as `Index.add` does: only missing pages are appended."""
    state = store.documents().get(source(name))
    stored = store.stored_pages([source(name)]).get(source(name), {}).get(digest(revision), set())
    staged = state is not None and state.digest not in ("", digest(revision))
    rows = document_rows(name, revision, pages, live=not staged)
    store.append([row for row in rows if row.page not in stored])
    if staged:
        store.promote(source(name), digest(revision), 1000, 1_700_000_000_000_000_000)


QUERIES = [page_vectors(name, 1, 1) for name in ("alpha", "removed", "gone")]


def observe(store: EmbeddedStore, ignored: Collection[str] = ()) -> dict[str, Any]:
    """Return the visible content of an index: documents, metadata, pages, texts, thumbnails and searches."""
    hidden = {source(name) for name in ignored}
    store.refresh()
    states = {
        path: (state.document, state.digest, state.pages, state.stored)
        for path, state in store.documents().items()
        if state.digest and path not in hidden
    }
    columns = store.columns()
    found: dict[str, Any] = {
        "documents": states,
        "names": {path: name for path, name in store.names().items() if path not in hidden},
        "columns": columns,
        "pages": {key: page for key, page in store.read(_pages).items() if key[0] not in hidden},
        "visual": _hits(store.search_visual(SearchRequest(vectors=QUERIES, top_k=200, exact=True)), hidden),
        "text": None,
        "filter": None,
    }
    if store.settings.text:
        hits = store.search_text(SearchRequest(["common"], top_k=500))[0]
        found["text"] = sorted((hit.source, hit.page) for hit in hits if hit.source not in hidden)
    if "year" in columns:
        found["filter"] = _hits(
            store.search_visual(SearchRequest(vectors=QUERIES[:1], top_k=200, where="year >= 2022")), hidden
        )
    return found


def _hits(rankings: Any, hidden: Collection[str]) -> list[list[tuple[str, int, float]]]:
    return [[(h.source, h.page, round(h.score, 3)) for h in hits if h.source not in hidden] for hits in rankings]


def _pages(snapshot: Snapshot) -> Mapping[tuple[str, int], tuple[Any, ...]]:
    return {
        (page.source, page.page): (
            page.version.digest,
            zlib.crc32(page.vectors.tobytes()),
            zlib.crc32(page.segment.provenance(page.row)),
            zlib.crc32(page.thumbnail),
            page.text,
            tuple(sorted(page.metadata.items())),
        )
        for page in snapshot.pages()
    }
