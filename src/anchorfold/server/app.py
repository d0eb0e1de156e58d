"""HTTP server: the search page and a read-only JSON API, specified at /openapi.json."""

from __future__ import annotations

import os
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from fastapi.responses import Response as Plain
from pydantic import BaseModel, Field, StringConstraints

from anchorfold import __version__
from anchorfold.errors import AnchorFoldError, FilterError, UnavailableError
from anchorfold.filters.values import as_json
from anchorfold.server.comparison import ComparisonMethod, comparison_methods, default_methods, method_pattern
from anchorfold.server.guard import ConcurrencyLimit, Guard
from anchorfold.server.service import IndexService, PageReference, public_model
from anchorfold.storage.hits import Hit, Mode, SearchRequest

MAX_QUERY, MAX_WHERE = 500, 2000  # characters
MAX_TOP_K, MAX_SIZE, MAX_METHODS, MAX_REQUESTS = 100, 2000, 3, 64
MEDIA_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
# Formats that a browser may show: they cannot run scripts with access to this server.
INLINE_TYPES = {
    ".pdf": "application/pdf",
    **dict.fromkeys((".jpg", ".jpeg"), "image/jpeg"),
    ".png": "image/png",
    ".webp": "image/webp",
}
STATIC_FILES = ("index.html", "app.js", "heatmap.js", "filters.js", "text.js", "style.css", "icon.svg")

Method = Annotated[str, StringConstraints(pattern=method_pattern())]
QueryText = Annotated[str, Query(min_length=1, max_length=MAX_QUERY, description="Query.")]
RESPONSES: dict[int | str, dict[str, Any]] = {
    404: {"description": "The page does not exist."},
    409: {"description": "The original document was deleted or changed."},
    503: {"description": "Too many concurrent requests, or a part of the index is unavailable."},
}
UNAVAILABLE: dict[int | str, dict[str, Any]] = {503: RESPONSES[503]}
SEARCH_RESPONSES = UNAVAILABLE | {
    400: {"description": "The filter is invalid; the response contains the reason."},
    409: {"description": "The index does not support this mode."},
}


class SearchResult(BaseModel):
    """A page that matches a query."""

    id: str = Field(description="Id of the page, for /api/pages/{id}/...")
    document: str
    page: int = Field(description="Page number, from 1.")
    score: float = Field(description="Score that orders the results.")
    visual: float | None = Field(None, description="MaxSim score; null in text mode.")
    text: float | None = Field(None, description="BM25 score, 0 if no word matches; null in visual mode.")
    snippet: str = Field("", description="Passage of the page text.")
    matches: list[tuple[int, int]] = Field([], description="Matching words in the snippet as (start, end) characters.")
    metadata: dict[str, bool | int | float | str] = Field({}, description="Metadata by column; dates as 2024-01-31.")


class SearchResponse(BaseModel):
    """Results, best first."""

    query: str
    results: list[SearchResult]
    weak: bool | None = Field(None, description="Whether the best page matches few of the words; null if unknown.")
    searched: float = Field(1.0, description="Fraction of all pages that was searched; below 1 if shards timed out.")


class FacetValue(BaseModel):
    """A value of a column."""

    value: bool | int | float | str
    documents: int = Field(description="Number of documents with this value.")


class FacetColumn(BaseModel):
    """A column with few values."""

    column: str
    type: str
    values: list[FacetValue]
    missing: int = Field(description="Number of documents without a value.")


class FacetsResponse(BaseModel):
    """Columns for filters."""

    columns: dict[str, str] = Field(description="Types of all columns: text, integer, float, boolean or date.")
    facets: list[FacetColumn] = Field(description="Columns with few values.")


class MethodInfo(BaseModel):
    """A compression method for /compare."""

    method: str = Field(description="Method and ratio, such as anchorfold:0.05.")
    title: str
    color: str
    default: bool = Field(description="Whether the method is selected at first.")


class InfoResponse(BaseModel):
    """Content, size and settings of the index."""

    name: str
    documents: int
    pages: int
    vectors: int
    full_vectors: int
    bytes: int = Field(description="Size of the index, as `du -sb` counts it.")
    provenance_bytes: int
    thumbnail_bytes: int
    text_bytes: int
    vector_bytes: int
    full_vector_bytes: int = Field(description="Size of the uncompressed vectors as float16.")
    compression_ratio: float = Field(description="Uncompressed vectors / all files but thumbnails and text.")
    model: str
    method: str
    settings: dict[str, Any]
    modes: list[Mode] = Field(description="Supported search modes; the first is the default.")
    methods: list[MethodInfo] = Field(description="Methods offered for /compare, which accepts other ratios too.")


