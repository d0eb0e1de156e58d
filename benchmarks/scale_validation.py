"""Validate synthetic pages: compare candidate search on equal numbers of real and synthetic pages."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np

from anchorfold.backbones.nano.query import NanoQueryEncoder
from anchorfold.evaluation.corpus import local_corpus
from anchorfold.retrieval import candidate_files
from anchorfold.retrieval.agreement import Agreement, agreement
from benchmarks.invented_index import append_pages, new_store
from benchmarks.word_pages import WordPages, run_vectors

COUNTS, QUERIES = (20, 50, 100, 200), 400


def validate(run: Path, corpus: Path) -> None:
    """Print the agreement on real and on synthetic pages and queries, by number of candidates."""
    vectors, lengths = run_vectors(run)
    texts = [query.text for query in local_corpus(corpus).queries][
        :: max(1, len(local_corpus(corpus).queries) // QUERIES)
    ]
    source = WordPages(run)
    invented, invented_lengths, words = source.draw(len(lengths))
    chosen = [source.query(words[i]) for i in source.rng.choice(len(words), QUERIES)]
    sides = {
        "real": (vectors, lengths, NanoQueryEncoder().encode_queries(texts)),
        "invented": (invented, invented_lengths, chosen),
    }
    # Build posting lists, as in a large index; otherwise so few pages would be scanned.
    with patch.multiple(candidate_files, FIRST_PAGES=1, LISTED_ROWS=1):
        columns = {name: agreements(*side) for name, side in sides.items()}
    print(f"{len(lengths):,} pages, 1 bit; first ten in common / same first page, %")
    print("| candidates | " + " | ".join(sides) + " |\n|---:|---|---|")
    for rows in zip(*columns.values(), strict=True):
        cells = [f"{100 * row.overlap:.1f} / {100 * row.first:.1f}" for row in rows]
        print(f"| {rows[0].candidates} | " + " | ".join(cells) + " |")


def agreements(vectors: np.ndarray, lengths: np.ndarray, queries: Sequence[np.ndarray]) -> list[Agreement]:
    """Return the agreements for a 1-bit index of these pages."""
    with tempfile.TemporaryDirectory() as folder:
        store = new_store(Path(folder) / "my.index", 128, 1)
        append_pages(store, vectors, np.asarray(lengths))
        with store.writing():
            candidate_files.update_lists(store)
        return store.pages.with_scanner(lambda _, scanner: agreement(scanner, queries, counts=COUNTS))
