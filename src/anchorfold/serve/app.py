"""The server: a page, and a JSON API that describes itself at /openapi.json. Nothing here can change the index."""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.responses import Response as Plain
from pydantic import BaseModel, Field, StringConstraints

from anchorfold import __version__
from anchorfold.errors import AnchorFoldError, FilterError, UnavailableError
from anchorfold.index import Hit
from anchorfold.index.filters.values import as_json
from anchorfold.index.hits import Mode
from anchorfold.serve.choices import Choice, choices, first_choices, method_pattern
from anchorfold.serve.guard import Bounded, Guard
from anchorfold.serve.library import Library, PageReference, public_model

MAX_QUERY, MAX_TOP, MAX_SIDE, MAX_METHODS = 500, 100, 2000, 3
MAX_WHERE = 2000
QUEUE = 64
STATIC = {"/": ("index.html", "text/html"), "/app.js": ("app.js", "text/javascript"),
          "/heat.js": ("heat.js", "text/javascript"), "/filters.js": ("filters.js", "text/javascript"),
          "/text.js": ("text.js", "text/javascript"), "/style.css": ("style.css", "text/css"),
          "/icon.svg": ("icon.svg", "image/svg+xml")}  # fmt: skip

Method = Annotated[str, StringConstraints(pattern=method_pattern())]
QueryText = Annotated[str, Query(min_length=1, max_length=MAX_QUERY, description="What to look for.")]
NO_TEXT = {"description": "The index cannot be searched in this mode."}
WRONG_FILTER = {"description": "The filter is wrong; the answer says what is."}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    404: {"description": "There is no such page."},
    409: {"description": "The original document is gone or has changed."},
    503: {"description": "Too many requests at once, or a part of the index does not answer."},
}


class Result(BaseModel):
    """A page that answers a query."""

    id: str = Field(description="The page's id, for /api/pages/{id}/...")
    document: str
    page: int = Field(description="Counted from 1.")
    score: float
    visual: float | None = Field(None, description="MaxSim of what the page looks like; null if that was not asked.")
    text: float | None = Field(None, description="BM25 of what it says, 0 if no word matches; null if not asked.")
    snippet: str = Field("", description="A piece of its text.")
    matches: list[tuple[int, int]] = Field([], description="Where words of the query stand in it: first, last + 1.")
    metadata: dict[str, bool | int | float | str] = Field(
        {}, description="What is known of its document, by column; dates as 2024-01-31."
    )


class Results(BaseModel):
    """The best pages, best first."""

    query: str
    results: list[Result]
    searched: float = Field(
        1.0, description="The share of all pages that was looked through: less if shards are silent."
    )


class FacetValue(BaseModel):
    """A value of a column, and how many documents have it."""

    value: bool | int | float | str
    documents: int


class FacetColumn(BaseModel):
    """A column with few values."""

    column: str
    type: str
    values: list[FacetValue]
    missing: int = Field(description="Documents that have no value in it.")


class Facets(BaseModel):
    """What /search can filter by."""

    columns: dict[str, str] = Field(description="All columns, and their types: text, integer, float, boolean, date.")
    facets: list[FacetColumn] = Field(description="Those with few values.")


class OfferedMethod(BaseModel):
    """A compressor that pages can be compared under."""

    method: str = Field(description="What /compare takes, such as anchorfold:0.05.")
    title: str
    colour: str
    first: bool = Field(description="Whether it is shown before anything was chosen.")


class Info(BaseModel):
    """What the index holds."""

    name: str
    documents: int
    pages: int
    vectors: int
    full_vectors: int
    bytes: int = Field(description="The whole folder, as `du -sb` counts it.")
    provenance_bytes: int = Field(description="The part of it that says which patches vectors come from.")
    thumbnail_bytes: int = Field(description="The part of it that is pictures.")
    text_bytes: int = Field(description="The part of it that is text and its index.")
    vector_bytes: int
    full_vector_bytes: int
    times_smaller: float
    model: str
    method: str
    settings: dict[str, Any]
    modes: list[Mode] = Field(description="Ways to search it; the first is the one that is taken if none is named.")
    choices: list[OfferedMethod] = Field(description="Methods that /compare offers; it takes other ratios too.")


