"""Tables of metadata: the first column is a path or a pattern, the others are metadata columns."""

from __future__ import annotations

import csv
import fnmatch
import io
import json
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorfold.documents.files import source_of
from anchorfold.errors import AnchorFoldError, MissingExtraError

PATTERN = re.compile(r"[*?[]")
SEPARATORS = (",", ";", "\t")
SAMPLE_LINES = 200  # that the separator is found from
EXCEL_HINT = "sep="  # a first line such as `sep=;`


@dataclass(frozen=True)
class TableRow:
    """A row: its `line` (from 1), the path or pattern of its documents, and its cells by column, None if empty."""

    line: int
    documents: str
    cells: Mapping[str, Any]


@dataclass(frozen=True)
class DocumentTable:
    """A table. If it is not `typed`, cells are text, and the type of a column is inferred from all of its cells."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    typed: bool

    def at(self, line: int) -> str:
        """Return the position of a line, for messages."""
        return f"{self.path}, line {line}" if self.path.suffix.lower() != ".parquet" else f"{self.path}, row {line}"


def read_table(path: str | Path) -> DocumentTable:
    """Read a table from a CSV file (comma, semicolon or tab), JSON lines or Parquet, by its extension."""
    path = Path(path)
    try:
        match path.suffix.lower():
            case ".jsonl" | ".ndjson":
                return _records_table(path, list(_json_records(path)))
            case ".parquet":
                try:
                    import pyarrow.parquet as pq
                except ImportError as error:
                    raise MissingExtraError("pyarrow (for Parquet files)", "parquet", error) from None
                return _records_table(path, list(enumerate(pq.read_table(path).to_pylist(), 1)))
            case ".csv" | ".tsv" | ".txt":
                return _csv_table(path)
    except UnicodeDecodeError as error:
        raise AnchorFoldError(f"{path} is not encoded in UTF-8.") from error
    except OSError as error:
        raise AnchorFoldError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    except ValueError as error:  # what readers of Parquet raise is one
        raise AnchorFoldError(f"{path} cannot be read: {' '.join(str(error).split())[:200]}.") from error
    raise AnchorFoldError(f"{path} is not a supported table: use .csv, .jsonl or .parquet.")


def _csv_table(path: Path) -> DocumentTable:
    text = path.read_text("utf-8-sig")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_separator(text), strict=True)
    rows: list[TableRow] = []
    header: list[str] | None = None
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if not any(stripped) or (header is None and stripped[0] == EXCEL_HINT):
                continue
            if header is None:
                header = stripped
                _require_columns(path, header)
                continue
            if len(stripped) > len(header):
                raise AnchorFoldError(
                    f"{path}, line {reader.line_num}: {len(stripped)} cells, but {len(header)} columns: "
                    "quote cells that contain the separator."
                )
            filled = dict(zip(header[1:], (cell or None for cell in stripped[1:]), strict=False))
            rows.append(TableRow(reader.line_num, _documents(path, reader.line_num, stripped[0]), filled))
    except csv.Error as error:
        raise AnchorFoldError(f"{path}, line {reader.line_num}: {error}.") from error
    if header is None:
        raise AnchorFoldError(f"{path} is empty: the first row must contain column names, beginning with the path.")
    if not rows:
        raise AnchorFoldError(f"{path} has no rows: below the column names, it needs one row per document or pattern.")
    return DocumentTable(path, tuple(header[1:]), tuple(rows), typed=False)


def _separator(text: str) -> str:
    """Return the separator of a CSV text: the one that splits most rows into at most as many cells as the header.

    Header cells may contain other separators, as in `path;cost (net, EUR)`. Ties go to the separator that comes first.
    """
    lines = text.lstrip("\r\n").splitlines()[:SAMPLE_LINES]
    if lines and lines[0].startswith(EXCEL_HINT) and lines[0][len(EXCEL_HINT) :][:1] in SEPARATORS:
        return lines[0][len(EXCEL_HINT)]

    def fit(separator: str) -> tuple[int, int]:
        header, *rows = csv.reader(lines, delimiter=separator)
        return sum(1 < len(row) <= len(header) for row in [header, *rows]), -len(header[0])

    try:
        return max(SEPARATORS, key=fit)
    except (csv.Error, ValueError, IndexError):  # the reader reports what is wrong
        return SEPARATORS[0]


def _json_records(path: Path) -> Iterator[tuple[int, Any]]:
    for line, text in enumerate(path.read_text("utf-8-sig").splitlines(), 1):
        if text.strip():
            try:
                yield line, json.loads(text)
            except ValueError as error:
                raise AnchorFoldError(f"{path}, line {line}: invalid JSON ({error}).") from error


def _records_table(path: Path, records: list[tuple[int, Any]]) -> DocumentTable:
    rows, columns = [], dict[str, None]()
    for line, record in records:
        if not isinstance(record, dict) or not record:
            raise AnchorFoldError(f"{path}, line {line}: not an object with a path and values.")
        key, *names = record
        rows.append(TableRow(line, _documents(path, line, record[key]), {name: record[name] for name in names}))
        columns.update(dict.fromkeys(names))
    if not rows:
        raise AnchorFoldError(f"{path} is empty.")
    _require_columns(path, ["path", *columns])
    return DocumentTable(path, tuple(columns), tuple(rows), typed=True)


def _require_columns(path: Path, header: list[str]) -> None:
    if len(header) < 2:
        raise AnchorFoldError(
            f"{path} has one column: the first is a path or a pattern, the others are metadata columns."
        )


def _documents(path: Path, line: int, cell: object) -> str:
    if not isinstance(cell, str) or not cell.strip():
        raise AnchorFoldError(f"{path}, line {line}: the first cell must be a path or a pattern.")
    return cell.strip()


class Names:
    """Finds the documents, source to name, that a row refers to, in constant time unless it is a pattern.

    A row is a name as given, a path (also relative to the folder of the table), a folder, or a pattern.
    """

    def __init__(self, documents: Mapping[str, str], folder: Path) -> None:
        self.folder = os.path.abspath(folder)
        self._exact: dict[str, set[str]] = {}
        self._texts: dict[str, tuple[str, ...]] = {}
        for source, name in documents.items():
            plain_source, plain_name = _composed(source), _composed(name)
            self._texts[source] = (plain_name, os.path.basename(plain_name), plain_source)
            for text in {*self._texts[source], *_above(plain_name), *_above(plain_source)}:
                self._exact.setdefault(text, set()).add(source)

    def matching(self, wanted: str) -> set[str]:
        """Return the sources that a row refers to."""
        wanted = _composed(wanted)
        inside = source_of(os.path.join(self.folder, wanted))
        spellings = {wanted, os.path.normpath(wanted), source_of(wanted), inside}
        sources = set[str]().union(*(self._exact.get(text, set()) for text in spellings))
        if PATTERN.search(wanted):
            as_given, from_table = (re.compile(fnmatch.translate(pattern)) for pattern in (wanted, inside))
            for source, (name, last, full) in self._texts.items():
                if as_given.match(name) or as_given.match(last) or from_table.match(full):
                    sources.add(source)
        return sources


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)  # macOS may store names decomposed, and people type them composed


def _above(path: str) -> Iterator[str]:
    """The folders that contain a path."""
    while (folder := os.path.dirname(path)) not in ("", path):
        yield folder
        path = folder
