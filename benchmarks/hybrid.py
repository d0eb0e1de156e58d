"""What searching by looks, by words and by both is worth, and what the text costs.

    anchorfold eval CORPUS --methods anchorfold@0.2 --to RUN
    python -m benchmarks.hybrid CORPUS --scores RUN/nano-*/methods/CORPUS
    python -m benchmarks.hybrid --cost FILE.pdf

The first takes the visual scores of an evaluation, also of one that is not finished: then those pages alone, and the
queries that they answer whole. Text is stored and matched as an index does it, and fused as a search does it. The
second indexes a document with and without text in turn, with nano, and compares processor time of all processes.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from anchorfold.documents.ocr import PictureReader
from anchorfold.documents.pages import RENDER_PIXELS, open_pages
from anchorfold.evaluation.corpus import Corpus, Query, local_corpus
from anchorfold.evaluation.measure import interval, ndcg_by_query, paired_difference
from anchorfold.index.embedded import EmbeddedStore
from anchorfold.index.fusion import POOL, fused
from anchorfold.index.store.records import PageRow, PageText
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.words import cleaned

MODES = ("visual", "text", "hybrid")
SOURCE = "/corpus"  # the document that all pages of a corpus are stored under


def visual_scores(corpus: Corpus, run: Path, method: str) -> tuple[list[str], np.ndarray]:
    """Names of the pages that a run has scored, and `(pages, queries)` their scores."""
    pages: list[str] = json.loads((run / "state.json").read_text())["pages"]
    scores = np.fromfile(run / f"{method}.scores", np.float32, len(pages) * len(corpus.queries))
    return pages, scores.reshape(len(pages), len(corpus.queries)).astype(np.float64)


def stored_texts(folder: Path, corpus: Corpus, pages: list[str], ocr: bool) -> EmbeddedStore:
    """The texts of some pages in an index without vectors, the first as page 1 of one document."""
    wanted, texts = {name: i + 1 for i, name in enumerate(pages)}, dict[int, PageText]()
    reader = PictureReader() if ocr else None
    for path in corpus.unrendered.files:  # type: ignore[attr-defined]
        with open_pages(path, RENDER_PIXELS) as document:
            for number in range(len(document)):
                if (page := wanted.get(f"{path.name}#{number}")) is not None:
                    text = cleaned(document.text(number))
                    if reader is not None and not text:
                        text = cleaned(reader.read(document.image(number)))
                    texts[page] = PageText(text)
    store = EmbeddedStore.create(folder, IndexSettings("nano", "", 1, "none", {}, text=True))
    rows = [
        PageRow(SOURCE, "corpus", page, len(pages), "", 0, 0, True, None, text=texts[page]) for page in wanted.values()
    ]
    with store.writing():
        store.append(rows)
    return store


def rankings(looks: np.ndarray, words: np.ndarray, no_text: np.ndarray) -> dict[str, np.ndarray]:
    """`(pages,)` scores of one query in every mode; minus infinity for pages that are not answered."""
    pool = np.union1d(np.argsort(-looks)[:POOL], [p for p in np.argsort(-words)[:POOL] if words[p] > 0]).astype(int)
    both = np.full(len(looks), -np.inf)
    both[pool] = fused(looks[pool], words[pool], no_text[pool])
    return {"visual": looks, "text": np.where(words > 0, words, -np.inf), "hybrid": both}


def measured(corpus: Corpus, run: Path, method: str, ocr: bool) -> tuple[dict[str, dict[str, float]], list[Query], str]:
    """NDCG@5 in percent by mode and query id, the queries, and a sentence on the text."""
    pages, looks = visual_scores(corpus, run, method)
    done = set(pages)
    chosen = [(i, query) for i, query in enumerate(corpus.queries) if done >= query.relevant.keys()]
    answers: dict[str, dict[str, dict[str, float]]] = {mode: {} for mode in MODES}
    with tempfile.TemporaryDirectory() as folder:
        store = stored_texts(Path(folder), corpus, pages, ocr)
        keys = [(SOURCE, page) for page in range(1, len(pages) + 1)]
        no_text = np.array([score is None for score in store.text_scores("", keys).values()])
        for number, query in chosen:
            words = np.array([score or 0.0 for score in store.text_scores(query.text, keys).values()])
            for mode, scores in rankings(looks[:, number], words, no_text).items():
                best = [p for p in np.lexsort((np.arange(len(scores)), -scores))[:10] if scores[p] > -np.inf]
                # Ranks instead of scores: trec_eval orders equal scores by name.
                answers[mode][query.id] = {pages[p]: -float(rank) for rank, p in enumerate(best)} or {"none": 0.0}
        said = (
            f"{len(pages)} of {len(corpus.names())} pages, {len(chosen)} queries; {no_text.sum()} pages without text; "
            f"text and its index take {store.info().text_bytes / len(pages):,.0f} bytes per page"
        )
    queries = [query for _, query in chosen]
    return {mode: ndcg_by_query(answers[mode], queries) for mode in MODES}, queries, said


def show(values: dict[str, dict[str, float]], queries: list[Query]) -> None:
    """A table by kind of query, with 95 % intervals; differences are paired."""
    print("| queries | n | " + " | ".join(MODES) + " | hybrid - visual | hybrid - text |")
    print("|---|---|" + "---|" * 5)
    kinds = sorted({query.kind for query in queries})
    for kind in [*(kinds if len(kinds) > 1 else []), "all"]:
        ids = [query.id for query in queries if kind in (query.kind, "all")]
        by_mode = {mode: {i: values[mode].get(i, 0.0) for i in ids} for mode in MODES}
        cells = []
        for mode in MODES:
            low, high = interval(list(by_mode[mode].values()))
            cells.append(f"{np.mean(list(by_mode[mode].values())):.1f} ({low:.1f} to {high:.1f})")
        for other in ("visual", "text"):
            d = paired_difference(by_mode["hybrid"], by_mode[other])
            cells.append(f"{d['difference']:+.1f} ({d['low']:+.1f} to {d['high']:+.1f})")
        print(f"| {kind} | {len(ids)} | " + " | ".join(cells) + " |")


def cost(path: Path, rounds: int) -> None:
    """Processor and wall seconds of indexing a document with and without text, in turn."""
    from anchorfold import AnchorFold, Index, load

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
    """Of this process and of those that it started and that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, nargs="?", help="a folder with pdfs/ and queries.jsonl")
    parser.add_argument("--scores", type=Path, help="the folder of an evaluation's scores")
    parser.add_argument("--method", default="anchorfold@0.2")
    parser.add_argument("--ocr", action="store_true", help="read pages without a text layer")
    parser.add_argument("--cost", type=Path, help="a document to index with and without text")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.cost is not None:
        cost(options.cost, options.rounds)
    if options.corpus is not None:
        corpus = local_corpus(options.corpus)
        values, queries, said = measured(corpus, options.scores, options.method, options.ocr)
        print(f"{corpus.name}, {options.method}: {said}\n")
        show(values, queries)


if __name__ == "__main__":
    main()