class PageInfo(BaseModel):
    """A page."""

    id: str
    document: str
    page: int
    pages: int
    vectors: int
    full_vectors: int
    previous: str | None = Field(None, description="Id of the previous page of the document.")
    next: str | None = Field(None, description="Id of the next page of the document.")
    original: bool = Field(True, description="Whether the original document is available.")


class WordEvidence(BaseModel):
    """A query word, its part of the score, and its value per patch as (patch, value)."""

    word: str
    score: float
    patches: list[tuple[int, float]]


class EvidenceResponse(BaseModel):
    """Contribution of each query word and patch to the score of a page."""

    score: float
    vectors: int
    full_vectors: int
    max_value: float = Field(description="Maximum of the heatmap scale.")
    words: list[WordEvidence]
    tiles: list[tuple[float, float, float, float, float, float]] = Field(
        description="Rows, columns, left, top, right and bottom of each tile; positions are fractions of the page."
    )
    original: bool = Field(True, description="Whether the original document is available.")


class WordBoxesResponse(BaseModel):
    """Positions of query words; empty without a text layer or without the original document."""

    boxes: list[list[float]] = Field(description="Left, top, right and bottom of each word, fractions of the page.")


class ComparisonResponse(EvidenceResponse):
    """Evidence under one compression method."""

    method: str
    title: str
    color: str
    retention: float | None = Field(description="Percentage of the uncompressed score; null if that is 0.")


