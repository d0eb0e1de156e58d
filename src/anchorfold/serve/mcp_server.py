"""The index for agents: a Model Context Protocol server. Read-only."""

from __future__ import annotations

import io
import json
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
from anchorfold.explain.page_text import text_of_page
from anchorfold.explain.pictures import draw, explain
from anchorfold.index.filters.values import as_json
from anchorfold.index.hits import Mode
from anchorfold.serve.library import Library, PageReference

MAX_TOP, MAX_SIDE, MAX_QUERY, MAX_DOCUMENTS, MAX_WHERE = 50, 2000, 1000, 1000, 2000
MAX_SESSIONS, SESSION_IDLE_SECONDS = 100, 600.0  # over HTTP
INSTRUCTIONS = (
    "Visual search over the pages of documents: PDFs, slides, scans. Search first; then look at the pages that it "
    "found with page_image, which shows tables, charts and scans as they are, or read page_text where there is a text "
    "layer. Name documents and pages as search does, and cite them in answers."
)
Register = Callable[[Callable[..., Any]], Callable[..., Any]]  # what a server makes of a function
READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
QueryText = Annotated[str, Field(min_length=1, max_length=MAX_QUERY, description="A question, or words to look for.")]
DocumentName = Annotated[str, Field(max_length=MAX_QUERY, description="As search and list_documents name it.")]
PageNumber = Annotated[int, Field(ge=0, description="The page's number, as search gives it.")]


class PageHit(BaseModel):
    """A page that answers a query; a higher score is a better match, and scores of different queries do not compare."""

    document: str
    page: int
    score: float
    uri: str = Field(description="The page as a resource.")
    snippet: str = Field("", description="A passage of its text with words of the query, or the beginning of its text.")
    metadata: dict[str, bool | int | float | str] = Field(description="What is known of its document, by column.")


class ColumnValues(BaseModel):
    """A column, its type, and its values if they are few."""

    column: str
    type: str
    values: list[bool | int | float | str] | None = None


class IndexedDocument(BaseModel):
    """A document, and how many of its pages are indexed."""

    document: str
    pages: int


def page_uri(page: PageReference) -> str:
    """A page's picture as a resource; `/text` behind it is its text."""
    return f"anchorfold://page/{page.id}"


