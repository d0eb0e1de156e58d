"""Corpora: pages, queries and relevance judgements."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from anchorfold.documents.formats import open_document, read_file
from anchorfold.errors import AnchorFoldError, UnreadableDocumentError

QUERIES_FILE, EXCLUDED_FILE, PAGES_FOLDER = "queries.jsonl", "exclude_pages.json", "pdfs"


@dataclass(frozen=True)
class Query:
    """A query and the grades of its relevant pages by name."""

    id: str
    text: str
    relevant: dict[str, int]
    kind: str = "query"


# Name of a page and a function that renders it, valid until the next page is requested.
LazyPage = tuple[str, Callable[[], Image.Image]]


class CorpusPages(Protocol):
    """Pages of a corpus. Must be picklable for loader processes."""

    def __call__(self, pixels: int) -> Iterator[LazyPage]:
        """Yield all pages in a stable order, to be rendered at about `pixels`."""
        ...

    def origin(self) -> dict[str, Any]:
        """Return JSON that identifies the content of all pages."""
        ...


@dataclass(frozen=True)
class Corpus:
    """Pages and queries; `benchmark` is the name of its suite, if any."""

    name: str
    lazy_pages: CorpusPages
    queries: tuple[Query, ...]
    benchmark: str | None = None

    def names(self) -> list[str]:
        """Return the names of all pages without rendering them."""
        return [name for name, _ in self.lazy_pages(1)]

    def pages(
        self, pixels: int, *, skip: int = 0, only: Container[str] | None = None
    ) -> Iterator[tuple[str, Image.Image]]:
        """Yield names and images after the first `skip` pages, or of the pages in `only`."""
        for name, render in islice(self.lazy_pages(pixels), skip, None):
            if only is None or name in only:
                yield name, render()


@dataclass(frozen=True)
class Documents:
    """Pages of files, without `excluded` ones (zero-based numbers by file name)."""

    files: Sequence[Path]
    excluded: Mapping[str, Sequence[int]]

    def __call__(self, pixels: int) -> Iterator[LazyPage]:
        """Yield the pages file by file."""
        for path in self.files:
            try:
                with open_document(path, pixels) as pages:
                    for number in range(len(pages)):
                        if number not in self.excluded.get(path.name, ()):
                            yield page_name(path.name, number), partial(pages.image, number)
            except UnreadableDocumentError as problem:
                raise AnchorFoldError(f"{path} cannot be read: {problem}.") from problem

    def origin(self) -> dict[str, Any]:
        """Return size, digest and excluded pages per file."""
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
    """Read a folder with `pdfs/` and `queries.jsonl`: {id, text, relevant: [[file, zero-based page]], kind?}.

    Pages in `exclude_pages.json` (file to zero-based numbers) are skipped; `documents` selects files.
    """
    folder = Path(folder)
    if not (folder / QUERIES_FILE).is_file() or not (folder / PAGES_FOLDER).is_dir():
        raise AnchorFoldError(f"{folder} is not a corpus: {PAGES_FOLDER}/ and {QUERIES_FILE} are required.")
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
            raise AnchorFoldError(f"line {number} of {folder / QUERIES_FILE} is not a query ({error!r}).") from error
        if query.relevant:
            queries.append(query)
    if not queries:
        raise AnchorFoldError(f"{folder / QUERIES_FILE} contains no query with a relevant page.")
    return Corpus(folder.resolve().name, Documents(files, excluded), tuple(queries))


def page_name(file: str, number: int) -> str:
    """Return the name of a page in rankings."""
    return f"{file}#{number}"
