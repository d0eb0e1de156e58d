"""Sources of existing multi-vectors: the interface, the registry, and the detection of documents and page numbers."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from anchorfold._registry import Registry
from anchorfold.databases.urls import without_password
from anchorfold.errors import AnchorFoldError
from anchorfold.storage.database import is_index

PageFilter = Callable[[str, int], bool]  # of a document and a page number
# Field names that are detected automatically.
DOCUMENT_FIELDS = ("document", "document_name", "doc", "file", "filename", "file_name", "source", "path", "doc_id")
PAGE_FIELDS = ("page", "page_number", "page_num", "page_no", "page_id")
OFFSETS = "offsets"
MAX_REASON = 200  # characters of an error message
UNREADABLE = (ValueError, OSError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)
_PAGE_SUFFIX = re.compile(r"(?:(?P<document>.*?)[\W_]+)?(?:page|p)[\W_]*(?P<page>\d{1,9})", re.IGNORECASE | re.DOTALL)
_NUMBER = re.compile(r"\d{1,9}")


@dataclass(frozen=True)
class VectorPage:
    """A page of a source: `vectors (N, d)` as stored there, or the `problem` why they cannot be read."""

    document: str
    page: int
    vectors: np.ndarray | None
    problem: str | None = None


@dataclass(frozen=True)
class FieldNames:
    """Names of the columns or payload fields of a source; None if they are detected.

    `collection` is the table or collection of a database.
    """

    vectors: str | None = None
    document: str | None = None
    page: str | None = None
    collection: str | None = None


class VectorSource(ABC):
    """Pages of existing vectors, read one after the other.

    Args:
        address: path or URL.
        fields: field names in the source.
    """

    description: ClassVar[str]  # shown in the list of sources

    def __init__(self, address: str, fields: FieldNames) -> None:
        self.address, self.fields = address, fields

    @property
    def location(self) -> str:
        """The address for messages: a URL without its password and keys."""
        return without_password(self.address)

    @classmethod
    @abstractmethod
    def accepts(cls, address: str) -> bool:
        """Return whether an address looks like this kind of source, without opening it."""

    @property
    def identity(self) -> str:
        """Identity of the source, independent of the working directory."""
        return os.path.abspath(self.address)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of pages, for the progress bar."""

    @abstractmethod
    def pages(self, is_needed: PageFilter) -> Iterator[VectorPage]:
        """Read all needed pages in a fixed order; `is_needed` is called once for every page of the source.

        Only a few pages are in memory at a time. Vectors of other pages are not read if possible.
        """

    def search(self, queries: Sequence[np.ndarray], count: int) -> list[list[tuple[str, int]]] | None:
        """Return the best pages by MaxSim for each query `(tokens, d)`; None if the source cannot search."""
        return None

    def close(self) -> None:
        """Release connections and locks; they are opened again when needed."""
        return


class ArraySource(VectorSource):
    """Base class of sources of named arrays.

    Layouts: one `(N, d)` array per page, named after it; or `vectors (V, d)` and `offsets (P + 1,)`, optionally with
    `document (P,)` and `page (P,)`.
    """

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """Names of the arrays."""

    @abstractmethod
    def read(self, name: str) -> np.ndarray:
        """Read an array; raises one of `UNREADABLE` if it is damaged."""

    def open_rows(self, name: str) -> AbstractContextManager[tuple[int, Callable[[int, int], np.ndarray]]]:
        """Open a `(V, d)` array for reading by rows; returns V and a function that reads rows (start, stop)."""
        raise NotImplementedError

    @property
    def has_offsets(self) -> bool:
        """Whether all vectors are in one array."""
        return OFFSETS in self.names

    def __len__(self) -> int:
        return self._read_required(OFFSETS).size - 1 if self.has_offsets else len(self.names)

    def pages(self, is_needed: PageFilter) -> Iterator[VectorPage]:
        """Read the arrays one after the other; one large array is read in slices."""
        if self.has_offsets:
            yield from self._slices(is_needed)
            return
        for name in self.names:
            document, page = split_name(name)
            if is_needed(document, page):
                try:
                    yield VectorPage(document, page, self.read(name))
                except UNREADABLE as error:
                    yield VectorPage(document, page, None, f"{name} cannot be read ({error_summary(error)})")

    def _slices(self, is_needed: PageFilter) -> Iterator[VectorPage]:
        vectors = choose_field(self.fields.vectors, ("vectors",), self.names, self.address)
        if vectors is None:
            raise AnchorFoldError(f"{self.address} has offsets but no vectors: name their array with --vectors-field.")
        columns = {name: self._read_required(name) for name in self.names if name != vectors}
        offsets = columns.pop(OFFSETS).astype(np.int64)
        if offsets.ndim != 1:
            raise AnchorFoldError(f"{self.address}: offsets have the shape {offsets.shape}, expected (pages + 1,).")
        names = [name for name, column in columns.items() if column.shape[:1] == (len(offsets) - 1,)]
        document = choose_field(self.fields.document, DOCUMENT_FIELDS, names, self.address)
        page = choose_field(self.fields.page, PAGE_FIELDS, names, self.address)
        with self.open_rows(vectors) as (rows, read_rows):
            if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != rows or (np.diff(offsets) < 0).any():
                raise AnchorFoldError(f"{self.address}: offsets do not match the {rows} vectors.")
            for i in range(len(offsets) - 1):
                name = str(columns[document][i]) if document else Path(self.address).stem
                number = page_number(columns[page][i], self.address) if page else 1 if document else i + 1
                if is_needed(name, number):
                    yield VectorPage(name, number, read_rows(int(offsets[i]), int(offsets[i + 1])))

    def _read_required(self, name: str) -> np.ndarray:
        try:
            return self.read(name)
        except UNREADABLE as error:
            raise AnchorFoldError(f"{self.address}: {name} cannot be read ({error_summary(error)}).") from error


