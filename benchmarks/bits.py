"""Accuracy and size by bits per component: NDCG@5, score and bytes per page of compressed pages.

    anchorfold eval CORPUS --methods anchorfold,focus-clustering --keep-vectors -o RUN     # nano
    python -m benchmarks.bits --run CORPUS RUN                       # from the vectors of that run
    python -m benchmarks.bits --invented                             # structured vectors of dimension 128, 320, 3,072

Bytes include codes and scales; `kept` is the retention of NDCG@5 relative to the same compression in float16, with a
paired 95 % interval.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from anchorfold.backbones.nano.query import NanoQueryEncoder
from anchorfold.evaluation.corpus import local_corpus
from anchorfold.evaluation.methods import FULL, choose_methods
from anchorfold.evaluation.metrics import interval, measure
from anchorfold.evaluation.run_folder import STATE
from anchorfold.evaluation.score_pages import PageScores, QueryScores
from anchorfold.quantization.codec import Coding

BITS = (16, 8, 4, 2, 1)
METHODS, RATIOS = "anchorfold,focus-clustering", (0.2, 0.1, 0.05)


@dataclass(frozen=True)
class Coded(PageScores):
    """Scores of dequantized vectors; `label/bits` names a method and its bits per component."""

    query_scores: QueryScores

    def lengths(self, label: str) -> np.ndarray:
        return super().lengths(label.partition("/")[0])

    def scores(self, label: str) -> np.ndarray:
        name, _, bits = label.partition("/")
        if not bits:
            return super().scores(name)
        coding = Coding(self.dim, int(bits))
        decoded = coding.decode(*coding.encode(np.asarray(self.vectors(name), np.float32)))
        pages = torch.from_numpy(np.asarray(decoded, np.float32)).split(self.lengths(name).tolist())
        return torch.cat([self.query_scores(pages[i : i + 64]) for i in range(0, len(pages), 64)]).numpy()


def corpus_table(path: Path, run: Path) -> None:
    """Print one row per method, ratio and bit width on a corpus, from the vectors of a run."""
    corpus = local_corpus(path)
    (folder,) = {file.parent for file in run.rglob(f"{corpus.name}/{FULL}.vectors")}
    pages = json.loads((folder / STATE).read_text())["pages"]
    queries = [torch.from_numpy(q) for q in NanoQueryEncoder().encode_queries([query.text for query in corpus.queries])]
    methods = choose_methods(METHODS, RATIOS)
    collected = PageScores(folder, pages, len(queries), queries[0].shape[1])
    coded = Coded(collected.folder, collected.pages, len(queries), collected.dim, QueryScores(queries))
    labels = [f"{m.label}/{bits}" for m in methods if m.label != FULL for bits in BITS]
    measured = measure(coded, corpus.queries, [FULL, *labels])
    full = measured[FULL]
    size, mean = full.bytes / len(collected.pages), np.mean(list(full.ndcg.values()))
    print(f"\r{corpus.name}: {len(collected.pages)} pages, {len(queries)} queries")
    print(f"full index as float16: NDCG@5 {mean:.1f}, {size:,.0f} bytes per page")
    print("| method | bits | NDCG@5 | % of the same fold | score retention, % | bytes per page | compression ratio |")
    print("|---|---|---|---|---|---|---|")
    for label in labels:
        name, _, bits = label.partition("/")
        row, reference = measured[label], measured[f"{name}/16"]
        shared = sorted(row.ndcg)
        mean = np.mean([reference.ndcg[q] for q in shared])
        low, high = interval([row.ndcg[q] - reference.ndcg[q] for q in shared])
        retention = 100 * np.mean([row.ndcg[q] for q in shared]) / mean
        size = row.vectors * Coding(collected.dim, int(bits)).vector_bytes / len(collected.pages)
        left = f"{retention:.1f} ({100 + 100 * low / mean:.1f} to {100 + 100 * high / mean:.1f})"
        print(f"| {name} | {bits} | {np.mean(list(row.ndcg.values())):.1f} | {left} | "
              f"{np.mean(list(row.retention.values())):.1f} | {size:,.0f} | "
              f"{full.bytes / len(collected.pages) / size:.0f} |")  # fmt: skip


def invented_table(dims: tuple[int, ...], pages: int = 2000, vectors: int = 50, queries: int = 200) -> None:
    """Print the ranking agreement with float32 on synthetic vectors: skewed spectrum, shared words, noise."""
    print("| dimension | bits | same first page, % | first ten in common, % | bytes per vector |")
    print("|---|---|---|---|---|")
    for dim in dims:
        rng = np.random.default_rng(dim)
        spectrum = (1 / np.sqrt(np.arange(1, dim + 1))).astype(np.float32)
        words = unit(rng.normal(size=(4000, dim)).astype(np.float32) * spectrum + 0.3 * spectrum)
        chosen = rng.choice(len(words), (pages, vectors))
        noise = rng.normal(size=(pages * vectors, dim)).astype(np.float32) * (0.5 / dim**0.5)
        stored = unit(words[chosen.reshape(-1)] + noise)
        queried = [words[rng.choice(chosen[rng.integers(pages)], 6)] for _ in range(queries)]
        exact = best_pages(stored, queried, pages, vectors)
        for bits in (8, 4, 2, 1):
            coding = Coding(dim, bits)
            ranked = best_pages(coding.decode(*coding.encode(stored)), queried, pages, vectors)
            first = np.mean([a[0] == b[0] for a, b in zip(exact, ranked, strict=True)])
            ten = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(exact, ranked, strict=True)])
            print(f"| {dim:,} | {bits} | {100 * first:.1f} | {100 * ten:.1f} | {coding.vector_bytes} |")


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def best_pages(stored: np.ndarray, queries: list[np.ndarray], pages: int, vectors: int) -> list[list[int]]:
    flat = torch.from_numpy(np.ascontiguousarray(stored, np.float32))
    return [
        (torch.from_numpy(q) @ flat.T).view(len(q), pages, vectors).amax(2).sum(0).topk(10).indices.tolist()
        for q in queries
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs=2, type=Path, action="append", default=[], metavar=("CORPUS", "RUN"))
    parser.add_argument("--invented", action="store_true")
    arguments = parser.parse_args()
    for corpus, run in arguments.run:
        corpus_table(corpus, run)
    if arguments.invented:
        invented_table((128, 320, 3072))


if __name__ == "__main__":
    main()
