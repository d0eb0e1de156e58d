"""Speed and size of the store on synthetic pages: commits, opening, no-op runs, text search, refresh of open readers.

    python -m benchmarks.store build big.index --pages 1000000 --vectors 10 --text --no-lists
    python -m benchmarks.store measure big.index
    python -m benchmarks.store commits                                    # committer, batches of 2,000 pages

Every step of `measure` prints the medians of wall and processor time in seconds. Compare them within one run.
`benchmarks/store_02.py` has the same measurements of version 0.2.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from anchorfold import Index
from anchorfold.backbones.nano.query import NanoQueryEncoder
from anchorfold.page import EncodedPage
from anchorfold.retrieval import candidate_files
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage.file_errors import folder_bytes
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.records import PageRow, PageText
from benchmarks.invented_index import append_pages

DIM, VECTORS, PAGES_PER_DOCUMENT = 128, 50, 10
WORDS = 20_000  # size of the vocabulary
WORDS_PER_PAGE = 30
COMMON = "revenue"  # on a tenth of the pages


def invented_store(folder: Path, bits: int, text: bool) -> EmbeddedStore:
    """Create an empty index without provenance and thumbnails."""
    settings = IndexSettings(
        "nano", NanoQueryEncoder().fingerprint, DIM, "anchorfold", {"ratio": 0.05}, bits=bits, provenance=False,
        thumbnails=False, text=text,
    )  # fmt: skip
    folder.mkdir(parents=True)
    return EmbeddedStore.create(folder, settings)


def invented_rows(first: int, count: int, text: bool, vectors_per_page: int = VECTORS, seed: int = 0) -> list[PageRow]:
    """Return pages `first` to `first + count` with random unit vectors, ten pages per document."""
    rng = np.random.default_rng(seed + first)
    vectors = rng.standard_normal((count, vectors_per_page, DIM), np.float32)
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    texts = invented_texts(rng, first, count)
    groups = torch.zeros(0, dtype=torch.long)
    rows = []
    for i in range(count):
        page = EncodedPage(torch.from_numpy(vectors[i]), groups, groups, groups.float(), None)
        document, number = divmod(first + i, PAGES_PER_DOCUMENT)
        rows.append(
            PageRow(
                f"/documents/{document}.pdf",
                f"{document}.pdf",
                number + 1,
                PAGES_PER_DOCUMENT,
                f"digest{document}",
                1,
                1,
                True,
                page,
                text=PageText(texts[i]) if text else None,
            )
        )
    return rows


def invented_texts(rng: np.random.Generator, first: int, count: int) -> list[str]:
    """Return page texts with a skewed word distribution; every tenth page contains a frequent word."""
    words = (WORDS * rng.random((count, WORDS_PER_PAGE)) ** 3).astype(int).tolist()
    common = [f" {COMMON}" if (first + i) % 10 == 0 else "" for i in range(count)]
    return [" ".join(map("w{}".format, page)) + word for page, word in zip(words, common, strict=True)]


def build(folder: Path, pages: int, vectors: int, bits: int, text: bool, batch: int, lists: bool) -> None:
    """Write an index of synthetic pages."""
    store = invented_store(folder, bits, text)
    began = time.perf_counter()
    for first in range(0, pages, batch):
        count = min(batch, pages - first)
        rng = np.random.default_rng(first)
        found = rng.standard_normal((count * vectors, DIM), np.float32)
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        texts = invented_texts(rng, first, count) if text else ()
        append_pages(store, found, np.full(count, vectors), 200, texts, PAGES_PER_DOCUMENT)
        speed = (first + count) / (time.perf_counter() - began)
        print(f"{first + count:,} pages, {speed:,.0f} per second", file=sys.stderr)
    with store.writing():
        if lists:
            store.finish()
        else:
            store.tidy()
    print(f"built in {time.perf_counter() - began:.0f} s, {folder_bytes(folder) / pages:.0f} bytes per page")


def commits(batches: int) -> None:
    """Print the speed of the committer in synced batches of 2,000 pages, and bytes per page besides vectors."""
    with tempfile.TemporaryDirectory(dir=".") as name:
        store = invented_store(Path(name) / "new.index", 16, text=False)
        prepared = [invented_rows(2_000 * i, 2_000, text=False) for i in range(batches)]
        with store.writing():
            began = time.perf_counter()
            for rows in prepared:
                store.append(rows)
            seconds = time.perf_counter() - began
            store.finish()
        pages = 2_000 * batches
        rest = folder_bytes(store.folder) / pages - VECTORS * DIM * 2
        print(f"commits: {pages / seconds:,.0f} pages per second; {rest:.1f} bytes per page besides the vectors")


class Timing:
    """Wall and processor times of a call; its text contains the medians in seconds."""

    def __init__(self, function: Callable[[], object] | None = None, rounds: int = 5) -> None:
        self.wall: list[float] = []
        self.processor: list[float] = []
        if function is not None:
            for _ in range(rounds):
                self.run(function)

    def run(self, function: Callable[[], object]) -> None:
        """Call the function once more."""
        wall, processor = time.perf_counter(), time.process_time()
        function()
        self.wall.append(time.perf_counter() - wall)
        self.processor.append(time.process_time() - processor)

    def __str__(self) -> str:
        return f"{statistics.median(self.wall):.3f} s (processor {statistics.median(self.processor):.3f} s)"


def measure(folder: Path, server: bool) -> None:
    """Print the times of an index that `build` wrote."""
    query = np.random.default_rng(1).standard_normal((8, DIM)).astype(np.float32)
    opened: list[Index] = []

    def first_search() -> None:
        opened.append(Index.open(folder))
        opened[-1].search_vectors([query])

    print(f"open and first search: {Timing(first_search, 1)}")
    (index,) = opened
    print(f"search, exact: {Timing(lambda: index.search_vectors([query], exact=True))}", flush=True)
    if not (folder / "vectors" / candidate_files.CENTROIDS).exists():
        vars(candidate_files)["FIRST_PAGES"] = sys.maxsize  # posting lists are not built
    with tempfile.TemporaryDirectory() as empty:
        print(f"add with nothing changed: {Timing(lambda: index.add(empty), 3)}", flush=True)
    if index.settings.text:
        measure_text(index)
    store = EmbeddedStore.open(folder)
    measure_refresh("search of an open reader", store, lambda: index.search_vectors([query]))
    if server:
        from fastapi.testclient import TestClient

        from anchorfold.server.app import create_app
        from anchorfold.server.service import IndexService

        client = TestClient(create_app(IndexService(Index.open(folder))), base_url="http://localhost")

        def request(**parameters: str) -> None:
            client.get("/api/search", params={"q": "w15000", "mode": "text", **parameters}).raise_for_status()

        measure_refresh("request to the server", store, request)
        measure_refresh("request to the server with a filter", store, lambda: request(where="pages = 10"))


def measure_refresh(name: str, store: EmbeddedStore, search: Callable[[], object]) -> None:
    """Print the time of a search after a commit of another object, and without one."""
    fresh = [replace(row, source="/documents/new.pdf", document="new.pdf", digest="new") for row in
             invented_rows(0, PAGES_PER_DOCUMENT, store.settings.text)]  # fmt: skip
    after, without = Timing(), Timing()
    search()
    for _ in range(3):
        with store.writing():
            store.append(fresh)
        after.run(search)
        without.run(search)
        with store.writing():
            store.remove(["/documents/new.pdf"])
        search()
    print(f"{name} after a commit: {after}, without one {without}", flush=True)


def measure_text(index: Index) -> None:
    """Print the time and memory of text search, with one and with four threads."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    words = f"w3000 {COMMON} w15000"
    alone = Timing(lambda: index.search(words, mode="text"))

    def four() -> None:
        threads = [threading.Thread(target=index.search, args=(words,), kwargs={"mode": "text"}) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    together = Timing(four, 1)
    extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
    ratio = together.wall[0] / statistics.median(alone.wall)
    print(f"text search: {alone}; four at once {together} ({ratio:.1f}x), {extra:.0f} MB more", flush=True)


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("build", "measure", "commits"))
    parser.add_argument("index", type=Path, nargs="?", default=Path("big.index"))
    parser.add_argument("--pages", type=int, default=100_000)
    parser.add_argument("--vectors", type=int, default=VECTORS, help="vectors per page")
    parser.add_argument("--bits", type=int, default=1)
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--no-lists", action="store_true", help="without posting lists: searches scan every page")
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--server", action="store_true", help="also measure requests to the server")
    parser.add_argument("--batches", type=int, default=10)
    arguments = parser.parse_args()
    if arguments.command == "build":
        build(
            arguments.index,
            arguments.pages,
            arguments.vectors,
            arguments.bits,
            arguments.text,
            arguments.batch,
            not arguments.no_lists,
        )
    elif arguments.command == "measure":
        measure(arguments.index, arguments.server)
    else:
        commits(arguments.batches)


if __name__ == "__main__":
    main()
