"""Read-only Model Context Protocol server for agents."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

from anchorfold import __version__
from anchorfold.documents.files import matches
from anchorfold.errors import AnchorFoldError
from anchorfold.explanation.heatmap import draw_explanation, explain
from anchorfold.explanation.text_lookup import page_text as find_page_text
from anchorfold.filters.values import as_json
from anchorfold.server.service import IndexService, PageReference
from anchorfold.storage.hits import Hit, Mode, SearchRequest

MAX_TOP_K, MAX_SIZE, MAX_DOCUMENTS = 50, 2000, 1000
MAX_QUERY, MAX_WHERE = 1000, 2000  # characters
GLOB = re.compile(r"[*?[]")
INSTRUCTIONS = (
    "Visual search over pages of documents: PDFs, slides, scans. Call search first. Then view the results with "
    "page_image, which shows tables, charts and scans, or read them with page_text if they have a text layer. Use the "
    "document names and page numbers that search returns, and cite them in answers."
)
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
QueryText = Annotated[str, Field(min_length=1, max_length=MAX_QUERY, description="A question or keywords.")]
DocumentName = Annotated[
    str, Field(max_length=MAX_QUERY, description="Name as returned by search or list_documents, or a unique end of it.")
]
PageNumber = Annotated[int, Field(ge=0, description="Page number as returned by search.")]


class PageHit(BaseModel):
    """A page that matches a query; scores of different queries are not comparable."""

    document: str
    page: int
    score: float = Field(description="Score that results are ordered by: visual, text or fused, by mode.")
    visual: float | None = Field(None, description="Visual score (MaxSim), which explain_match explains.")
    text: float | None = Field(None, description="Text score (BM25).")
    uri: str = Field(description="URI of the page image; append /text for its text.")
    snippet: str = Field(
        "", description="Passage of the page text with query words, or its beginning; empty for scans."
    )
    metadata: dict[str, bool | int | float | str] = Field(description="Metadata of the document by column.")


class ColumnValues(BaseModel):
    """A column, its type, and its values if there are few."""

    column: str
    type: str
    values: list[bool | int | float | str] | None = None


class IndexedDocument(BaseModel):
    """A document and its number of indexed pages."""

    document: str
    pages: int


def create_server(service: IndexService) -> MCPServer[Any]:
    """Return a server with the tools and resources of an index."""
    server: MCPServer[Any] = MCPServer(
        "anchorfold", title="AnchorFold", instructions=INSTRUCTIONS, version=__version__, log_level="ERROR"
    )

    @contextmanager
    def public_errors(kind: type[ToolError | ResourceError] = ToolError) -> Iterator[None]:
        """Convert errors to protocol errors without absolute paths."""
        try:
            yield
        except AnchorFoldError as error:
            raise kind(service.public_message(error)) from error

    def find(document: str, page: int) -> PageReference:
        with public_errors():
            return service.find(document, page)

    def text_of(page: PageReference) -> str:
        text = find_page_text(service.index, page.source, page.number)
        if text is None:
            raise AnchorFoldError(f"no text is available: {page.document} was deleted or changed since it was indexed.")
        return text

    def tool(title: str) -> Decorator:
        register: Decorator = server.tool(title=title, annotations=READ_ONLY)
        return register

    def page_hit(page: PageReference, hit: Hit, query: str = "") -> PageHit:
        return PageHit(
            document=page.document, page=page.number, score=round(hit.score, 6),
            visual=None if hit.visual is None else round(hit.visual, 4),
            text=None if hit.text is None else round(hit.text, 6), uri=f"anchorfold://page/{page.id}",
            snippet=service.snippet(query, hit),
            metadata={name: as_json(value) for name, value in hit.metadata.items()},
        )  # fmt: skip

    @tool("Search pages")
    def search(
        query: QueryText,
        top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K, description="Maximum number of results.")] = 5,
        document: Annotated[str | None, Field(max_length=MAX_QUERY, description="Only pages of this document: a name, or a pattern such as '*.pdf'.")] = None,  # noqa: E501
        mode: Annotated[Mode | None, Field(description="visual: layout, tables, charts, scans. text: BM25 over the page text, for names, numbers, exact words and \"quoted phrases\". hybrid: both. Default: hybrid, or visual if no text is stored.")] = None,  # noqa: E501
        filter: Annotated[str | None, Field(max_length=MAX_WHERE, description="SQL filter, such as \"year >= 2024 and department = 'sales'\"; list_columns lists the columns.")] = None,  # noqa: E501
        per_document: Annotated[bool, Field(description="Return the best page of each document only.")] = False,
    ) -> list[PageHit]:  # fmt: skip
        """Find the pages that match a query, best first. Also finds tables, charts and scans, by their images."""
        with public_errors():
            if document is not None and not GLOB.search(document) and not service.has_document(document):
                raise service.unknown_document(document)
            request = SearchRequest(
                [query], top_k=top_k, documents=document, where=filter, mode=mode, per_document=per_document
            )
            return [page_hit(page, hit, query) for _, page, hit in service.search(request)]

    @tool("Find similar pages")
    def similar_pages(
        document: DocumentName,
        page: PageNumber,
        top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K, description="Maximum number of results.")] = 5,
    ) -> list[PageHit]:
        """Find the pages whose images are most similar to a page, best first."""
        reference = find(document, page)
        with public_errors():
            return [page_hit(found, hit) for _, found, hit in service.similar(reference, top_k)]

    @tool("List columns")
    def list_columns() -> list[ColumnValues]:
        """List the columns for the filter of search, with their types and, if there are few, their values."""
        with public_errors():
            values = {
                facet.column: [as_json(value) for value in facet.values] for facet in service.index.facets(public=True)
            }
            return [ColumnValues(column=c, type=t, values=values.get(c)) for c, t in service.index.columns().items()]

    @tool("List documents")
    def list_documents(
        pattern: Annotated[
            str | None, Field(max_length=MAX_QUERY, description="Name pattern, such as 'reports/*'.")
        ] = None,
        offset: Annotated[int, Field(ge=0, description="Number of documents to skip.")] = 0,
        limit: Annotated[int, Field(ge=1, le=MAX_DOCUMENTS, description="Maximum number of documents.")] = 100,
    ) -> list[IndexedDocument]:
        """List the indexed documents by name."""
        with public_errors():
            names = [(d, n) for d, n in service.documents().items() if pattern is None or matches(pattern, d, d)]
        return [IndexedDocument(document=name, pages=pages) for name, pages in names[offset : offset + limit]]

    @tool("View a page")
    def page_image(
        document: DocumentName,
        page: PageNumber,
        size: Annotated[int, Field(ge=64, le=MAX_SIZE, description="Pixels of the longer side.")] = 1200,
    ) -> Image:
        """Return an image of a page, to read tables, charts and scans."""
        reference = find(document, page)
        with public_errors():
            return Image(data=service.image(reference, size), format="jpeg")

    @tool("Read the text of a page")
    def page_text(document: DocumentName, page: PageNumber) -> str:
        """Return the text layer of a page; empty for scans, which page_image shows."""
        reference = find(document, page)
        with public_errors():
            return text_of(reference)

    @tool("Explain a match")
    def explain_match(query: QueryText, document: DocumentName, page: PageNumber) -> list[str | Image]:
        """Explain why a page matches: the visual score of each query word, and a heatmap."""
        reference = find(document, page)
        with public_errors():
            explanation = explain(service.index, query, reference.source, page, compare_full=False)
        evidence = explanation.evidence
        words = [[w, round(s, 4)] for w, s in zip(evidence.words, evidence.scores.tolist(), strict=True)]
        buffer = io.BytesIO()
        draw_explanation(replace(explanation, document=reference.document)).save(buffer, "JPEG", quality=85)
        return [
            json.dumps({"visual": round(evidence.score, 4), "words": words}, ensure_ascii=False),
            Image(data=buffer.getvalue(), format="jpeg"),
        ]

    def resource_page(identity: str) -> PageReference:
        with public_errors(ResourceError):
            try:
                return service.page(identity)
            except KeyError:
                raise ResourceNotFoundError(f"the index has no page {identity}.") from None

    def resource(uri: str, title: str, mime_type: str) -> Decorator:
        register: Decorator = server.resource(uri, title=title, mime_type=mime_type)
        return register

    @resource("anchorfold://documents", "Documents", "application/json")
    def documents() -> str:
        """Return the indexed documents and their numbers of pages."""
        with public_errors(ResourceError):
            return json.dumps(service.documents(), ensure_ascii=False)

    @resource("anchorfold://page/{identity}", "Page image", "image/jpeg")
    def image(identity: str) -> bytes:
        """Return the image of a page."""
        page = resource_page(identity)
        with public_errors(ResourceError):
            return service.image(page, 1200)

    @resource("anchorfold://page/{identity}/text", "Page text", "text/plain")
    def text(identity: str) -> str:
        """Return the text layer of a page."""
        page = resource_page(identity)
        with public_errors(ResourceError):
            return text_of(page)

    return server


def http_app(server: MCPServer[Any], host: str) -> Any:
    """Return the ASGI application that serves streamable HTTP at /mcp.

    It keeps no sessions, which the tools do not need and which one client could exhaust, and offers no stream of server
    messages (GET).

    Args:
        server: the result of `create_server`.
        host: the address to bind to; on a loopback address the protocol checks the Host and Origin headers.
    """
    application = server.streamable_http_app(host=host, stateless_http=True)
    for route in application.routes:
        route.methods = {"POST"}  # others are answered with 405
    return application
