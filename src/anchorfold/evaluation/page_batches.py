"""Pages ahead of the model: a thread makes the next batches ready while the model is at work."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from anchorfold.backbones.base import PageBatch, Retriever, batched
from anchorfold.backbones.failures import preparing_pages
from anchorfold.evaluation.page_loader import NamedPage

AHEAD = 2  # batches that are ready before the model asks
T = TypeVar("T")


def ready_batches(
    model: Retriever, pages: Iterator[NamedPage], size: int
) -> Iterator[tuple[list[NamedPage], PageBatch]]:
    """Batches of pages with the model's inputs for them on its device, prepared while the model is at work."""

    def prepared() -> Iterator[tuple[list[NamedPage], PageBatch]]:
        for batch in batched(pages, size):
            with preparing_pages():
                inputs = model.prepare_pages([image.convert("RGB") for _, image in batch])
            yield batch, inputs

    yield from ahead(prepared())


def ahead(items: Iterator[T], depth: int = AHEAD) -> Iterator[T]:
    """The same items, made by a thread that is up to `depth` of them ahead.

    >>> list(ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    end = object()
    pool = ThreadPoolExecutor(1, "pages ahead")
    try:
        coming = deque(pool.submit(next, items, end) for _ in range(depth))
        while (item := coming.popleft().result()) is not end:
            coming.append(pool.submit(next, items, end))
            yield item  # type: ignore[misc]
    finally:
        pool.shutdown(cancel_futures=True)
