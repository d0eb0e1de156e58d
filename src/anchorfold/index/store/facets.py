"""Metadata columns with few values, and the metadata that hits show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from anchorfold.index.filters.values import Value, shown
from anchorfold.index.store.filter_sql import column_sql, protected
from anchorfold.index.store.records import BUILT_IN, FROM_FILE, DocumentVersion, Plain

if TYPE_CHECKING:
    from anchorfold.index.store.snapshot import Snapshot

FEW_VALUES = 20  # of a column that is a facet
NO_FACETS = ("document", "title", "page", "pages", "modified")


@dataclass(frozen=True)
class Facet:
    """A column with few values: the number of documents with each, most frequent first; `missing` have none."""

    column: str
    type: str
    values: Mapping[Value, int]
    missing: int


def facets(snapshot: Snapshot, public: bool = False) -> list[Facet]:
    """Columns with few values that distinguish documents, those given by users first."""
    result = []
    types = snapshot.columns
    with protected(snapshot.connection):
        for name in sorted(types, key=lambda name: name in BUILT_IN):
            if name in NO_FACETS:
                continue
            column = column_sql(name, public)
            query = f"SELECT {column.sql} AS value, count(*) FROM live_documents GROUP BY value"
            counts = dict(snapshot.connection.execute(query, column.parameters).fetchmany(FEW_VALUES + 2))
            missing = counts.pop(None, 0)
            if 0 < len(counts) <= FEW_VALUES and len(counts) + bool(missing) > 1:
                ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
                values = {shown(bool(v) if types[name] == "boolean" else v, types[name]): n for v, n in ranked}
                result.append(Facet(name, types[name], values, missing))
    return result


def shown_metadata(version: DocumentVersion, types: Mapping[str, str], public: bool = False) -> dict[str, Value]:
    """The metadata of a document besides its name, by column, as Python values."""
    name = version.public_name if public else version.name
    values: dict[str, Plain | None] = {
        "folder": os.path.dirname(name) or ".",
        "kind": os.path.splitext(version.name)[1][1:].lower() or None,
        "pages": version.pages,
        "modified": _day(version.modified),
        **{column: version.metadata.get(column, version.file_metadata.get(column)) for column in FROM_FILE},
        **{column: version.metadata[column] for column in sorted(version.metadata) if column not in BUILT_IN},
    }
    return {
        column: shown(value, types[column]) for column, value in values.items() if value is not None and column in types
    }


def _day(nanoseconds: int) -> str | None:
    """The day of a file's time, in UTC; None if it is unknown."""
    if nanoseconds <= 0:
        return None
    try:
        return datetime.fromtimestamp(nanoseconds / 1e9, UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return None
