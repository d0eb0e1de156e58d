"""Pages rendered and decoded by processes of their own. They import this file, and so nothing of models."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.corpus import Corpus, PageSource

T = TypeVar("T")

NamedPage = tuple[str, Image.Image]


def named_pages(corpus: Corpus, pixels: int, skip: int = 0, loaders: int = 0) -> Iterator[NamedPage]:
    """Names and images of a corpus in its order, without the first `skip`.

    Args:
        corpus: the corpus.
        pixels: of a page, about.
        skip: pages to leave out.
        loaders: processes that render and decode; 0 does it here.
    """
    if not loaders:
        yield from corpus.pages(pixels, skip=skip)
        return
    # Spawned, not forked: this process may hold a GPU and threads, which do not survive a fork.
    loader = DataLoader(
        Share(corpus.unrendered, pixels, skip), batch_size=None, num_workers=loaders, prefetch_factor=4,
        collate_fn=_unchanged, multiprocessing_context="spawn",
    )  # fmt: skip
    for name, page in loader:
        if isinstance(page, str):
            raise AnchorFoldError(page)
        yield name, page


class Share(IterableDataset[tuple[str, Image.Image | str]]):
    """The pages of one loader among several: every n-th. A `DataLoader` asks its processes in turn: order is kept."""

    def __init__(self, source: PageSource, pixels: int, skip: int) -> None:
        self.source, self.pixels, self.skip = source, pixels, skip

    def __iter__(self) -> Iterator[tuple[str, Image.Image | str]]:
        """Names and images; what cannot be read comes as a sentence in place of an image, and is the last."""
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        try:
            for position, (name, render) in enumerate(islice(self.source(self.pixels), self.skip, None)):
                if position % count == number:
                    yield name, render()
        except AnchorFoldError as error:
            yield "", str(error)  # an exception would come out with the process's traceback for its message


def _unchanged(item: T) -> T:
    return item
