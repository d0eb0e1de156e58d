"""Tables of PostgreSQL with a column of vectors per page: `vector[]` or `halfvec[]` of pgvector, or `real[]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from anchorfold.errors import AnchorFoldError
from anchorfold.vectors.vector_source import (
    DOCUMENT_FIELDS,
    PAGE_FIELDS,
    PageFilter,
    VectorPage,
    VectorSource,
    choose_field,
    page_number,
)

if TYPE_CHECKING:
    from anchorfold.databases.postgres_connection import Address, Connection

VECTOR_TYPES = ("_vector", "_halfvec", "_float4", "_float8")
NAME_BATCH, VECTOR_BATCH = 4096, 16  # rows per request, without and with vectors
_DIGITS = str.maketrans(dict.fromkeys('{}[]"', " "))


class PostgresSource(VectorSource):
    """Rows of a table, given as collection, in the schema of the URL (`?schema=`) or in `public`."""

    description = "the URL of a PostgreSQL database, with the table as --collection"

    @classmethod
    def accepts(cls, address: str) -> bool:
        """Return whether this is a URL of PostgreSQL."""
        return address.startswith(("postgresql://", "postgres://"))

    @cached_property
    def _address(self) -> Address:
        from anchorfold.databases.postgres_connection import Address  # requires psycopg

        return Address(self.address)

    @property
    def identity(self) -> str:
        """The URL without password, and the table."""
        return f"{self._address.location}#{self.fields.collection}"

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A connection in a transaction that sees one state of the table."""
        from anchorfold.databases.postgres_connection import database_errors

        with database_errors(self._address), closing(self._address.connect()) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield connection

    def _columns(self, connection: Connection) -> dict[str, str]:
        """Types of the columns of the table."""
        if self.fields.collection is None:
            raise AnchorFoldError(f"{self._address.location} is a database: name a table with --collection.")
        rows = connection.execute(
            "SELECT attname, typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid WHERE attnum > 0 AND NOT "
            "attisdropped AND attrelid = to_regclass(quote_ident(%s))",
            (self.fields.collection,),
        ).fetchall()
        if not rows:
            raise AnchorFoldError(
                f"{self._address.location} has no table {self.fields.collection!r}: name one of the schema "
                f"{self._address.schema} or public."
            )
        return dict(rows)

    def __len__(self) -> int:
        with self._reading() as connection:
            self._columns(connection)
            row = connection.execute(f"SELECT count(*) FROM {_quoted(self.fields.collection)}").fetchone()
            return int(row[0]) if row else 0

    def _names(self, connection: Connection) -> tuple[str, str, str]:
        """Return SQL for the column of vectors, the document and the page number."""
        types = self._columns(connection)
        likely = [name for name, kind in types.items() if kind in VECTOR_TYPES]
        vectors = choose_field(self.fields.vectors, likely, types, self.identity)
        if vectors is None:
            raise AnchorFoldError(f"{self.identity} has no column of vectors (vector[] or halfvec[]).")
        document = choose_field(self.fields.document, DOCUMENT_FIELDS, types, self.identity)
        page = choose_field(self.fields.page, PAGE_FIELDS, types, self.identity)
        name = f"{_quoted(document)}::text" if document else "NULL"
        return _quoted(vectors), name, f"{_quoted(page)}::text" if page else "NULL"

    def _rows(self, connection: Connection) -> Iterator[tuple[str, str, int]]:
        """Yield place, document and page number of all rows."""
        _, document, page = self._names(connection)
        with connection.cursor("names") as cursor:
            cursor.execute(
                f"SELECT ctid::text, {document}, {page} FROM {_quoted(self.fields.collection)} ORDER BY ctid"
            )
            for row, (place, name, number) in enumerate(cursor, 1):
                default = row if document == "NULL" else 1
                parsed = default if page == "NULL" else page_number(number, self.identity)
                yield place, str(self.fields.collection if document == "NULL" else name), parsed

    def pages(self, is_needed: PageFilter) -> Iterator[VectorPage]:
        """Read the names of all rows, then the vectors of the needed ones in batches, of one snapshot."""
        with self._reading() as connection:
            column, _, _ = self._names(connection)
            needed = [row for row in self._rows(connection) if is_needed(*row[1:])]
            query = (
                f"SELECT ctid::text, array_length({column}, 1), {column}::text FROM {_quoted(self.fields.collection)} "
                "WHERE ctid = ANY(%s::tid[])"
            )
            for first in range(0, len(needed), VECTOR_BATCH):
                batch = needed[first : first + VECTOR_BATCH]
                rows = connection.execute(query, ([place for place, _, _ in batch],)).fetchall()
                stored = {place: (count, text) for place, count, text in rows}
                for place, name, parsed in batch:
                    count, text = stored[place]
                    if not count:
                        yield VectorPage(name, parsed, None, "no vectors")
                        continue
                    values = np.fromstring(text.translate(_DIGITS).replace(",", " "), np.float32, sep=" ")
                    yield VectorPage(name, parsed, values.reshape(count, -1))

    def search(self, queries: Sequence[np.ndarray], count: int) -> list[list[tuple[str, int]]]:
        """Return the best pages by MaxSim for each query: by VectorChord's operator, or in one pass over the table."""
        with self._reading() as connection:
            column, _, _ = self._names(connection)
            kind = self._columns(connection)[column.strip('"')].removeprefix("_")
            row = connection.execute("SELECT to_regoperator(%s)", (f"@#({kind}[],{kind}[])",)).fetchone()
            if row and row[0]:
                return self._search_by_operator(connection, queries, count, kind)
        names: list[tuple[str, int]] = []
        scores: list[list[float]] = []
        for page in self.pages(lambda *_: True):
            if page.vectors is not None:
                names.append((page.document, page.page))
                scores.append([float((page.vectors @ query.T).max(0).sum()) for query in queries])
        orders = np.argsort(-np.array(scores).reshape(-1, len(queries)), axis=0, kind="stable")[:count].T
        return [[names[row] for row in order] for order in orders.tolist()]

    def _search_by_operator(
        self, connection: Connection, queries: Sequence[np.ndarray], count: int, kind: str
    ) -> list[list[tuple[str, int]]]:
        """Search with `@#`, the negative MaxSim of document and query."""
        column, _, _ = self._names(connection)
        names = {place: (name, page) for place, name, page in self._rows(connection)}
        connection.execute("SET LOCAL enable_indexscan = off")  # an index of VectorChord is approximate
        query = (
            f"SELECT ctid::text FROM {_quoted(self.fields.collection)} WHERE array_length({column}, 1) > 0 "
            f"ORDER BY {column} @# %s::{kind}[] LIMIT %s"
        )
        results = []
        for tokens in queries:
            text = "{" + ",".join(f'"{row.tolist()}"' for row in tokens) + "}"
            results.append([names[place] for (place,) in connection.execute(query, (text, count))])
        return results


def _quoted(name: str | None) -> str:
    return '"' + str(name).replace('"', '""') + '"'
