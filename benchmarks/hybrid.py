"""NDCG@5 of visual, text and hybrid search on a corpus and its scanned twin, and the cost of storing text.

    anchorfold index CORPUS/pdfs -o plain.index
    python -m training.nano.scanned_corpus CORPUS TWIN
    anchorfold index TWIN/pdfs -o scans.index --ocr
    python -m benchmarks.hybrid CORPUS --index plain.index --scans scans.index
    python -m benchmarks.hybrid --cost FILE.pdf

The corpus is measured as it is, without the text of half of its pages (drawn with `--seed`), and with all or half of
its pages replaced by scans; scans without text and with the text that OCR reads. Pages are ranked by the code of
`Index.search`.
`--cost` indexes a document with and without text in turn and compares the processor time of all processes.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from anchorfold import Index
from anchorfold.evaluation.corpus import Query, local_corpus, page_name
from anchorfold.evaluation.metrics import interval, ndcg_by_query, paired_difference
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.retrieval.hybrid import hybrid_hits
from anchorfold.retrieval.kernels import Tokens
from anchorfold.retrieval.visual_search import page_hits
from anchorfold.storage.hits import Hit, PageKey, SearchRequest
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.records import PageRow, PageText

MODES = ("visual", "text", "hybrid")
SOURCE = "/corpus"  # the document that all pages of a corpus are stored under
TOP = 10
NOTHING = PageText("")


@dataclass(frozen=True)
class Pages:
    """Pages of a corpus: `visual (queries, pages)` MaxSim scores, texts, and which are scans."""

    visual: np.ndarray
    texts: list[PageText]
    scanned: np.ndarray

    def mixed_with(self, other: Pages, chosen: np.ndarray) -> Pages:
        """Return these pages with the chosen ones, `(pages,)` booleans, replaced by those of `other`."""
        texts = [b if c else a for a, b, c in zip(self.texts, other.texts, chosen, strict=True)]
        return Pages(np.where(chosen, other.visual, self.visual), texts, np.where(chosen, other.scanned, self.scanned))

    def without_ocr(self) -> Pages:
        """Return the same pages with text layers only."""
        return replace(self, texts=[NOTHING if text.ocr else text for text in self.texts])


def read_pages(paths: Sequence[Path], names: Sequence[str], queries: Sequence[Query], scanned: bool) -> Pages:
    """Return the pages of a corpus from indexes of its files."""
    columns: dict[str, np.ndarray] = {}
    texts: dict[str, PageText] = {}
    for path in paths:
        index = Index.open(path)
        assert isinstance(index.store, EmbeddedStore)
        scanner = index.store.pages.newest_scanner()
        identities = scanner.live.identities(np.arange(len(scanner.live))).tolist()
        hits = index.store.read(partial(page_hits, identities=identities))
        tokens = Tokens.of(index.encode_queries([query.text for query in queries]), scanner.live.coding)
        visual, _ = scanner.scores(tokens, np.arange(len(scanner.live)))
        for column, hit in zip(visual.T, hits.values(), strict=True):
            name = page_name(os.path.basename(hit.source), hit.page - 1)
            columns[name], texts[name] = column, index.store.page_text(hit.source, hit.page) or NOTHING
    return Pages(
        np.stack([columns[name] for name in names], 1), [texts[name] for name in names], np.full(len(names), scanned)
    )


class ScoredStore(EmbeddedStore):
    """Store of page texts and precomputed visual scores; a query vector contains the query number."""

    visual: np.ndarray

    @classmethod
    def of(cls, folder: Path, pages: Pages) -> ScoredStore:
        """Store the texts as pages 1 to n of one document."""
        store = cls.create(folder, IndexSettings("nano", "", 1, "none", {}, text=True))
        store.visual = pages.visual
        count = len(pages.texts)
        with store.writing():
            store.append(
                [
                    PageRow(SOURCE, "corpus", number, count, "", 0, 0, True, None, text=text)
                    for number, text in enumerate(pages.texts, 1)
                ]
            )
        return store

    def search_visual(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the top pages by precomputed score."""
        return [
            [
                Hit("corpus", int(page) + 1, score := float(self.visual[query][page]), SOURCE, score)
                for page in np.argsort(-self.visual[query], kind="stable")[: request.top_k]
            ]
            for query in request.vectors
        ]

    def page_scores(self, query: Any, pages: Sequence[PageKey]) -> dict[PageKey, float]:
        """Return the precomputed scores of pages."""
        return {(source, page): float(self.visual[query][page - 1]) for source, page in pages}


def answers(store: ScoredStore, query: Query, number: int) -> dict[str, list[Hit]]:
    """Return the top pages for a query by mode."""
    request = SearchRequest([query.text], [number], TOP)
    return {
        "visual": store.search_visual(request)[0],
        "text": store.search_text(request)[0],
        "hybrid": hybrid_hits(store, request)[0],
    }