def create_app(service: IndexService, token: str | None = None, limit: int = MAX_REQUESTS) -> Any:
    """Return the ASGI application."""
    app = FastAPI(
        title="AnchorFold", version=__version__, docs_url=None, redoc_url=None,
        description="Visual document search with compressed multi-vector embeddings. Read-only.",
    )  # fmt: skip
    index = service.index

    @app.exception_handler(AnchorFoldError)
    def handle_error(_: Request, error: AnchorFoldError) -> JSONResponse:
        status = 503 if isinstance(error, UnavailableError) else 400 if isinstance(error, FilterError) else 409
        return JSONResponse({"detail": service.public_message(error)}, status)

    @app.get("/healthz", tags=["health"])
    def health() -> dict[str, str]:
        """Return whether the server is running."""
        return {"status": "ok"}

    @app.get("/api/info", tags=["index"], responses=UNAVAILABLE)
    def info() -> InfoResponse:
        """Return content, size and settings of the index."""
        counts = index.info()
        fields = {name: value for name, value in vars(counts).items() if name in InfoResponse.model_fields}
        fields |= {"model": public_model(counts.model), "compression_ratio": round(counts.compression_ratio, 2)}
        methods = comparison_methods(index.settings.method, index.encoder.layer_settings)
        defaults = default_methods(methods)
        infos = [MethodInfo(method=str(m), title=m.title, color=m.color, default=m in defaults) for m in methods]
        return InfoResponse(name=index.store.name, methods=infos, modes=index.modes, **fields)

    @app.get("/api/search", tags=["index"], responses=SEARCH_RESPONSES)
    def search(
        q: QueryText,
        top_k: Annotated[int, Query(ge=1, le=MAX_TOP_K, description="Maximum number of results.")] = 12,
        document: Annotated[str | None, Query(max_length=MAX_QUERY, description="Document name or pattern.")] = None,
        where: Annotated[str | None, Query(max_length=MAX_WHERE, description="SQL filter on the columns of /api/facets, such as year >= 2024.")] = None,  # noqa: E501
        mode: Annotated[Mode | None, Query(description="One of the modes of /api/info.")] = None,
        per_document: Annotated[bool, Query(description="Return the best page of each document only.")] = False,
    ) -> SearchResponse:  # fmt: skip
        """Return the best pages for a query."""
        request = SearchRequest([q], top_k=top_k, documents=document, where=where, mode=mode, per_document=per_document)
        hits = service.search(request)
        return SearchResponse(
            query=q, results=[search_result(*hit) for hit in hits], weak=service.is_weak(q, [hit for *_, hit in hits]),
            searched=index.store.searched,
        )  # fmt: skip

    @app.get("/api/facets", tags=["index"], responses=UNAVAILABLE)
    def facets() -> FacetsResponse:
        """Return the columns for filters, and the values of columns with few values."""
        columns = [
            FacetColumn(
                column=facet.column, type=facet.type, missing=facet.missing,
                values=[FacetValue(value=as_json(value), documents=n) for value, n in facet.values.items()],
            )
            for facet in index.facets(public=True)
        ]  # fmt: skip
        return FacetsResponse(columns=index.columns(), facets=columns)

    def find_page(identity: str) -> PageReference:
        try:
            return service.page(identity)
        except KeyError:
            raise HTTPException(404, "The page does not exist.") from None

    @app.get("/api/pages/{page_id}", tags=["pages"], responses=RESPONSES)
    def page(page_id: str) -> PageInfo:
        """Return a page."""
        reference = find_page(page_id)
        stored = service.details(reference)
        return PageInfo(id=page_id, document=reference.document, page=reference.number, pages=stored.pages,
                        vectors=stored.kept, full_vectors=stored.full, original=stored.has_original,
                        previous=service.neighbor(reference, -1), next=service.neighbor(reference, 1))  # fmt: skip

    @app.get("/api/pages/{page_id}/similar", tags=["pages"], responses=RESPONSES)
    def similar(
        page_id: str, top_k: Annotated[int, Query(ge=1, le=MAX_TOP_K, description="Maximum number of results.")] = 12
    ) -> list[SearchResult]:
        """Return the pages that are most similar to a page."""
        return [search_result(*result) for result in service.similar(find_page(page_id), top_k)]

    @app.get("/api/pages/{page_id}/original", tags=["pages"], responses=RESPONSES, response_class=Plain)
    def original(page_id: str) -> Response:
        """Return the original document; formats other than PDF and images are downloaded."""
        path, name = service.original(find_page(page_id))
        media_type = INLINE_TYPES.get(os.path.splitext(name)[1].lower())
        return FileResponse(
            path, media_type=media_type or "application/octet-stream", filename=name,
            content_disposition_type="inline" if media_type else "attachment",
            headers={"cache-control": "private, no-cache"},
        )  # fmt: skip

    @app.get("/api/pages/{page_id}/thumbnail", tags=["pages"], responses=RESPONSES, response_class=Plain)
    def thumbnail(page_id: str) -> Response:
        """Return a thumbnail (WebP or JPEG)."""
        return image_response(service.thumbnail(find_page(page_id)))

    @app.get("/api/pages/{page_id}/image", tags=["pages"], responses=RESPONSES, response_class=Plain)
    def image(page_id: str, size: Annotated[int, Query(ge=64, le=MAX_SIZE)] = 1400) -> Response:
        """Return a JPEG with `size` pixels on its longer side."""
        return image_response(service.image(find_page(page_id), size))

    @app.get("/api/pages/{page_id}/evidence", tags=["pages"], responses=RESPONSES)
    def evidence(page_id: str, q: QueryText) -> EvidenceResponse:
        """Return the contribution of each query word and patch to the score."""
        return EvidenceResponse(**service.explain(find_page(page_id), q))

    @app.get("/api/pages/{page_id}/words", tags=["pages"], responses=RESPONSES)
    def words(page_id: str, q: QueryText) -> WordBoxesResponse:
        """Return the positions of query words in the text layer."""
        return WordBoxesResponse(boxes=[list(box) for box in service.words(find_page(page_id), q)])

    @app.get("/api/pages/{page_id}/compare", tags=["pages"], responses=RESPONSES)
    def compare(
        page_id: str,
        q: QueryText,
        method: Annotated[list[Method], Query(min_length=1, max_length=MAX_METHODS, description="Such as anchorfold:0.05.")],  # noqa: E501
    ) -> list[ComparisonResponse]:  # fmt: skip
        """Return the evidence under up to three methods; requires the original document."""
        methods = [ComparisonMethod.parse(text) for text in method]
        results = service.compare(find_page(page_id), q, [m.compressor() for m in methods])
        return [
            ComparisonResponse(method=str(m), title=m.title, color=m.color, **result)
            for m, result in zip(methods, results, strict=True)
        ]

    for name in STATIC_FILES:
        app.add_api_route(f"/{name.removeprefix('index.html')}", static_file(name), include_in_schema=False)
    return Guard(ConcurrencyLimit(app, limit), token)


def search_result(identity: str, page: PageReference, hit: Hit) -> SearchResult:
    """Return a hit under its public names."""
    visual, text = (None if score is None else round(score, 6) for score in (hit.visual, hit.text))
    return SearchResult(
        id=identity, document=page.document, page=page.number, score=round(hit.score, 6), visual=visual, text=text,
        snippet=hit.snippet, matches=list(hit.matches),
        metadata={name: as_json(value) for name, value in hit.metadata.items()},
    )  # fmt: skip


def image_response(data: bytes) -> Response:
    """Return an image that browsers may cache."""
    media_type = "image/webp" if data.startswith(b"RIFF") else "image/jpeg"
    return Response(data, media_type=media_type, headers={"cache-control": "private, max-age=300"})


def static_file(name: str) -> Any:
    """Return a route for a file of the search page."""
    body = (files("anchorfold.server") / "static" / name).read_bytes()
    media_type = MEDIA_TYPES[name.rpartition(".")[2]]
    return lambda: Response(body, media_type=media_type, headers={"cache-control": "no-cache"})
