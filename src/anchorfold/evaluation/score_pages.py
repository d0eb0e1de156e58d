"""One pass over a corpus: each page is encoded once, compressed by every method and scored against all queries.

Scores are all that is left of a page: one file a method, a row of float32 a page with the scores of all queries, and a
file with the numbers of vectors. An interrupted pass goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from anchorfold.backbones.base import Retriever
from anchorfold.backbones.failures import running_model
from anchorfold.compressors import Compressor, wanted_signals
from anchorfold.evaluation.corpus import Corpus
from anchorfold.evaluation.page_batches import ready_batches
from anchorfold.evaluation.page_loader import named_pages
from anchorfold.evaluation.query_scores import QueryScores
from anchorfold.evaluation.run_folder import RunFolder
from anchorfold.evaluation.run_key import run_key

SAVE_EVERY = 32  # pages, at least


@dataclass(frozen=True)
class PageScores:
    """A finished pass: page names in order, and each method's scores and lengths in files of `folder`."""

    folder: Path
    pages: list[str]
    queries: int
    dim: int

    def scores(self, label: str) -> np.ndarray:
        """`(pages, queries)` float32, memory-mapped."""
        return np.memmap(self.folder / f"{label}.scores", np.float32, "r", shape=(len(self.pages), self.queries))

    def lengths(self, label: str) -> np.ndarray:
        """`(pages,)` vectors of each page."""
        return np.fromfile(self.folder / f"{label}.lengths", np.int32)

    def vectors(self, label: str) -> np.ndarray:
        """`(vectors, dim)` float16, memory-mapped; only of a pass that was told to keep them."""
        shape = (int(self.lengths(label).sum()), self.dim)
        return np.memmap(self.folder / f"{label}.vectors", np.float16, "r", shape=shape)


def score_pages(
    corpus: Corpus,
    model: Retriever,
    compressors: Mapping[str, Compressor],
    folder: Path,
    *,
    calibrated_on: str = "",
    batch: int | None = None,
    loaders: int = 0,
    keep_vectors: bool = False,
    progress: Callable[[int], None] | None = None,
) -> PageScores:
    """Encode, compress and score the corpus.

    Args:
        corpus: pages and queries.
        model: the backbone.
        compressors: by label, ready to compress.
        folder: where scores go; a pass that was cut short there is taken up.
        calibrated_on: which pages those that wanted some were calibrated on.
        batch: pages a forward pass; the model's own default if None.
        loaders: processes that render and decode pages.
        keep_vectors: store all vectors too, as float16.
        progress: told the number of pages done.
    """
    signals = wanted_signals(compressors.values(), model.settings)
    size = batch or model.default_batch
    # Scores of another batch size differ in their last digits: the rest of a run is done as its beginning was.
    key = run_key(corpus, model, compressors, calibrated_on) | {"batch": size}
    kinds = ("scores", "lengths", *(("vectors",) if keep_vectors else ()))
    with RunFolder(folder, key, (f"{label}.{kind}" for label in compressors for kind in kinds)) as run:
        encoded = model.encode_queries([query.text for query in corpus.queries])
        query_scores = QueryScores(encoded, model.device)
        pages = named_pages(corpus, model.page_pixels, len(run.pages), loaders)
        unsaved = 0
        for named, inputs in ready_batches(model, pages, size):
            states = model.prepared_states(inputs, signals)
            with torch.no_grad(), running_model():
                small = {
                    label: [compressor.compress(state, model.settings).vectors for state in states]
                    for label, compressor in compressors.items()
                }
                rows = query_scores([v for label in compressors for v in small[label]]).cpu()
            for label, scores in zip(compressors, rows.split(len(states)), strict=True):
                run.append(f"{label}.scores", scores.contiguous().numpy().tobytes())
                run.append(f"{label}.lengths", np.array([len(v) for v in small[label]], np.int32).tobytes())
                if keep_vectors:
                    run.append(f"{label}.vectors", torch.cat(small[label]).half().cpu().numpy().tobytes())
            run.pages.extend(name for name, _ in named)
            if progress is not None:
                progress(len(run.pages))
            unsaved += len(named)
            if unsaved >= SAVE_EVERY:
                run.save()
                unsaved = 0
        run.save()
        return PageScores(folder, run.pages, len(query_scores), encoded[0].shape[1])
