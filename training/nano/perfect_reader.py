"""What nano would find if it read every word: the text layer's words as vectors, scored as nano scores.

    python -m training.nano.perfect_reader CORPUS --documents developers-reference

CORPUS holds `pdfs/` with a text layer and `queries.jsonl`, or is a measuring set of posters or slides. A page is the
vectors of its distinct words, each scaled by how loudly it should speak: alike, or by how often the word is printed
(BM25's saturation, k = 1.2), from a floor to 1, without and with BM25's length of the page (b = 0.75). A target is
tried here before anything is trained towards it.
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
from anchorfold.evaluation.measure import ndcg_by_query
from training.nano.measuring_set import PRINTED_FILE

SATURATION, LENGTH = 1.2, 0.75
FLOORS = (0.8, 0.6, 0.3, 0.0)


def page_words(folder: Path, ids: Sequence[str]) -> list[Counter[str]]:
    """How often each word stands on each page, from the text layer, or from what was printed on an invented sheet."""
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


def loudness(counts: Counter[str], floor: float, length: float | None) -> Tensor:
    """`(n,)` of a page's words, `floor` to 1; `length` is that of the page over the mean, None to leave it out."""
    times = torch.tensor(list(counts.values()), dtype=torch.float32)
    size = 1.0 if length is None else 1 - LENGTH + LENGTH * length
    return floor + (1 - floor) * times / (times + SATURATION * size)


@torch.no_grad()
def ndcg(model: Nano, folder: Path, documents: Sequence[str] | None = None) -> dict[str, float]:
    """NDCG@5 in percent of each way to speak; queries in other languages than the page are left out."""
    corpus = local_corpus(folder, documents)
    queries = [q for q in corpus.queries if q.kind != "crosslingual"]
    ids = corpus.names()
    pages = page_words(folder, ids)
    mean = float(np.mean([sum(p.values()) for p in pages]))
    lengths = [sum(p.values()) / mean for p in pages]
    encoded = model.encode_queries([q.text for q in queries])
    query_vectors, owner = torch.cat(encoded), torch.repeat_interleave(torch.tensor([len(q) for q in encoded]))
    matches = [
        query_vectors @ model.model.embed_words(*model.words.lookup(list(p))).float().T
        if p
        else torch.zeros(len(query_vectors), 1)
        for p in pages
    ]
    weightings: dict[str, list[Tensor]] = {"all words alike": [torch.ones(m.shape[1]) for m in matches]}
    for floor in FLOORS:
        weightings[f"by count, floor {floor}"] = [loudness(p, floor, None) for p in pages]
        weightings[f"by count and length, floor {floor}"] = [
            loudness(p, floor, n) for p, n in zip(pages, lengths, strict=True)
        ]
    results = {}
    for weighting, loud in weightings.items():
        best = torch.stack([(m * scale).amax(1) if len(scale) else m[:, 0] for m, scale in zip(matches, loud, strict=True)], 1)  # fmt: skip  # noqa: E501
        scores = torch.zeros(len(queries), len(ids)).index_add_(0, owner, best)
        rankings = {q.id: {ids[i]: float(row[i]) for i in row.topk(min(10, len(ids))).indices.tolist()}
                    for q, row in zip(queries, scores, strict=True)}  # fmt: skip
        results[weighting] = float(np.mean(list(ndcg_by_query(rankings, queries).values())))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--documents", help="stems with commas between; all without it")
    arguments = parser.parse_args()
    model = anchorfold.load("nano")
    assert isinstance(model, Nano)
    documents = arguments.documents.split(",") if arguments.documents else None
    for weighting, value in ndcg(model, arguments.corpus, documents).items():
        print(f"{weighting:34} {value:5.1f}", flush=True)


if __name__ == "__main__":
    main()
