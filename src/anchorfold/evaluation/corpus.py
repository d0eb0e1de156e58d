"""Pages, queries and which pages answer them."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from anchorfold.documents.content import read_file
from anchorfold.documents.pages import open_pages
from anchorfold.errors import AnchorFoldError, UnreadableDocumentError

QUERIES_FILE, EXCLUDED_FILE, PAGES_FOLDER = "queries.jsonl", "exclude_pages.json", "pdfs"


@dataclass(frozen=True)
class Query:
    """A question and the names of the pages that answer it, with their grades."""

    id: str
    text: str
    relevant: dict[str, int]
    kind: str = "query"


# A page's name, and what renders it: to be called before the next one is asked for.
Unrendered = tuple[str, Callable[[], Image.Image]]


class PageSource(Protocol):
    """Where pages come from. Loader processes get a copy of it: it must survive pickling."""

    def __call__(self, pixels: int) -> Iterator[Unrendered]:
        """All pages in a stable order, to be rendered at about that size."""
        ...

    def origin(self) -> dict[str, Any]:
        """What the pages are made from, as JSON that differs if any page does."""
        ...


@dataclass(frozen=True)
class Corpus:
    """Pages and queries. `benchmark` is our name of the suite that it belongs to, if any."""

    name: str
    unrendered: PageSource
    queries: tuple[Query, ...]
    benchmark: str | None = None

    def names(self) -> list[str]:
        """Of all pages, none of them rendered."""
        return [name for name, _ in self.unrendered(1)]

    def pages(
        self, pixels: int, *, skip: int = 0, only: Container[str] | None = None
    ) -> Iterator[tuple[str, Image.Image]]:
        """Names and images without the first `skip` pages, or of some pages; no others are rendered."""
        for name, render in islice(self.unrendered(pixels), skip, None):
            if only is None or name in only:
                yield name, render()


@dataclass(frozen=True)
class Documents:
    """The pages of some files, without those that are `excluded` (by file name, zero-based)."""

    files: Sequence[Path]
    excluded: Mapping[str, Sequence[int]]

    def __call__(self, pixels: int) -> Iterator[Unrendered]:
        """File by file."""
        for path in self.files:
            try:
                with open_pages(path, pixels) as pages:
                    for number in range(len(pages)):
                        if number not in self.excluded.get(path.name, ()):
                            yield page_name(path.name, number), partial(pages.image, number)
            except UnreadableDocumentError as problem:
                raise AnchorFoldError(f"{path} cannot be read: {problem}.") from problem

    def origin(self) -> dict[str, Any]:
        """Size and digest of every file, and what is left out of it."""
        documents = {}
        for path in self.files:
            try:
                _, identity = read_file(path)
            except UnreadableDocumentError as problem:
                raise AnchorFoldError(f"{path} cannot be read: {problem}.") from problem
            left_out = sorted(self.excluded.get(path.name, ()))
            without = f", without pages {left_out}" if left_out else ""
            documents[path.name] = f"{identity.size} bytes, digest {identity.digest}{without}"
        return {"document": documents}


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
    file_names = {p.name for p in files}
    queries = []
    for number, line in enumerate((folder / QUERIES_FILE).read_text("utf-8").splitlines(), 1):
        try:
            data = json.loads(line)
            answers = [(file, int(page)) for file, page in data["relevant"]]
            relevant = {page_name(f, p): 1 for f, p in answers if f in file_names and p not in excluded.get(f, ())}
            query = Query(str(data["id"]), data["text"], relevant, data.get("kind", "query"))
        except (ValueError, KeyError, TypeError) as error:
            raise AnchorFoldError(f"line {number} of {folder / QUERIES_FILE} is no query ({error!r}).") from error
        if query.relevant:
            queries.append(query)
    if not queries:
        raise AnchorFoldError(f"{folder / QUERIES_FILE} holds no query with a page that answers it.")
    return Corpus(folder.resolve().name, Documents(files, excluded), tuple(queries))


def page_name(file: str, number: int) -> str:
    """A page's name in rankings."""
    return f"{file}#{number}"
