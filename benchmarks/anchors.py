"""Explain the score retention of compressors: anchor positions, redundancy and coverage of their vectors.

    python -m benchmarks.anchors CORPUS --pages 60

On relevant pages of a corpus (`pdfs/`, `queries.jsonl`), per method and ratio, means over pages in percent:

- score kept: score retention for the queries of the page;
- blank: vectors whose anchor is a blank patch;
- repeats: vectors with a cosine above 0.9 to another vector of the page;
- coverage: mean cosine of printed patches to the nearest vector of the compressed page;
- lost patches: printed patches with a cosine below 0.6 to every vector.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import anchorfold
from anchorfold.compressors import required_signals
from anchorfold.core.scoring import maxsim, retention
from anchorfold.evaluation.corpus import local_corpus
from anchorfold.evaluation.methods import choose_methods
from anchorfold.page import PatchGrid

INK = 40  # minimum range of gray levels in a printed patch
REPEAT, LOST = 0.9, 0.6


def printed_patches(image: Image.Image, grid: PatchGrid) -> np.ndarray:
    """Return whether each patch of the page is printed, `(N,)` booleans."""
    grey = np.asarray(image.convert("L"), np.int16)
    scale = np.array([grey.shape[1], grey.shape[0]] * 2)
    inked = []
    for left, top, right, bottom in (grid.boxes().numpy() * scale).round().astype(int):
        patch = grey[top : max(bottom, top + 1), left : max(right, left + 1)]
        inked.append(patch.size > 0 and int(patch.max()) - int(patch.min()) > INK)
    return np.array(inked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--pages", type=int, default=60)
    parser.add_argument(
        "--methods", default="anchorfold,spread-fold,focus-clustering,semantic-clustering,random-anchors"
    )
    arguments = parser.parse_args()
    model, corpus = anchorfold.load(arguments.model), local_corpus(arguments.corpus)
    methods = choose_methods(arguments.methods, [0.2, 0.1, 0.05])[1:]
    compressors = {m.label: m.make() for m in methods}
    signals = required_signals(compressors.values(), model.layer_settings)
    questions: dict[str, list[str]] = {}
    for query in corpus.queries:
        for page in query.relevant:
            questions.setdefault(page, []).append(query.text)
    answered = [page for page in corpus.names() if page in questions]
    chosen = set(answered[:: max(1, len(answered) // arguments.pages)][: arguments.pages])
    measures: dict[str, list[tuple[float, ...]]] = {label: [] for label in compressors}
    for identity, image in corpus.pages(model.page_pixels, only=chosen):
        (state,) = model.page_states([image], signals)
        assert state.grid is not None
        printed = torch.from_numpy(printed_patches(image, state.grid))
        queries = model.encode_queries(questions[identity])
        full = maxsim(queries, [state.embeddings])
        for label, compressor in compressors.items():
            small = model.compress_page(state, compressor)
            among = small.vectors @ small.vectors.T
            among.fill_diagonal_(-1)
            near = (state.embeddings[printed] @ small.vectors.T).amax(1)
            measures[label].append((
                float(retention(full, maxsim(queries, [small.vectors])).nanmean()) / 100,
                float((~printed[small.anchors]).float().mean()), float((among.amax(1) > REPEAT).float().mean()),
                float(near.mean()), float((near < LOST).float().mean()),
            ))  # fmt: skip
    print(f"{len(chosen)} pages of {corpus.name} with {model.name}")
    print(f"{'':26}{'score kept':>12}{'blank':>8}{'repeats':>9}{'coverage':>10}{'lost patches':>14}")
    for label, rows in measures.items():
        score, blank, repeats, coverage, lost = 100 * np.array(rows).mean(0)
        print(f"{label:26}{score:12.1f}{blank:8.1f}{repeats:9.1f}{coverage:10.1f}{lost:14.1f}")


if __name__ == "__main__":
    main()
