"""One corpus, one backbone, some methods: score, measure, save."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from anchorfold.backbones.base import Retriever
from anchorfold.compressors import Compressor
from anchorfold.evaluation.corpus import Corpus
from anchorfold.evaluation.measure import measure
from anchorfold.evaluation.methods import FULL, Method
from anchorfold.evaluation.plan import Plan, progress_line
from anchorfold.evaluation.results import RESULTS_FILE, Row, save, summarise
from anchorfold.evaluation.score_pages import score_pages

CALIBRATED_FILE = "calibrated-methods.json"


def model_folder(base: Path, model: Retriever) -> Path:
    """A model's own folder below `base`: two models, also of one name, never meet."""
    return base / f"{slug(Path(model.name).name)}-{model.fingerprint[:8]}"


def slug(text: str) -> str:
    """A text as part of a file's name.

    >>> slug("ESG Reports (Human)")
    'ESG-Reports-Human'
    """
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")


def evaluate(
    corpus: Corpus,
    model: Retriever,
    methods: Sequence[Method],
    compressors: Mapping[str, Compressor],
    folder: Path,
    tell: Callable[[str], None],
    *,
    calibrated_on: str = "",
    experiment: str = "methods",
    batch: int | None = None,
    loaders: int = 0,
    keep_vectors: bool = False,
) -> list[Row]:
    """Rows in the order of the methods, saved in `folder` with all that reports want.

    Args:
        corpus: pages and queries.
        model: the backbone.
        methods: what to compare; the full index must be among them.
        compressors: those of the methods, by label, ready to compress.
        folder: of this run alone.
        tell: is given lines on how far it is.
        calibrated_on: which pages the compressors were calibrated on.
        experiment: what is compared: methods, or the variants, windows or depths of one.
        batch: as in `score_pages`.
        loaders: as in `score_pages`.
        keep_vectors: as in `score_pages`.
    """
    plan = Plan.of(corpus, len(methods))
    line = progress_line(plan)
    scored = score_pages(
        corpus, model, compressors, folder, calibrated_on=calibrated_on, batch=batch, loaders=loaders,
        keep_vectors=keep_vectors, progress=lambda done: tell(line(done)),
    )  # fmt: skip
    tell(f"{corpus.name}: measuring")
    measured = measure(scored, corpus.queries, [m.label for m in methods])
    rows = summarise(measured, methods, corpus, model.family)
    header = {
        "experiment": experiment, "corpus": corpus.name, "benchmark": corpus.benchmark, "model": model.name,
        "family": model.family, "fingerprint": model.fingerprint, "universal": model.settings.universal,
        "layers": model.settings.layers, "window": model.settings.window, "steps": model.settings.steps,
        "layer_settings": str(model.settings),
        "calibrated_on": calibrated_on, "pages": len(scored.pages), "queries_asked": len(corpus.queries),
        "full_vectors": measured[FULL].vectors, "dim": scored.dim,
    }  # fmt: skip
    save(folder / RESULTS_FILE, header, rows, measured)
    return rows
