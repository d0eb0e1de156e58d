"""Measure the retrieval of a perfect reader: the words of the text layer as vectors, scored by MaxSim.

    python -m training.nano.perfect_reader CORPUS --documents developers-reference

CORPUS contains `pdfs/` with a text layer and `queries.jsonl`, or is an evaluation set of posters or slides. A page is
represented by the vectors of its distinct words, each with a term-frequency weight: equal for all, or BM25's saturation
(k1 = 1.2) from a minimum weight to 1, without and with BM25's length normalisation (b = 0.75). This is an upper bound
for a weighting before it is implemented.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pypdfium2 as pdfium
import torch
from torch import Tensor

import anchorfold
from anchorfold.backbones.nano.retriever import Nano
from anchorfold.backbones.nano.text import split_words
from anchorfold.evaluation.corpus import PAGES_FOLDER, local_corpus
from anchorfold.evaluation.metrics import ndcg_by_query
from training.nano.evaluation_set import PRINTED_FILE

SATURATION, LENGTH = 1.2, 0.75
MINIMUM_WEIGHTS = (0.8, 0.6, 0.3, 0.0)


def count_words(folder: Path, ids: Sequence[str]) -> list[Counter[str]]:
    """Count the words of each page, from the text layer or from the labels of a synthetic sheet."""
    if (folder / PRINTED_FILE).exists():
        printed = json.loads((folder / PRINTED_FILE).read_text())
        return [Counter(printed[identity.rsplit("#", 1)[0]]) for identity in ids]
    counts = []
    document, opened = None, ""
    for identity in ids:
        name, number = identity.rsplit("#", 1)
        if document is None or name != opened:
            document, opened = pdfium.PdfDocument(folder / PAGES_FOLDER / name), name
        counts.append(Counter(split_words(document[int(number)].get_textpage().get_text_range())))
    return counts


def compute_term_weights(counts: Counter[str], minimum: float, length: float | None) -> Tensor:
    """Compute the weights `(n,)` of the words of a page.

    Args:
        counts: Occurrences of each word.
        minimum: Lower limit of the weights.
        length: Page length relative to the mean; None disables length normalisation.
    """
    occurrences = torch.tensor(list(counts.values()), dtype=torch.float32)
    size = 1.0 if length is None else 1 - LENGTH + LENGTH * length
    return minimum + (1 - minimum) * occurrences / (occurrences + SATURATION * size)


@torch.no_grad()
def measure_ndcg(model: Nano, folder: Path, documents: Sequence[str] | None = None) -> dict[str, float]:
    """Compute NDCG@5 in percent per weighting, without cross-lingual queries."""
    corpus = local_corpus(folder, documents)
    queries = [q for q in corpus.queries if q.kind != "crosslingual"]
    ids = corpus.names()
    pages = count_words(folder, ids)
    mean = float(np.mean([sum(p.values()) for p in pages]))
    lengths = [sum(p.values()) / mean for p in pages]
    encoded = model.encode_queries([q.text for q in queries])
    query_vectors, owner = torch.cat(encoded), torch.repeat_interleave(torch.tensor([len(q) for q in encoded]))
    matches = [
        query_vectors @ model.model.embed_words(*model.vocabulary.lookup(list(p))).float().T
        if p
        else torch.zeros(len(query_vectors), 1)
        for p in pages
    ]
    weightings: dict[str, list[Tensor]] = {"equal weights": [torch.ones(m.shape[1]) for m in matches]}
    for minimum in MINIMUM_WEIGHTS:
        weightings[f"by count, minimum {minimum}"] = [compute_term_weights(p, minimum, None) for p in pages]
        weightings[f"by count and length, minimum {minimum}"] = [
            compute_term_weights(p, minimum, n) for p, n in zip(pages, lengths, strict=True)
        ]
    results = {}
    for weighting, weights in weightings.items():
        pairs = zip(matches, weights, strict=True)
        best = torch.stack([(m * scale).amax(1) if len(scale) else m[:, 0] for m, scale in pairs], 1)
        scores = torch.zeros(len(queries), len(ids)).index_add_(0, owner, best)
        rankings = {q.id: {ids[i]: float(row[i]) for i in row.topk(min(10, len(ids))).indices.tolist()}
                    for q, row in zip(queries, scores, strict=True)}  # fmt: skip
        results[weighting] = float(np.mean(list(ndcg_by_query(rankings, queries).values())))
    return results


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--documents", help="comma-separated file stems (default: all)")
    arguments = parser.parse_args()
    model = anchorfold.load("nano")
    assert isinstance(model, Nano)
    documents = arguments.documents.split(",") if arguments.documents else None
    for weighting, value in measure_ndcg(model, arguments.corpus, documents).items():
        print(f"{weighting:34} {value:5.1f}", flush=True)


if __name__ == "__main__":
    main()
