"""The contract of a source of vectors, the register that finds one, and what sources share: how pages are named."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anchorfold._registry import Registry
from anchorfold.errors import AnchorFoldError
from anchorfold.index.store.folder import is_index

Wanted = Callable[[str, int], bool]  # of a document and a page
# Fields that are taken for the document's name and the page's number if nobody says which.
DOCUMENT_FIELDS = ("document", "document_name", "doc", "file", "filename", "file_name", "source", "path", "doc_id")
PAGE_FIELDS = ("page", "page_number", "page_num", "page_no", "page_id")
_MARKED_PAGE = re.compile(r"(?:(?P<document>.*?)[\W_]+)?(?:page|p)[\W_]*(?P<page>\d{1,9})", re.IGNORECASE | re.DOTALL)
_NUMBER = re.compile(r"\d{1,9}")


@dataclass(frozen=True)
class VectorPage:
    """A page of a source: `vectors (N, d)` as they are stored there, or the `problem` why they cannot be read."""

    document: str
    page: int
    vectors: np.ndarray | None
    problem: str | None = None


@dataclass(frozen=True)
class Fields:
    """Where in a source things are, as far as the user says: columns of a table, parts of a point.

    `vectors` the page's vectors, `document` its document's name, `page` its number; `collection` the table or
    collection of a database.
    """

    vectors: str | None = None
    document: str | None = None
    page: str | None = None
    collection: str | None = None


class VectorSource(ABC):
    """Pages of vectors that lie somewhere, read one after the other.

    Args:
        address: a path or URL as the user gave it.
        fields: where in it things are.
    """

    what: ClassVar[str]  # in a list of sources, such as "a folder of .npy files"

    def __init__(self, address: str, fields: Fields) -> None:
        self.address, self.fields = address, fields

    @classmethod
    @abstractmethod
    def claims(cls, address: str) -> bool:
        """Whether an address looks like one of these; nothing is opened yet."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The same for the same source, from wherever it is asked: an absolute path, a URL with its collection."""

    @abstractmethod
    def __len__(self) -> int:
        """Pages, for the progress line."""

    @abstractmethod
    def pages(self, wanted: Wanted) -> Iterator[VectorPage]:
        """All wanted pages, in an order that does not change; `wanted` is called once for every page of the source.

        No more than a few pages are in memory at a time, and vectors of unwanted ones are not read if that can be.
        """


_OURS = {
    "lance": "from_lance:LanceSource",
    "npy": "from_npy:NpySource",
    "npz": "from_npz:NpzSource",
    "parquet": "from_parquet:ParquetSource",
    "qdrant": "from_qdrant:QdrantSource",
    "safetensors": "from_safetensors:SafetensorsSource",
}
# A package that reads vectors from elsewhere names its class in this entry point group.
SOURCES: Registry[type[VectorSource]] = Registry(
    "anchorfold.vector_sources", "source of vectors", {name: f"anchorfold.vectors.{at}" for name, at in _OURS.items()}
)


def open_source(address: str, fields: Fields | None = None, kind: str | None = None) -> VectorSource:
    """The source at an address; `kind` is a name of `SOURCES`, found out by the address if None."""
    if kind is not None:
        return SOURCES[kind](address, fields or Fields())
    if is_index(address):
        raise AnchorFoldError(
            f"{address} is an index of anchorfold: export it (`anchorfold export {address} --to npz`) and compress "
            "that, or index its documents with another --ratio."
        )
    for name in SOURCES.names():
        source = SOURCES[name]
        if source.claims(address):
            return source(address, fields or Fields())
    known = ", ".join(f"{name} ({SOURCES[name].what})" for name in SOURCES.names())
    raise AnchorFoldError(f"{address} is not there, or no source of vectors that is known. These are: {known}.")


def split_name(name: str) -> tuple[str, int]:
    """The document and the page that the name of a file or an array means; the whole name and 1 if it says no page.

    >>> split_name("report.pdf/0003"), split_name("report_page_12"), split_name("report-p7")
    (('report.pdf', 3), ('report', 12), ('report', 7))
    >>> split_name("invoice-2024")
    ('invoice-2024', 1)
    """
    folder, _, last = name.rpartition("/")
    if folder and _NUMBER.fullmatch(last):
        return folder, int(last)
    marked = _MARKED_PAGE.fullmatch(last)
    if marked is None:
        return name, 1
    document = "/".join(part for part in (folder, marked["document"]) if part)
    return (document, int(marked["page"])) if document else (name, 1)


def choose_field(given: str | None, likely: Iterable[str], present: Iterable[str], where: str) -> str | None:
    """The field that the user named, which must be there; else the first likely one that is; else None."""
    names = list(present)
    if given is not None and given not in names:
        raise AnchorFoldError(f"{where} has no field {given!r}: it has {', '.join(names)}.")
    return given or next((name for name in likely if name in names), None)


def page_number(value: object, where: str) -> int:
    """A page's number from whatever a field holds."""
    try:
        number: int = int(value)  # type: ignore[call-overload]
        return number
    except (TypeError, ValueError):
        raise AnchorFoldError(f"{where}: {value!r} is not a page's number; name another field with --page.") from None