class Page(BaseModel):
    """One page."""

    id: str
    document: str
    page: int
    pages: int
    vectors: int
    full_vectors: int


class Word(BaseModel):
    """A word of the query, what it adds to the score, and where: [patch, value]."""

    word: str
    score: float
    patches: list[tuple[int, float]]


class Explained(BaseModel):
    """Why a page matches. `most` is the top of the scale that all maps share."""

    score: float
    vectors: int
    full_vectors: int
    most: float
    words: list[Word]
    tiles: list[tuple[float, float, float, float, float, float]] = Field(
        description="Rows, columns, left, top, right, bottom of each tile, as shares of the page."
    )
    original: bool = Field(True, description="Whether the original document is at hand.")


class WordBoxes(BaseModel):
    """Where words stand on a page; none if it has no text layer, or its original is not at hand."""

    boxes: list[list[float]] = Field(description="Left, top, right, bottom of each, as shares of the page.")


class Compared(Explained):
    """The same under one method."""

    method: str
    title: str
    colour: str
    retention: float | None = Field(description="The share of the full index's score in percent, null if that is 0.")


def create_app(library: Library, token: str | None = None, limit: int = QUEUE) -> Any:
    """The ASGI application."""
    app = FastAPI(
        title="AnchorFold", version=__version__, docs_url=None, redoc_url=None,
        description="Visual document search, 5 to 20 times smaller. Read-only.",
    )  # fmt: skip

    @app.exception_handler(AnchorFoldError)
    def explain_problem(_: Request, error: AnchorFoldError) -> JSONResponse:
        status = 503 if isinstance(error, UnavailableError) else 400 if isinstance(error, FilterError) else 409
        return JSONResponse({"detail": library.public_message(error)}, status)

    @app.get("/healthz", tags=["health"])
    def health() -> dict[str, str]:
        """Whether the server runs."""
        return {"status": "ok"}

    @app.get("/api/info", tags=["index"], responses={503: PROBLEMS[503]})
    def info() -> Info:
        """What the index holds, and how many times smaller it is."""
        counts = library.index.info()
        shared = {name: value for name, value in vars(counts).items() if name in Info.model_fields}
        shared |= {"model": public_model(counts.model), "times_smaller": round(counts.times_smaller, 2)}
        listed = choices(library.index.settings.method, library.index.model.settings)
        first = first_choices(listed)
        offers = [
            OfferedMethod(method=str(c), title=c.title, colour=c.colour, first=c in first)
            for c in listed
        ]  # fmt: skip
        return Info(name=library.index.path.resolve().name, choices=offers, modes=library.index.modes, **shared)

    @app.get("/api/search", tags=["index"], responses={400: WRONG_FILTER, 409: NO_TEXT, 503: PROBLEMS[503]})
    def search(
        q: QueryText,
        top: Annotated[int, Query(ge=1, le=MAX_TOP)] = 12,
        document: Annotated[str | None, Query(max_length=MAX_QUERY, description="A name or pattern.")] = None,
        where: Annotated[
            str | None,
            Query(max_length=MAX_WHERE, description="An SQL condition on columns, such as year >= 2024: see /facets."),
        ] = None,
        mode: Annotated[Mode | None, Query(description="One of those that /api/info names.")] = None,
    ) -> Results:
        """The best pages for a query."""
        results = [as_result(*found) for found in library.search(q, top, document, where, mode)]
        return Results(query=q, results=results, searched=library.searched)

    @app.get("/api/facets", tags=["index"], responses={503: PROBLEMS[503]})
    def facets() -> Facets:
        """The columns that a search can filter by, and the values of those that have few."""
        listed = [
            FacetColumn(
                column=facet.column, type=facet.type, missing=facet.missing,
                values=[FacetValue(value=as_json(value), documents=n) for value, n in facet.values.items()],
            )
            for facet in library.facets()
        ]  # fmt: skip
        return Facets(columns=library.columns(), facets=listed)

    def page_of(identity: str) -> PageReference:
        try:
            return library.page(identity)
        except KeyError:
            raise HTTPException(404, "there is no such page") from None

    @app.get("/api/pages/{page_id}", tags=["pages"], responses=PROBLEMS)
    def page(page_id: str) -> Page:
        """One page."""
        reference = page_of(page_id)
        row = library.details(reference)
        return Page(id=page_id, document=reference.document, page=reference.number, pages=row["pages"],
                    vectors=row["kept"], full_vectors=row["full"])  # fmt: skip

    @app.get("/api/pages/{page_id}/thumbnail", tags=["pages"], responses=PROBLEMS, response_class=Plain)
    def thumbnail(page_id: str) -> Response:
        """A small WebP, or JPEG in an index of version 0.1."""
        return picture_answer(library.thumbnail(page_of(page_id)))

    @app.get("/api/pages/{page_id}/image", tags=["pages"], responses=PROBLEMS, response_class=Plain)
    def image(page_id: str, size: Annotated[int, Query(ge=64, le=MAX_SIDE)] = 1400) -> Response:
        """A JPEG, `size` pixels on its longer side."""
        return picture_answer(library.picture(page_of(page_id), size))

    @app.get("/api/pages/{page_id}/evidence", tags=["pages"], responses=PROBLEMS)
    def evidence(page_id: str, q: QueryText) -> Explained:
        """Which patches answer which word."""
        return Explained(**library.explain(page_of(page_id), q))

    @app.get("/api/pages/{page_id}/words", tags=["pages"], responses=PROBLEMS)
    def words(page_id: str, q: QueryText) -> WordBoxes:
        """Where words of a query stand on a page, by the text's own boxes."""
        return WordBoxes(boxes=[list(box) for box in library.words(page_of(page_id), q)])

    @app.get("/api/pages/{page_id}/compare", tags=["pages"], responses=PROBLEMS)
    def compare(
        page_id: str,
        q: QueryText,
        method: Annotated[
            list[Method], Query(min_length=1, max_length=MAX_METHODS, description="name:ratio, such as anchorfold:0.05")
        ],
    ) -> list[Compared]:
        """The same page and query under up to three methods; needs the original document."""
        wanted = [Choice.parse(text) for text in method]
        answers = library.compare(page_of(page_id), q, [choice.compressor() for choice in wanted])
        return [
            Compared(method=str(choice), title=choice.title, colour=choice.colour, **answer)
            for choice, answer in zip(wanted, answers, strict=True)
        ]

    for address, (name, kind) in STATIC.items():
        app.add_api_route(address, static_file(name, kind), include_in_schema=False)
    return Guard(Bounded(app, limit), token)


def as_result(identity: str, page: PageReference, hit: Hit) -> Result:
    """A hit as the world may see it."""
    visual, text = (None if score is None else round(score, 6) for score in (hit.visual, hit.text))
    return Result(id=identity, document=page.document, page=page.number, score=round(hit.score, 6), visual=visual,
                  text=text, snippet=hit.snippet, matches=list(hit.matches),
                  metadata={name: as_json(value) for name, value in hit.metadata.items()})  # fmt: skip


def picture_answer(data: bytes) -> Response:
    """A picture that the browser may keep."""
    kind = "image/webp" if data.startswith(b"RIFF") else "image/jpeg"
    return Response(data, media_type=kind, headers={"cache-control": "private, max-age=300"})


def static_file(name: str, kind: str) -> Any:
    """A route for a file of the page."""
    body = (files("anchorfold.serve") / "static" / name).read_bytes()

    def answer() -> Response:
        return Response(body, media_type=kind, headers={"cache-control": "no-cache"})

    return answer
