"""Vectors of an index in PostgreSQL, fetched and verified, and ids of its pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anchorfold.databases.postgres_connection import Connection
from anchorfold.databases.postgres_filter import Condition
from anchorfold.databases.postgres_page import difference, page_damaged
from anchorfold.quantization.codec import Coding
from anchorfold.retrieval.fetched_pages import FetchedPages

FETCHED_PAGES = 1_000  # pages per request
BY_VERSION, BY_ID = "version_id", "id"
_BIG_ENDIAN = np.dtype(">i8")  # of bigint


def page_ids(connection: Connection, condition: Condition | None) -> np.ndarray:
    """Return the `(n,)` ids of live pages with vectors, that meet a condition on `live_pages`, in ascending order."""
    if condition is None:  # without a join with documents
        query = "SELECT p.id FROM pages p JOIN versions v ON v.id = p.version_id WHERE v.live AND p.vectors > 0"
    else:
        query = f"SELECT page_id AS id FROM live_pages WHERE vectors > 0 AND {condition[0]}"
    parameters = () if condition is None else condition[1]
    return np.sort(_numbers(connection, f"SELECT string_agg(int8send(id), '') FROM ({query}) p", parameters))


def version_states(connection: Connection) -> dict[int, int]:
    """Return the state of each live version by id."""
    query = "SELECT string_agg(int8send(id) || int8send(state), '') FROM versions WHERE live"
    pairs = _numbers(connection, query).reshape(-1, 2).tolist()
    return dict(pairs)


def _numbers(connection: Connection, query: str, parameters: Sequence[Any] = ()) -> np.ndarray:
    """Return the numbers that a query concatenates, in one value instead of a row each."""
    (packed,) = connection.execute(query, parameters, binary=True).fetchone() or (None,)
    return np.frombuffer(packed or b"", _BIG_ENDIAN).astype(np.int64)


def count_vectors(connection: Connection, column: str, ids: Sequence[int]) -> int:
    """Return the number of vectors of pages, given by `BY_ID` or `BY_VERSION`."""
    query = f"SELECT coalesce(sum(vectors), 0)::bigint FROM pages WHERE {column} = ANY(%s) AND vectors > 0"
    row = connection.execute(query, (list(ids),)).fetchone()
    return int(row[0]) if row else 0


def fetch_pages(connection: Connection, location: str, coding: Coding, column: str, ids: Sequence[int]) -> FetchedPages:
    """Return pages, given by `BY_ID` or `BY_VERSION`.

    Raises:
        DamagedError: a page does not match its checksum.
    """
    total = count_vectors(connection, column, ids)
    return FetchedPages.of(_rows(connection, location, coding, column, ids), coding, total)


def _rows(
    connection: Connection, location: str, coding: Coding, column: str, ids: Sequence[int]
) -> Iterator[tuple[int, int, int, bytes, bytes]]:
    """Yield id, version id, page, codes and scales of pages in ascending order of ids."""
    query = (
        "SELECT id, version_id, page, vectors, checksum, codes, scales, provenance FROM pages "
        f"WHERE {column} = ANY(%s) AND vectors > 0 ORDER BY id"
    )
    with connection.cursor("vectors", binary=True) as cursor:
        cursor.itersize = FETCHED_PAGES
        cursor.execute(query, (list(ids),))
        for identity, version, page, vectors, checksum, *columns in cursor:
            if (reason := difference(coding, vectors, columns, checksum)) is not None:
                name = connection.execute("SELECT document FROM live_documents WHERE version_id = %s", (version,))
                raise page_damaged(location, (name.fetchone() or ("a document",))[0], page, reason)
            yield identity, version, page, columns[0], columns[1]
