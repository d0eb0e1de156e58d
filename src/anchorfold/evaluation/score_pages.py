"""One pass over a corpus: each page is encoded once, compressed by every method and scored against all queries.

Only scores are stored: per method one file with a float32 row per page (one score per query) and one file with the
number of vectors per page. An interrupted pass resumes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfold.backbones.base import BackboneEncoder, PageBatch, batched
from anchorfold.backbones.failures import preparing_pages, running_model
from anchorfold.compressors import Compressor, required_signals
from anchorfold.evaluation.corpus import Corpus
from anchorfold.evaluation.page_loader import NamedPage, named_pages
from anchorfold.evaluation.run_folder import RunFolder, run_key

# Size of one matrix product: small for CPU caches, large for GPUs.
PRODUCT_BYTES = {"cpu": 32 * 2**20}
LARGE_PRODUCT_BYTES = 512 * 2**20


class QueryScores:
    """MaxSim of fixed queries against pages.

    Identical query vectors (some models encode a word independently of its context) are multiplied once.

    Args:
        queries: one `(q_i, d)` tensor per query; a query without vectors scores 0.
        device: device of the pages.

    >>> scores = QueryScores([torch.eye(2), torch.ones(1, 2)])
    >>> scores([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5], [0.0, 1.0]])])
    tensor([[1.0000, 1.0000],
            [1.5000, 1.0000]])
    """

    def __init__(self, queries: Sequence[Tensor], device: torch.device | str = "cpu") -> None:
        lengths = torch.tensor([len(q) for q in queries])
        distinct, number = torch.cat(list(queries)).float().unique(dim=0, return_inverse=True)
        self.distinct = distinct.to(device)
        self.number = number.to(device)
        self.starts = (lengths.cumsum(0) - lengths).to(device)

    def __len__(self) -> int:
        return len(self.starts)

    @torch.no_grad()
    def __call__(self, pages: Sequence[Tensor]) -> Tensor:
        """Return `(pages, queries)` scores of pages `(m_i, d)`; minus infinity for a page without vectors.

        Page vectors are rounded to float16, as in an index.
        """
        lengths = [len(p) for p in pages]
        vectors = torch.cat(list(pages)).half().float()
        best = vectors.new_full((len(self.distinct), len(pages)), -torch.inf)
        budget = PRODUCT_BYTES.get(vectors.device.type, LARGE_PRODUCT_BYTES)
        rows = max(1, budget // (4 * max(len(vectors), 1)))
        for start in range(0, len(self.distinct), rows):
            product = self.distinct[start : start + rows] @ vectors.T
            for page, part in enumerate(product.split(lengths, 1)):
                if part.shape[1]:
                    best[start : start + rows, page] = part.amax(1)
        return F.embedding_bag(self.number, best, self.starts, mode="sum").T


AHEAD = 2  # batches prepared ahead of the model
T = TypeVar("T")


def prefetch_batches(
    model: BackboneEncoder, pages: Iterator[NamedPage], size: int
) -> Iterator[tuple[list[NamedPage], PageBatch]]:
    """Yield batches of pages with the model's inputs, prepared in a thread while the model runs."""

    def prepared() -> Iterator[tuple[list[NamedPage], PageBatch]]:
        for batch in batched(pages, size):
            with preparing_pages():
                inputs = model.prepare_pages([image.convert("RGB") for _, image in batch])
            yield batch, inputs

    yield from prefetch(prepared())


def prefetch(items: Iterator[T], depth: int = AHEAD) -> Iterator[T]:
    """Yield the same items, computed up to `depth` ahead in a thread.

    >>> list(prefetch(iter("abc")))
    ['a', 'b', 'c']
    """
    end = object()
    pool = ThreadPoolExecutor(1, "prefetch")
    try:
        coming = deque(pool.submit(next, items, end) for _ in range(depth))
        while (item := coming.popleft().result()) is not end:
            coming.append(pool.submit(next, items, end))
            yield item  # type: ignore[misc]
    finally:
        pool.shutdown(cancel_futures=True)


SAVE_EVERY = 32  # pages, at least


@dataclass(frozen=True)
class PageScores:
    """A finished pass: page names in order; scores and lengths per method are files in `folder`."""

    folder: Path
    pages: list[str]
    queries: int
    dim: int

    def scores(self, label: str) -> np.ndarray:
        """Return `(pages, queries)` float32 scores, memory-mapped."""
        return np.memmap(self.folder / f"{label}.scores", np.float32, "r", shape=(len(self.pages), self.queries))

    def lengths(self, label: str) -> np.ndarray:
        """Return the `(pages,)` numbers of vectors."""
        return np.fromfile(self.folder / f"{label}.lengths", np.int32)

    def vectors(self, label: str) -> np.ndarray:
        """Return `(vectors, dim)` float16 vectors, memory-mapped; requires `keep_vectors`."""
        shape = (int(self.lengths(label).sum()), self.dim)
        return np.memmap(self.folder / f"{label}.vectors", np.float16, "r", shape=shape)


def score_pages(
    corpus: Corpus,
    model: BackboneEncoder,
    compressors: Mapping[str, Compressor],
    folder: Path,
    *,
    calibrated_on: str = "",
    batch: int | None = None,
    loaders: int = 0,
    keep_vectors: bool = False,
    progress: Callable[[int], None] | None = None,
) -> PageScores:
    """Encode, compress and score a corpus.

    Args:
        corpus: pages and queries.
        model: the backbone.
        compressors: calibrated compressors by label.
        folder: output folder; an interrupted pass is resumed.
        calibrated_on: source of the calibration pages.
        batch: batch size in pages; the model's default if None.
        loaders: number of processes that render and decode pages.
        keep_vectors: also store all vectors as float16.
        progress: called with the number of finished pages.
    """
    signals = required_signals(compressors.values(), model.layer_settings)
    size = batch or model.default_batch_size
    # Other batch sizes change the last digits of scores, so a resumed run keeps its batch size.
    key = run_key(corpus, model, compressors, calibrated_on) | {"batch": size}
    kinds = ("scores", "lengths", *(("vectors",) if keep_vectors else ()))
    with RunFolder(folder, key, (f"{label}.{kind}" for label in compressors for kind in kinds)) as run:
        encoded = model.encode_queries([query.text for query in corpus.queries])
        query_scores = QueryScores(encoded, model.device)
        pages = named_pages(corpus, model.page_pixels, len(run.pages), loaders)
        unsaved = 0
        for named, inputs in prefetch_batches(model, pages, size):
            states = model.prepared_states(inputs, signals)
            with torch.no_grad(), running_model():
                small = {
                    label: [compressor.compress(state, model.layer_settings).vectors for state in states]
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
