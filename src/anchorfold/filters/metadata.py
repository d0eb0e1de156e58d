"""Metadata given by users (a mapping, a function of the path, or a table), validated before it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anchorfold.documents.files import unescape_path
from anchorfold.errors import AnchorFoldError
from anchorfold.filters.metadata_tables import DocumentTable, Names, read_table
from anchorfold.filters.values import (
    ARTICLES,
    BUILT_IN,
    DATE,
    EXAMPLES,
    FROM_FILE,
    TEXT,
    Plain,
    Value,
    column_type,
    common_type,
    fits,
    plain,
    read_cell,
    read_date,
    type_of,
    unboxed,
)

MAX_NAME = 64
RESERVED = {*BUILT_IN} - {*FROM_FILE} | {"score", "source"}  # hits have these two
Given = Mapping[str, Any] | Callable[[Path], Mapping[str, Any] | None] | str | Path


@dataclass(frozen=True)
class KnownColumns:
    """Metadata columns that an index has: their `types`, and the paths of documents with a value in a column."""

    types: Mapping[str, str]
    documents_with: Callable[[str], set[str]]


@dataclass(frozen=True)
class GivenValues:
    """Values by source and column (None removes one), types of the columns, and table rows that matched no document."""

    values: Mapping[str, Mapping[str, Plain | None]] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    unmatched: tuple[str, ...] = ()


@dataclass(frozen=True)
class MetadataReport:
    """The number of `documents` whose metadata changed, and table rows that matched no document."""

    documents: int
    unmatched: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Cell:
    """A value of a document, and its origin for messages."""

    source: str
    value: Value | None
    origin: str


def given_values(metadata: Given, documents: Mapping[str, str], known: KnownColumns) -> GivenValues:
    """Validate metadata of some documents, source to name.

    Raises:
        AnchorFoldError: a value cannot be stored, or contradicts the type of its column.
    """
    unmatched: tuple[str, ...] = ()
    if isinstance(metadata, (str, Path)):
        cells, unmatched = _table_cells(read_table(metadata), documents, known)
    elif callable(metadata):
        cells = _mapping_cells(
            {source: metadata(Path(unescape_path(source))) for source in documents}, documents, known
        )
    elif isinstance(metadata, Mapping):
        cells = _mapping_cells(dict.fromkeys(documents, metadata), documents, known)
    else:
        raise AnchorFoldError("metadata must be a mapping of column to value, a function of the path, or a path.")
    types = {
        column: kind for column, values in cells.items() if (kind := _column_type(column, values, known)) is not None
    }
    values: dict[str, dict[str, Plain | None]] = {}
    for column, column_cells in cells.items():
        for cell in column_cells:
            stored = None if cell.value is None else plain(cell.value, types[column])
            values.setdefault(cell.source, {})[column] = stored
    return GivenValues(values, types, unmatched)


def column_name(given: object, known: KnownColumns, where: str) -> str:
    """Return the stored name of a column: an existing column that differs only in case, or the name as given.

    Raises:
        AnchorFoldError: it is not a valid name.
    """
    if not isinstance(given, str) or not given.strip() or len(given.strip()) > MAX_NAME or not given.isprintable():
        raise AnchorFoldError(f"{where}: invalid column name {given!r}: use 1 to {MAX_NAME} printable characters.")
    name = given.strip()
    names = {other.lower(): other for other in (*BUILT_IN, *RESERVED, *known.types)}
    name = names.get(name.lower(), name)
    if name in RESERVED:
        raise AnchorFoldError(f"{where}: {name!r} is a reserved column: choose another name.")
    return name


def _mapping_cells(
    mappings: Mapping[str, Mapping[str, Any] | None], documents: Mapping[str, str], known: KnownColumns
) -> dict[str, list[_Cell]]:
    cells: dict[str, list[_Cell]] = {}
    names: dict[object, str] = {}
    for source, mapping in mappings.items():
        origin = f"metadata of {documents[source]}"
        if not isinstance(mapping, Mapping) and mapping is not None:
            raise AnchorFoldError(f"{origin}: expected a mapping of column to value, got {mapping!r}.")
        for key, value in (mapping or {}).items():
            if key not in names:
                names[key] = column_name(key, known, origin)
                _require_unique(names, key, origin)
            cells.setdefault(names[key], []).append(_Cell(source, unboxed(value), origin))
    return cells


def _require_unique(names: Mapping[Any, str], key: object, origin: str) -> None:
    """Refuse two names for one column."""
    twins = [other for other, name in names.items() if name.lower() == names[key].lower()]
    if len(twins) > 1:
        raise AnchorFoldError(
            f"{origin}: {twins[0]!r} and {twins[1]!r} are the same column: names are case-insensitive."
        )


def _table_cells(
    table: DocumentTable, documents: Mapping[str, str], known: KnownColumns
) -> tuple[dict[str, list[_Cell]], tuple[str, ...]]:
    """Filled cells of later rows take precedence. A column without a value for a document is removed from it."""
    names: dict[str, str] = {}
    for index, column in enumerate(table.columns):
        if column in table.columns[:index]:
            raise AnchorFoldError(f"{table.path}: column {column!r} occurs twice.")
        names[column] = column_name(column, known, str(table.path))
        _require_unique(names, column, str(table.path))
    readers = {column: _reader(table, column, names[column], known) for column in table.columns}
    names_of_rows = Names(documents, table.path.parent)
    rows: dict[str, dict[str, tuple[Any, str]]] = {}
    unmatched = []
    for row in table.rows:
        filled = {
            column: (readers[column](value, row.line), table.at(row.line))
            for column, value in row.cells.items()
            if value is not None
        }
        sources = names_of_rows.matching(row.documents)
        for source in sources:
            rows.setdefault(source, {}).update(filled)
        if not sources:
            unmatched.append(row.documents)
    cells: dict[str, list[_Cell]] = {
        names[column]: [_Cell(source, *filled.get(column, (None, ""))) for source, filled in rows.items()]
        for column in table.columns
    }
    return cells, tuple(unmatched)


def _reader(table: DocumentTable, column: str, name: str, known: KnownColumns) -> Callable[[Any, int], Value]:
    """Return a function that reads a cell: a column has one type, and that of an existing column takes precedence."""
    filled = [row.cells[column] for row in table.rows if row.cells.get(column) is not None]
    if table.typed:
        dates = filled and all(isinstance(value, str) and read_date(value) for value in filled)
        if dates and known_type(name, known) in (None, DATE):
            return lambda value, line: read_date(value) or value
        return lambda value, line: unboxed(value)
    kind, stored = column_type(filled), known_type(name, known)
    if stored == TEXT or (stored is not None and fits(kind, stored)):
        kind = stored

    def read(cell: Any, line: int) -> Value:
        value = read_cell(cell, kind)
        assert value is not None  # `column_type` has read it
        return value

    return read


def known_type(name: str, known: KnownColumns) -> str | None:
    """Return the type of a built-in column, or of a column of this index."""
    return BUILT_IN.get(name) or known.types.get(name)


def _column_type(column: str, cells: Sequence[_Cell], known: KnownColumns) -> str | None:
    """Return the type of a column with new values; None if there are none.

    Raises:
        AnchorFoldError: the values have several types, or another type than the column.
    """
    kinds: dict[str, _Cell] = {}
    for cell in cells:
        if cell.value is None:
            continue
        try:
            kinds.setdefault(type_of(cell.value), cell)
        except ValueError as error:
            raise AnchorFoldError(f"{cell.origin}: {column} {error}, got {_short(cell.value)}.") from error
    if not kinds:
        return None
    kind = common_type(kinds)
    if kind is None:
        (one, first), (other, second) = list(kinds.items())[:2]
        raise AnchorFoldError(
            f"{second.origin}: {column} is {ARTICLES[other]} ({_short(second.value)}), and {ARTICLES[one]} "
            f"({_short(first.value)}) elsewhere: use one type per column."
        )
    stored = known_type(column, known)
    if stored is None or fits(kind, stored):
        return stored or kind
    if column not in BUILT_IN and not known.documents_with(column) - {cell.source for cell in cells}:
        return kind  # no document keeps a value of the old type
    wrong = next(cell for cell in cells if cell.value is not None and not _could_be(cell.value, stored))
    raise AnchorFoldError(
        f"{wrong.origin}: {column} is {ARTICLES[stored]} in this index (such as {EXAMPLES[stored]}), got "
        f"{_short(wrong.value)}: choose another name, or use values of that type."
    )


def _could_be(value: Value, known: str) -> bool:
    return fits(type_of(value), known) or (isinstance(value, str) and read_cell(value, known) is not None)


def _short(value: object) -> str:
    text = repr(value) if not hasattr(value, "isoformat") else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
