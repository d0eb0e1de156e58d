"""What is known of all documents of one version of an index, by column, and the pages that a filter leaves."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

import numpy as np

from anchorfold.index.filters.values import BOOLEAN, DATE, FLOAT, INTEGER, TEXT, Value, is_stored_as, shown
from anchorfold.index.live import LivePages
from anchorfold.index.store.catalogue import Document
from anchorfold.index.store.metadata import BUILT_IN, Metadata, Plain

FEW_VALUES = 20  # of a column that is a facet
NO_FACETS = ("document", "title", "page", "pages", "modified")
MASKS = 16  # of filters that are remembered
EMPTY: dict[str, Plain] = {TEXT: "", DATE: "", INTEGER: 0, FLOAT: 0.0, BOOLEAN: False}
ARRAYS: dict[str, type] = {TEXT: object, DATE: object, INTEGER: np.int64, FLOAT: np.float64, BOOLEAN: np.bool_}


@dataclass(frozen=True)
class Where:
    """A filter over documents that are called otherwise than in the index: `names` by source; None filters nothing.

    A server does not tell the paths of its machine, nor lets them be guessed.
    """

    text: str | None
    names: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Facet:
    """A column with few values: how many documents have each, most first; `missing` have none."""

    column: str
    type: str
    values: Mapping[Value, int]
    missing: int


class Columns:
    """The columns of one version. Safe for threads.

    Args:
        live: the version.
        names: what documents are called, by source, if not as in the index.
    """

    def __init__(self, live: LivePages, names: Mapping[str, str] | None = None) -> None:
        self.live, self.names = live, names
        self.types: dict[str, str] = {**BUILT_IN, **live.column_types}
        self._arrays: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._masks: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()

    def name(self, version: Document) -> str:
        """What a document is called."""
        if self.names is None:
            return version.name
        return self.names.get(version.source) or os.path.basename(version.name)

    def check(self, where: str) -> None:
        """Refuse a filter that is wrong."""
        from anchorfold.index.filters.where import parse_where

        parse_where(where, self.types)

    def mask(self, where: str) -> np.ndarray:
        """`(rows,)` true for pages that a filter leaves, live or not."""
        from anchorfold.index.filters.where import parse_where

        with self._lock:
            if (known := self._masks.get(where)) is not None:
                return known
        condition = parse_where(where, self.types)
        # All columns but one are of documents, which are fewer than pages.
        if "page" in condition.columns():
            mask = condition.evaluate(self._of_rows).true
        else:
            mask = self._spread(condition.evaluate(self.of_documents).true)
        with self._lock:
            while len(self._masks) >= MASKS:
                del self._masks[next(iter(self._masks))]
            self._masks[where] = mask
        return mask

    def of_documents(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """`(numbers,)` values of a column by the number of the document, and where there are none."""
        with self._lock:
            if column not in self._arrays:
                kind = self.types[column]
                missing = np.ones(self.live.next_document, bool)
                values: np.ndarray = np.full(len(missing), EMPTY[kind], ARRAYS[kind])
                for number, value in self._plain(column):
                    values[number], missing[number] = value, False
                self._arrays[column] = values, missing
            return self._arrays[column]

    def _of_rows(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        if column == "page":
            pages = np.concatenate([np.zeros(0, np.int64), *(s.page for s in self.live.segments)]).astype(np.int64)
            return pages, np.zeros(len(pages), bool)
        values, missing = self.of_documents(column)
        return self._spread(values), self._spread(missing)

    def _spread(self, values: np.ndarray) -> np.ndarray:
        """Values of documents as those of their pages."""
        return np.concatenate([values[:0], *(values[s.document] for s in self.live.segments)])

    def _plain(self, column: str) -> Iterator[tuple[int, Plain]]:
        """What live documents have in a column, by number."""
        for number, version in self.live.documents.items():
            if version.live:
                value = self._value(number, version, column)
                if value is not None:
                    yield number, value

    def _value(self, number: int, version: Document, column: str) -> Plain | None:
        match column:
            case "document":
                return self.name(version)
            case "folder":
                return os.path.dirname(self.name(version)) or "."
            case "kind":
                return os.path.splitext(version.name)[1][1:].lower() or None
            case "pages":
                return version.pages
            case "modified":
                return _day(version.modified)
        metadata = self.live.metadata.get(number)
        if metadata is None:
            return None
        value = metadata.given.get(column)
        if value is None or not is_stored_as(value, self.types[column]):
            value = metadata.file.get(column)
        return value

    def metadata(self, number: int) -> dict[str, Value]:
        """What is known of a document besides its name, by column."""
        version = self.live.documents[number]
        known = self.live.metadata.get(number, Metadata())
        names = [name for name in BUILT_IN if name not in ("document", "page")]
        names += sorted(name for name in known.given if name in self.types and name not in BUILT_IN)
        values = ((name, self._value(number, version, name)) for name in names)
        return {name: shown(value, self.types[name]) for name, value in values if value is not None}

    @cached_property
    def documents(self) -> int:
        """Live ones."""
        return sum(version.live for version in self.live.documents.values())

    @cached_property
    def facets(self) -> list[Facet]:
        """Columns with few values that tell documents apart, those that people gave first."""
        facets = []
        for column in sorted(self.types, key=lambda name: name in BUILT_IN):
            kind = self.types[column]
            if column in NO_FACETS:
                continue
            counts = Counter(value for _, value in self._plain(column))
            missing = self.documents - counts.total()
            if 0 < len(counts) <= FEW_VALUES and len(counts) + bool(missing) > 1:
                ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
                facets.append(Facet(column, kind, {shown(value, kind): n for value, n in ranked}, missing))
        return facets


def _day(nanoseconds: int) -> str | None:
    """The day of a file's time, in UTC; None for one that is not known."""
    if nanoseconds <= 0:
        return None
    try:
        return datetime.fromtimestamp(nanoseconds / 1e9, UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return None
