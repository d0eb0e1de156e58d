"""Tables of PostgreSQL with a column of vectors per page: `vector[]` or `halfvec[]` of pgvector, or `real[]`."""

from __future__ import annotations

from collections.abc import Iterator
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

    def pages(self, is_needed: PageFilter) -> Iterator[VectorPage]:
        """Read the names of all rows, then the vectors of the needed ones in batches, of one snapshot."""
        with self._reading() as connection:
            types = self._columns(connection)
            likely = [name for name, kind in types.items() if kind in VECTOR_TYPES]
            vectors = choose_field(self.fields.vectors, likely, types, self.identity)
            if vectors is None:
                raise AnchorFoldError(f"{self.identity} has no column of vectors (vector[] or halfvec[]).")
            table, column = _quoted(self.fields.collection), _quoted(vectors)
            document = choose_field(self.fields.document, DOCUMENT_FIELDS, types, self.identity)
            page = choose_field(self.fields.page, PAGE_FIELDS, types, self.identity)
            names = f"{_quoted(document)}::text" if document else f"'{self.fields.collection}'"
            numbers = f"{_quoted(page)}::text" if page else "NULL"
            needed: list[tuple[str, str, int]] = []
            with connection.cursor("names") as cursor:
                cursor.execute(f"SELECT ctid::text, {names}, {numbers} FROM {table} ORDER BY ctid")
                for row, (place, name, number) in enumerate(cursor, 1):
                    parsed = page_number(number, self.identity) if page else 1 if document else row
                    if is_needed(str(name), parsed):
                        needed.append((place, str(name), parsed))
            query = (
                f"SELECT ctid::text, array_length({column}, 1), {column}::text FROM {table} WHERE ctid = ANY(%s::tid[])"
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


def _quoted(name: str | None) -> str:
    return '"' + str(name).replace('"', '""') + '"'
