"""Speed and size of the store on synthetic pages: commits, opening, no-op runs, text search, refresh of open readers.

    python -m benchmarks.store build big.index --pages 1000000 --vectors 10 --text --no-lists
    python -m benchmarks.store measure big.index
    python -m benchmarks.store commits                                    # committer, batches of 2,000 pages

Every step of `measure` prints the median of several runs in seconds. Compare them within one run.
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


def median(function: Callable[[], object], rounds: int = 5) -> float:
    """Return the median duration of a call in seconds."""
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def measure(folder: Path) -> None:
    """Print the times of an index that `build` wrote."""
    query = np.random.default_rng(1).standard_normal((8, DIM)).astype(np.float32)

    def first_search() -> Index:
        index = Index.open(folder)
        index.search_vectors([query])
        return index

    print(f"open and first search: {median(first_search, 3):.3f} s")
    index = first_search()
    print(f"search, exact: {median(lambda: index.search_vectors([query], exact=True)):.3f} s", flush=True)
    if not (folder / "vectors" / candidate_files.CENTROIDS).exists():
        vars(candidate_files)["FIRST_PAGES"] = sys.maxsize  # posting lists are not built
    with tempfile.TemporaryDirectory() as empty:
        print(f"add with nothing changed: {median(lambda: index.add(empty), 3):.3f} s")
    if index.settings.text:
        measure_text(index)
    store = EmbeddedStore.open(folder)
    pages = index.info().pages
    fresh = [replace(row, source="/documents/new.pdf", document="new.pdf", digest="new") for row in
             invented_rows(pages, PAGES_PER_DOCUMENT, index.settings.text)]  # fmt: skip
    seconds = []
    for _ in range(3):
        with store.writing():
            store.append(fresh)
        began = time.perf_counter()
        index.search_vectors([query])
        seconds.append(time.perf_counter() - began)
        with store.writing():
            store.remove(["/documents/new.pdf"])
        index.search_vectors([query])
    again = median(lambda: index.search_vectors([query]))
    print(f"search of an open reader after a commit: {statistics.median(seconds):.3f} s, without one {again:.3f} s")


def measure_text(index: Index) -> None:
    """Print the time and memory of text search, with one and with four threads."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    words = f"w3000 {COMMON} w15000"
    alone = median(lambda: index.search(words, mode="text"))
    threads = [threading.Thread(target=index.search, args=(words,), kwargs={"mode": "text"}) for _ in range(4)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = time.perf_counter() - began
    extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
    print(f"text search: {alone:.3f} s, four at once {together:.3f} s ({together / alone:.1f}x), {extra:.0f} MB more")


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
        measure(arguments.index)
    else:
        commits(arguments.batches)


if __name__ == "__main__":
    main()
