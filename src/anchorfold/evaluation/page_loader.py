"""Page images rendered and decoded by worker processes, which import this module and therefore no models."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.corpus import Corpus, CorpusPages

T = TypeVar("T")

NamedPage = tuple[str, Image.Image]


def named_pages(corpus: Corpus, pixels: int, skip: int = 0, loaders: int = 0) -> Iterator[NamedPage]:
    """Yield names and images of a corpus in order.

    Args:
        corpus: the corpus.
        pixels: approximate pixels per page.
        skip: number of pages to skip.
        loaders: number of worker processes; 0 renders in this process.
    """
    if not loaders:
        yield from corpus.pages(pixels, skip=skip)
        return
    # Spawned, because a CUDA context and threads do not survive a fork.
    loader = DataLoader(
        PageDataset(corpus.lazy_pages, pixels, skip), batch_size=None, num_workers=loaders, prefetch_factor=4,
        collate_fn=_unchanged, multiprocessing_context="spawn",
    )  # fmt: skip
    for name, page in loader:
        if isinstance(page, str):
            raise AnchorFoldError(page)
        yield name, page


class PageDataset(IterableDataset[tuple[str, Image.Image | str]]):
    """Every n-th page of a corpus for one of n workers; a `DataLoader` reads them in turn, so order is kept."""

    def __init__(self, source: CorpusPages, pixels: int, skip: int) -> None:
        self.source, self.pixels, self.skip = source, pixels, skip

    def __iter__(self) -> Iterator[tuple[str, Image.Image | str]]:
        """Yield names and images; an error is yielded as its message instead of an image, and ends the iteration."""
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        try:
            for position, (name, render) in enumerate(islice(self.source(self.pixels), self.skip, None)):
                if position % count == number:
                    yield name, render()
        except AnchorFoldError as error:
            yield "", str(error)  # an exception would carry the worker's traceback as its message


def _unchanged(item: T) -> T:
    return item
