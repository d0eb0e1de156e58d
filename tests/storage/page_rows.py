"""Rows of pages for stores, and what a store contains."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from anchorfold.page import EncodedPage, PatchGrid
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage.records import PageRow
from anchorfold.storage.snapshot import Snapshot, StoredPage
from anchorfold.storage.sqlite_store import SqliteStore
from tests.number_reader import DIM, index_settings

SOURCE = "/a/b.pdf"  # of rows that name no other


def page_row(page: int = 1, vectors: int = 5, grid: bool = True, **changes: Any) -> PageRow:
    """A page with random vectors, the same for the same number."""
    generator = torch.Generator().manual_seed(page)
    groups = torch.randint(-1, vectors, (24,), generator=generator)
    anchors = torch.arange(vectors) * 2
    groups[anchors] = torch.arange(vectors)
    shares = torch.rand(24, generator=generator) * (groups >= 0)
    sums = torch.zeros(vectors).index_add_(0, groups.clamp(min=0), shares)
    encoded = EncodedPage(
        torch.nn.functional.normalize(torch.randn(vectors, DIM, generator=generator), dim=1),
        anchors,
        groups,
        shares / sums[groups.clamp(min=0)],
        PatchGrid.tiled(2, 1, 3, 4, thumbnail=False) if grid else None,
    )
    source = changes.get("source", SOURCE)
    defaults: dict[str, Any] = {
        "source": source, "document": Path(source).name, "page": page, "pages": 9, "digest": "d", "size": 3,
        "modified": 4, "live": True, "encoded": encoded,
    }  # fmt: skip
    return PageRow(**{**defaults, **changes})


def make_store(folder: Path, *commits: list[PageRow], **settings: Any) -> EmbeddedStore:
    """A new index with one commit per list of rows."""
    store = EmbeddedStore.create(folder, index_settings(**settings))
    with store.writing():
        for rows in commits:
            store.append(rows)
    return store


class PageContents(NamedTuple):
    """What is stored of a page, comparable."""

    source: str
    page: int
    digest: str
    size: int
    vectors: bytes
    thumbnail: bytes
    problem: str
    provenance: str
    text: str | None


def _contents(page: StoredPage) -> PageContents:
    thumbnail, problem = page.snapshot.payload(page.id)
    provenance = str({name: str(value) for name, value in page.provenance.items()})
    return PageContents(
        page.source, page.page, page.version.digest, page.version.size, page.vectors.tobytes(), thumbnail,
        problem or "", provenance, page.text,
    )  # fmt: skip


def contents(store: SqliteStore) -> list[PageContents]:
    """All live pages that have vectors, with everything that is stored of them."""
    return store.read(lambda snapshot: sorted(map(_contents, snapshot.pages()), key=lambda page: page[:3]))


def live_pages(store: SqliteStore) -> list[tuple[str, int, str]]:
    """Path, number and digest of all live pages that have vectors."""

    def read(snapshot: Snapshot) -> list[tuple[str, int, str]]:
        return sorted((page.source, page.page, page.version.digest) for page in snapshot.pages())

    return store.read(read)


def all_pages(store: EmbeddedStore) -> list[tuple[str, int, str]]:
    """Path, number and digest of all pages, live or staged."""
    stored = store.stored_pages(list(store.documents()))
    return sorted((s, page, digest) for s, some in stored.items() for digest, pages in some.items() for page in pages)


def vector_files(store: SqliteStore) -> list[str]:
    """Names of the vector files on disk."""
    return sorted(path.name for path in (store.folder / "vectors").glob("*.seg"))


def flip_bit(path: Path, bit: int) -> None:
    """Invert one bit of a file."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
