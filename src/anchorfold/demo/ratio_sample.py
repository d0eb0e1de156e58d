"""Comparison of compression ratios on a sample of the user's documents. Each page is encoded once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from PIL import Image
from torch import Tensor

from anchorfold.backbones.base import BackboneEncoder
from anchorfold.compressors import AnchorFold, FullIndex, required_signals
from anchorfold.demo.drawn_queries import draw_queries
from anchorfold.documents.listing import DocumentListing
from anchorfold.documents.render_events import DocumentFinished, PageFailed, PageRendered, RenderRequest
from anchorfold.documents.render_process import PAGE_SECONDS, RenderProcess
from anchorfold.documents.renderer import render_document
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.score_pages import QueryScores

MAX_PAGES = 24
RATIOS = (0.2, 0.1, 0.05)
MIN_OVERLAP = 0.9  # of the ratio that is recommended


@dataclass(frozen=True)
class RatioResult:
    """Size and agreement with the full index at one ratio.

    Attributes:
        ratio: share of the vectors that is kept; 1 is the full index.
        vectors: mean vectors per page.
        bytes: mean bytes per page in float16.
        overlap: mean share of the full index's top k that is in the top k; None without queries.
        first: share of the queries with the same first page; None without queries.
    """

    ratio: float
    vectors: float
    bytes: float
    overlap: float | None
    first: float | None


@dataclass(frozen=True)
class RatioComparison:
    """Results of the full index and of each ratio on a sample, and files that could not be read with the reasons."""

    pages: int
    queries: tuple[str, ...]
    top_k: int
    results: tuple[RatioResult, ...]
    skipped: tuple[tuple[str, str], ...]

    def recommended(self) -> RatioResult | None:
        """Return the smallest ratio whose overlap is at least `MIN_OVERLAP`; None without queries or such a ratio."""
        enough = [r for r in self.results[1:] if r.overlap is not None and r.overlap >= MIN_OVERLAP]
        return min(enough, key=lambda r: r.ratio) if enough else None


def compare_ratios(
    listing: DocumentListing, model: BackboneEncoder, ratios: Sequence[float] = RATIOS, max_pages: int = MAX_PAGES
) -> RatioComparison:
    """Encode a sample of the documents once, compress it at several ratios, and rank drawn queries with each.

    The sample is spread over at most `max_pages` documents, and contains the first pages of each.

    Raises:
        AnchorFoldError: no page of the sample can be read.
    """
    texts: list[str] = []
    skipped = list(listing.skipped)
    compressors = [FullIndex(), *map(AnchorFold, ratios)]
    settings = model.layer_settings

    def images() -> Iterator[Image.Image]:
        for event in _sample(listing, max_pages, model.page_pixels):
            if isinstance(event, PageRendered):
                texts.append(event.text)
                yield event.image
            elif isinstance(event, PageFailed):
                skipped.append((f"{event.document.name}, page {event.number + 1}", event.problem))
            elif isinstance(event, DocumentFinished) and event.problem:
                skipped.append((event.document.name, event.problem))

    states = model.page_states(images(), required_signals(compressors, settings))
    pages = [[c.compress(state, settings).vectors for c in compressors] for state in states]
    if not pages:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped[:5])
        raise AnchorFoldError(f"no page can be read: {reasons}. Give a folder with other documents.")
    queries = tuple(query.text for query in draw_queries(texts))
    top_k = max(1, min(10, len(pages) // 2))  # the top 10 of ten pages agree by definition
    rankings = _rankings(model, queries, pages, top_k)
    results = []
    for number, ratio in enumerate((1.0, *ratios)):
        vectors = sum(len(page[number]) for page in pages) / len(pages)
        overlap, first = _agreement(rankings[0], rankings[number]) if rankings else (None, None)
        results.append(RatioResult(ratio, vectors, vectors * model.dim * 2, overlap, first))
    return RatioComparison(len(pages), queries, top_k, tuple(results), tuple(skipped))


def _sample(
    listing: DocumentListing, max_pages: int, pixels: int
) -> Iterator[PageRendered | PageFailed | DocumentFinished]:
    count = min(max_pages, len(listing.documents))
    documents = [listing.documents[i * len(listing.documents) // count] for i in range(count)]
    process = RenderProcess(None, PAGE_SECONDS)
    try:
        for number, document in enumerate(documents):
            request = RenderRequest(document, limit=ceil(max_pages / (count - number)), with_text=True)
            for event in render_document(process, request, pixels):
                max_pages -= isinstance(event, PageRendered)
                yield event  # type: ignore[misc]
    finally:
        process.close()


def _rankings(
    model: BackboneEncoder, queries: Sequence[str], pages: Sequence[Sequence[Tensor]], top_k: int
) -> list[Tensor]:
    """Return the `(queries, top_k)` best pages of each compressor; an empty list without queries."""
    if not queries:
        return []
    score = QueryScores(model.encode_queries(queries))
    return [score(vectors).T.topk(top_k).indices for vectors in zip(*pages, strict=True)]


def _agreement(full: Tensor, compressed: Tensor) -> tuple[float, float]:
    """Return the mean overlap and the share of equal first pages of two rankings."""
    overlap = (full[:, :, None] == compressed[:, None, :]).any(2).float().mean()
    return overlap.item(), (full[:, 0] == compressed[:, 0]).float().mean().item()