def error_summary(error: BaseException) -> str:
    """Return the first sentence of an error's message, shortened: it may quote an untrusted file."""
    text = " ".join(str(error).split()).partition(". ")[0]
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]} ..."


_CLASSES = {
    "lance": "from_lance:LanceSource",
    "npy": "from_npy:NpySource",
    "npz": "from_npz:NpzSource",
    "parquet": "from_parquet:ParquetSource",
    "postgresql": "from_postgres:PostgresSource",
    "qdrant": "from_qdrant:QdrantSource",
    "safetensors": "from_safetensors:SafetensorsSource",
}
# Other packages register a `VectorSource` in this entry point group.
SOURCES: Registry[type[VectorSource]] = Registry(
    "anchorfold.vector_sources", "vector source", {name: f"anchorfold.vectors.{at}" for name, at in _CLASSES.items()}
)


def open_source(address: str, fields: FieldNames | None = None, kind: str | None = None) -> VectorSource:
    """Open the source at an address; `kind` is a name of `SOURCES`, detected if None."""
    if kind is not None:
        return SOURCES[kind](address, fields or FieldNames())
    if is_index(address):
        raise AnchorFoldError(
            f"{address} is an AnchorFold index: export it (`anchorfold export {address} --format npz`) and compress "
            "the export, or index its documents with another --ratio."
        )
    for name in SOURCES.names():
        if SOURCES[name].accepts(address):
            return SOURCES[name](address, fields or FieldNames())
    known = ", ".join(f"{name} ({SOURCES[name].description})" for name in SOURCES.names())
    raise AnchorFoldError(f"{address} does not exist or is not a vector source. Supported sources: {known}.")


def split_name(name: str) -> tuple[str, int]:
    """Split the name of a file or an array into document and page; the page is 1 if the name contains none.

    Examples:
        >>> split_name("report.pdf/0003"), split_name("report_page_12"), split_name("report-p7")
        (('report.pdf', 3), ('report', 12), ('report', 7))
        >>> split_name("invoice-2024")
        ('invoice-2024', 1)
    """
    folder, _, last = name.rpartition("/")
    if folder and _NUMBER.fullmatch(last):
        return folder, int(last)
    match = _PAGE_SUFFIX.fullmatch(last)
    document = "/".join(part for part in (folder, match["document"]) if part) if match else ""
    return (document, int(match["page"])) if match and document else (name, 1)


def choose_field(given: str | None, likely: Iterable[str], present: Iterable[str], where: str) -> str | None:
    """Return the given field, which must exist; else the first likely one that exists; else None."""
    names = list(present)
    if given is not None and given not in names:
        raise AnchorFoldError(f"{where} has no field {given!r}: its fields are {', '.join(names)}.")
    return given or next((name for name in likely if name in names), None)


def page_number(value: object, where: str) -> int:
    """Convert the value of a field to a page number."""
    try:
        number: int = int(value)  # type: ignore[call-overload]
        return number
    except (TypeError, ValueError):
        raise AnchorFoldError(
            f"{where}: {value!r} is not a page number; name another field with --page-field."
        ) from None
