"""One corpus, one backbone, some methods: encode, measure, save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from anchorfold.backbones.base import Retriever
from anchorfold.evaluation.collect import collect
from anchorfold.evaluation.corpus import Corpus
from anchorfold.evaluation.measure import measure
from anchorfold.evaluation.methods import FULL, Method
from anchorfold.evaluation.results import RESULTS_FILE, Row, save, summarise


def results_folder(what: str, model: Retriever) -> Path:
    """Where results go if nobody says: results/WHAT-MODEL."""
    return Path("results") / f"{what}-{model.name.replace('/', '-').strip('.-')}"


def evaluate(
    corpus: Corpus, model: Retriever, methods: Sequence[Method], folder: Path, tell: Callable[[str], None]
) -> list[Row]:
    """Rows in the order of the methods, saved in `folder` with all that reports want; `tell` hears how far it is."""
    collected = collect(corpus, model, methods, folder, lambda n: tell(f"{corpus.name}: {n:,} pages encoded"))
    tell(f"{corpus.name}: encoding queries")
    encoded = model.encode_queries([q.text for q in corpus.queries])
    labels = [m.label for m in methods]
    found = measure(collected, corpus.queries, encoded, labels, lambda label: tell(f"{corpus.name}: scored {label}"))
    rows = summarise(found, methods, corpus, model.family)
    about = {
        "corpus": corpus.name, "benchmark": corpus.benchmark, "model": model.name,
        "family": model.family, "fingerprint": model.fingerprint,
        "pages": len(collected.pages), "queries_asked": len(corpus.queries), "full_vectors": found[FULL].vectors,
    }  # fmt: skip
    save(folder / RESULTS_FILE, about, rows, found)
    return rows