def create_server(library: Library) -> MCPServer[Any]:
    """Tools and resources over one index."""
    server: MCPServer[Any] = MCPServer(
        "anchorfold", title="AnchorFold", instructions=INSTRUCTIONS, version=__version__, log_level="ERROR"
    )

    @contextmanager
    def plain_errors(kind: type[ToolError | ResourceError] = ToolError) -> Iterator[None]:
        """What a caller can mend reaches it as one sentence, without the machine's paths."""
        try:
            yield
        except AnchorFoldError as error:
            raise kind(library.public_message(error)) from error

    def find(document: str, page: int) -> PageReference:
        with plain_errors():
            return library.find(document, page)

    def text_of(page: PageReference) -> str:
        text = text_of_page(library.index, page.source, page.number)
        if text is None:
            raise AnchorFoldError(f"{page.document} is gone or has changed since it was indexed: no text is at hand.")
        return text

    def tool(title: str) -> Register:
        register: Register = server.tool(title=title, annotations=READ_ONLY)
        return register

    @tool("Search pages")
    def search(
        query: QueryText,
        top: Annotated[int, Field(ge=1, le=MAX_TOP, description="How many pages.")] = 5,
        document: Annotated[str | None, Field(max_length=MAX_QUERY, description="Only pages of this document: its name, or a pattern such as '*.pdf'.")] = None,  # noqa: E501
        mode: Annotated[Mode | None, Field(description="visual: layout, tables, charts, scans. text: BM25 over the page text, for names, numbers, exact words and \"quoted phrases\". hybrid: both. Default: the first mode of the index.")] = None,  # noqa: E501
        filter: Annotated[str | None, Field(max_length=MAX_WHERE, description="Only pages for which this SQL condition is true, such as \"year >= 2024 and department = 'sales'\"; list_columns tells the columns.")] = None,  # noqa: E501
    ) -> list[PageHit]:  # fmt: skip
        """Find the pages that answer a question, best first. Works on what pages look like: tables, charts, scans."""
        with plain_errors():
            return [
                PageHit(
                    document=page.document, page=page.number, score=round(hit.score, 4), uri=page_uri(page),
                    snippet=library.snippet(query, hit),
                    metadata={name: as_json(value) for name, value in hit.metadata.items()},
                )
                for _, page, hit in library.search(query, top, document, filter, mode)
            ]  # fmt: skip

    @tool("List columns")
    def list_columns() -> list[ColumnValues]:
        """List the columns that the filter of search may use, their types, and their values where these are few."""
        with plain_errors():
            values = {facet.column: [as_json(value) for value in facet.values] for facet in library.facets()}
            return [ColumnValues(column=c, type=t, values=values.get(c)) for c, t in library.columns().items()]

    @tool("List documents")
    def list_documents(
        pattern: Annotated[str | None, Field(max_length=MAX_QUERY, description="Such as 'reports/*'.")] = None,
        first: Annotated[int, Field(ge=0, description="How many to pass over.")] = 0,
        most: Annotated[int, Field(ge=1, le=MAX_DOCUMENTS, description="How many at most.")] = 100,
    ) -> list[IndexedDocument]:
        """List the documents that can be searched, by name."""
        with plain_errors():
            names = [(d, n) for d, n in library.documents().items() if pattern is None or matches(pattern, d, d)]
        return [IndexedDocument(document=name, pages=pages) for name, pages in names[first : first + most]]

    @tool("Look at a page")
    def page_image(
        document: DocumentName,
        page: PageNumber,
        pixels: Annotated[int, Field(ge=64, le=MAX_SIDE, description="Of the longer side.")] = 1200,
    ) -> Image:
        """A picture of a page, for reading tables, charts and scans as they are."""
        reference = find(document, page)
        with plain_errors():
            return Image(data=library.picture(reference, pixels), format="jpeg")

    @tool("Read a page's text")
    def page_text(document: DocumentName, page: PageNumber) -> str:
        """The text layer of a page; empty for scans and pictures, which page_image shows."""
        reference = find(document, page)
        with plain_errors():
            return text_of(reference)

    @tool("Explain a match")
    def explain_match(query: QueryText, document: DocumentName, page: PageNumber) -> list[str | Image]:
        """Why a page matches a query: what each word adds to the score, and a picture with the evidence lit."""
        reference = find(document, page)
        with plain_errors():
            explanation = explain(library.index, query, reference.source, page, compare_full=False)
        evidence = explanation.evidence
        words = [[w, round(s, 4)] for w, s in zip(evidence.words, evidence.scores.tolist(), strict=True)]
        buffer = io.BytesIO()
        draw(replace(explanation, document=reference.document)).save(buffer, "JPEG", quality=85)
        return [
            json.dumps({"score": round(evidence.score, 4), "words": words}, ensure_ascii=False),
            Image(data=buffer.getvalue(), format="jpeg"),
        ]

    def resource_page(identity: str) -> PageReference:
        try:
            return library.page(identity)
        except KeyError:
            raise ResourceNotFoundError(f"the index has no page {identity}.") from None

    def resource(uri: str, title: str, mime_type: str) -> Register:
        register: Register = server.resource(uri, title=title, mime_type=mime_type)
        return register

    @resource("anchorfold://documents", "Documents", "application/json")
    def documents() -> str:
        """The documents that can be searched, and how many pages of each are indexed."""
        with plain_errors(ResourceError):
            return json.dumps(library.documents(), ensure_ascii=False)

    @resource("anchorfold://page/{identity}", "A page", "image/jpeg")
    def picture(identity: str) -> bytes:
        """A page's picture, by the address that search gives."""
        page = resource_page(identity)
        with plain_errors(ResourceError):
            return library.picture(page, 1200)

    @resource("anchorfold://page/{identity}/text", "A page's text", "text/plain")
    def text(identity: str) -> str:
        """A page's text layer."""
        page = resource_page(identity)
        with plain_errors(ResourceError):
            return text_of(page)

    return server


def http_app(server: MCPServer[Any], host: str, idle_seconds: float = SESSION_IDLE_SECONDS) -> Any:
    """Return the ASGI application that serves streamable HTTP at /mcp.

    Args:
        server: the result of `create_server`.
        host: the address to bind to; on a loopback address the protocol checks the Host and Origin headers.
        idle_seconds: time after which a session without requests is closed.
    """
    return server.streamable_http_app(host=host, session_idle_timeout=idle_seconds, max_sessions=MAX_SESSIONS)
