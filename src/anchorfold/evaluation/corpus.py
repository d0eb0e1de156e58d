"""Pages, queries and which pages answer them."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image

from anchorfold.documents.content import read_file
from anchorfold.documents.pages import open_pages
from anchorfold.errors import AnchorFoldError, UnreadableDocumentError

QUERIES_FILE, EXCLUDED_FILE, PAGES_FOLDER = "queries.jsonl", "exclude_pages.json", "pdfs"


@dataclass(frozen=True)
class Query:
    """A question and the ids of the pages that answer it, with their grades."""

    id: str
    text: str
    relevant: dict[str, int]
    kind: str = "query"


# A page's id, and what renders it: to be called before the next one is asked for.
Unrendered = tuple[str, Callable[[], Image.Image]]


@dataclass(frozen=True)
class Corpus:
    """`unrendered(pixels)` yields its pages in a stable order, to be rendered at about that size.

    `benchmark` is the paper's name of what it belongs to, if anything. `origin` says what its pages are made from, as
    JSON that differs if any page does; None if their ids alone tell.
    """

    name: str
    unrendered: Callable[[int], Iterator[Unrendered]]
    queries: tuple[Query, ...]
    benchmark: str | None = None
    origin: Callable[[], dict[str, Any]] | None = None

    def ids(self) -> list[str]:
        """Of all pages, none of them rendered."""
        return [identity for identity, _ in self.unrendered(1)]

    def pages(
        self, pixels: int, *, skip: int = 0, only: Container[str] | None = None
    ) -> Iterator[tuple[str, Image.Image]]:
        """Ids and images without the first `skip` pages, or of some pages; no others are rendered."""
        for identity, render in islice(self.unrendered(pixels), skip, None):
            if only is None or identity in only:
                yield identity, render()


def local_corpus(folder: str | Path, documents: Sequence[str] | None = None) -> Corpus:
    """A folder with `pdfs/` and `queries.jsonl`: {id, text, relevant: [[file, zero-based page]], kind?}.

    Pages listed in `exclude_pages.json` (file to zero-based numbers) are left out; `documents` takes only some files.
    """
    folder = Path(folder)
    if not (folder / QUERIES_FILE).is_file() or not (folder / PAGES_FOLDER).is_dir():
        raise AnchorFoldError(f"{folder} is not a corpus: it needs {PAGES_FOLDER}/ and {QUERIES_FILE}.")
    excluded_file = folder / EXCLUDED_FILE
    excluded = json.loads(excluded_file.read_text()) if excluded_file.exists() else {}
    files = sorted(p for p in (folder / PAGES_FOLDER).iterdir() if p.is_file())
    if documents:
        files = [p for p in files if p.name in documents or p.stem in documents]
    names = {p.name for p in files}

    def unrendered(pixels: int) -> Iterator[Unrendered]:
        for path in files:
            try:
                with open_pages(path, pixels) as pages:
                    for number in range(len(pages)):
                        if number not in excluded.get(path.name, ()):
                            yield page_id(path.name, number), partial(pages.image, number)
            except UnreadableDocumentError as problem:
                raise AnchorFoldError(f"{path} cannot be read: {problem}.") from problem

    def origin() -> dict[str, Any]:
        found = {}
        for path in files:
            try:
                _, identity = read_file(path)
            except UnreadableDocumentError as problem:
                raise AnchorFoldError(f"{path} cannot be read: {problem}.") from problem
            left_out = sorted(excluded.get(path.name, ()))
            without = f", without pages {left_out}" if left_out else ""
            found[path.name] = f"{identity.size} bytes, digest {identity.digest}{without}"
        return {"document": found}

    queries = []
    for number, line in enumerate((folder / QUERIES_FILE).read_text("utf-8").splitlines(), 1):
        try:
            data = json.loads(line)
            answers = [(f, int(p)) for f, p in data["relevant"]]
            relevant = {page_id(f, p): 1 for f, p in answers if f in names and p not in excluded.get(f, ())}
            found = Query(str(data["id"]), data["text"], relevant, data.get("kind", "query"))
        except (ValueError, KeyError, TypeError) as error:
            raise AnchorFoldError(f"line {number} of {folder / QUERIES_FILE} is no query ({error!r}).") from error
        if found.relevant:
            queries.append(found)
    if not queries:
        raise AnchorFoldError(f"{folder / QUERIES_FILE} holds no query with a page that answers it.")
    return Corpus(folder.resolve().name, unrendered, tuple(queries), origin=origin)


def page_id(file: str, number: int) -> str:
    """A page's name in rankings."""
    return f"{file}#{number}"