def measure(pages: Pages, names: Sequence[str], queries: Sequence[Query]) -> dict[str, dict[str, float]]:
    """Return NDCG@5 in percent by mode and query id."""
    rankings: dict[str, dict[str, dict[str, float]]] = {mode: {} for mode in MODES}
    with tempfile.TemporaryDirectory() as folder:
        store = ScoredStore.of(Path(folder) / "texts.index", pages)
        for number, query in enumerate(queries):
            for mode, hits in answers(store, query, number).items():
                # Ranks instead of scores: trec_eval orders equal scores by name.
                ranks = {names[hit.page - 1]: -float(rank) for rank, hit in enumerate(hits)}
                rankings[mode][query.id] = ranks or {"none": 0.0}
    return {mode: ndcg_by_query(rankings[mode], queries) for mode in MODES}


def groups(pages: Pages, names: Sequence[str], queries: Sequence[Query]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and query ids of each row: all queries, by kind, and by whether the answer is a scan."""
    yield "all", [query.id for query in queries]
    kinds = sorted({query.kind for query in queries})
    for kind in kinds if len(kinds) > 1 else []:
        yield kind, [query.id for query in queries if query.kind == kind]
    scans = {name for name, scanned in zip(names, pages.scanned, strict=True) if scanned}
    if 0 < len(scans) < len(names):
        yield "answered by pages without text layer", [query.id for query in queries if query.relevant.keys() <= scans]
        yield "answered by other pages", [query.id for query in queries if not query.relevant.keys() & scans]


def show(title: str, pages: Pages, names: Sequence[str], queries: Sequence[Query]) -> None:
    """Print the rows of one setting; intervals are 95 % and differences paired."""
    values = measure(pages, names, queries)
    for group, ids in groups(pages, names, queries):
        by_mode = {mode: {i: values[mode].get(i, 0.0) for i in ids} for mode in MODES}
        cells = []
        for mode in MODES:
            low, high = interval(list(by_mode[mode].values()))
            cells.append(f"{np.mean(list(by_mode[mode].values())):.1f} ({low:.1f} to {high:.1f})")
        for other in ("visual", "text"):
            d = paired_difference(by_mode["hybrid"], by_mode[other])
            cells.append(f"{d['difference']:+.1f} ({d['low']:+.1f} to {d['high']:+.1f})")
        print(f"| {title} | {group} | {len(ids)} | " + " | ".join(cells) + " |", flush=True)


def settings(plain: Pages, scans: Pages | None, seed: int) -> Iterator[tuple[str, Pages]]:
    """Yield the settings to measure."""
    half = np.random.default_rng(seed).random(len(plain.texts)) < 0.5
    no_text = Pages(plain.visual, [NOTHING] * len(plain.texts), np.full(len(plain.texts), True))
    yield "text layer", plain
    yield "half without text", plain.mixed_with(no_text, half)
    if scans is not None:
        yield "scans", scans.without_ocr()
        yield "half scans", plain.mixed_with(scans.without_ocr(), half)
    if scans is not None and any(text.ocr for text in scans.texts):
        yield "scans, OCR", scans
        yield "half scans, OCR", plain.mixed_with(scans, half)


def cost(path: Path, rounds: int) -> None:
    """Print CPU and wall time of indexing a document with and without text, interleaved."""
    from anchorfold import AnchorFold, load

    model = load("nano")
    model.encode_queries(["warm up"])
    seconds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2 * rounds):
            text = number % 2 == (number // 2) % 2
            index = Index.create(f"{folder}/{number}.index", model, AnchorFold(ratio=0.2), text=text)
            before, began = processor_seconds(), time.monotonic()
            index.add(path)
            seconds[text].append((processor_seconds() - before, time.monotonic() - began))
            print(f"{'with' if text else 'without'} text: {seconds[text][-1][0]:.1f} s of processors", flush=True)
    for name, column in (("processor", 0), ("wall", 1)):
        with_text, without = (median(row[column] for row in seconds[text]) for text in (True, False))
        print(f"{name} time with text over without: {with_text / without:.3f} (medians of {rounds} each)")


def processor_seconds() -> float:
    """Return the CPU time of this process and its finished children, in seconds."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, nargs="?", help="a folder with pdfs/ and queries.jsonl")
    parser.add_argument("--index", type=Path, nargs="+", help="index of the corpus, or several of parts of it")
    parser.add_argument("--scans", type=Path, nargs="+", help="index of its scanned twin, or several of parts of it")
    parser.add_argument("--documents", help="stems with commas between; all without it")
    parser.add_argument("--seed", type=int, default=0, help="of the pages that are replaced by scans")
    parser.add_argument("--cost", type=Path, help="a document to index with and without text")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.cost is not None:
        cost(options.cost, options.rounds)
    if options.corpus is not None:
        corpus = local_corpus(options.corpus, options.documents and options.documents.split(","))
        names = corpus.names()
        plain = read_pages(options.index, names, corpus.queries, scanned=False)
        scans = options.scans and read_pages(options.scans, names, corpus.queries, scanned=True)
        print(f"{corpus.name}: {len(names)} pages, {len(corpus.queries)} queries\n")
        print("| pages | queries | n | " + " | ".join(MODES) + " | hybrid - visual | hybrid - text |")
        print("|---|---|---|" + "---|" * 5)
        for title, pages in settings(plain, scans, options.seed):
            show(title, pages, names, corpus.queries)


if __name__ == "__main__":
    main()
