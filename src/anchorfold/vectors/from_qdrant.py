"""A Qdrant collection with multi-vectors: of a server, or of a folder that its client keeps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.errors import AnchorFoldError
from anchorfold.index.export.to_qdrant import connect
from anchorfold.vectors.source import (
    DOCUMENT_FIELDS,
    PAGE_FIELDS,
    VectorPage,
    VectorSource,
    Wanted,
    choose_field,
    page_number,
)

NAMES, BATCH = 256, 16  # points a request, without and with their vectors


class QdrantSource(VectorSource):
    """Points are pages; their payload names document and page, else a point's id is its document."""

    what = "the address of a Qdrant server, or a folder of its client"

    @classmethod
    def claims(cls, address: str) -> bool:
        """An address of the web, or a folder with the client's files."""
        folder = Path(address)
        return address.startswith(("http://", "https://")) or (
            (folder / "meta.json").is_file() and (folder / "collection").is_dir()
        )

    @property
    def identity(self) -> str:
        """Where the server or folder is, and the collection."""
        address = self.address.rstrip("/") if "://" in self.address else os.path.abspath(self.address)
        return f"{address}/{self._collection}"

    @cached_property
    def _client(self) -> Any:
        try:
            return connect(self.address)
        except RuntimeError as error:  # its folder is in use
            raise AnchorFoldError(f"{self.address} cannot be opened: {error}") from error

    def _ask(self, question: str, *args: Any, **options: Any) -> Any:
        try:
            return getattr(self._client, question)(*args, **options)
        except AnchorFoldError:
            raise
        except Exception as error:
            why = (str(error) or type(error).__name__).splitlines()[0][:200]
            raise AnchorFoldError(
                f"Qdrant at {self.address} did not answer ({why}): run the command again to go on where it stopped."
            ) from error

    @cached_property
    def _collection(self) -> str:
        names = sorted(c.name for c in self._ask("get_collections").collections)
        name = self.fields.collection or (names[0] if len(names) == 1 else None)
        if name is None or name not in names:
            raise AnchorFoldError(
                f"{self.address} has the collections {', '.join(names) or '(none)'}: name one with --collection."
            )
        return name

    @cached_property
    def _vectors(self) -> str:
        """The name of the multi-vector; empty if it has none."""
        params = self._ask("get_collection", self._collection).config.params.vectors
        several = params if isinstance(params, dict) else {"": params}
        names = [key for key, vector in several.items() if vector.multivector_config is not None]
        name: str | None = self.fields.vectors
        if name is None and len(names) == 1:
            name = names[0]
        if name is None or name not in names:
            raise AnchorFoldError(
                f"the collection {self._collection} has {'several multi-vectors' if names else 'no such multi-vector'} "
                f"({', '.join(names) or 'none at all'}): name one with --vectors."
            )
        return name

    def __len__(self) -> int:
        return int(self._ask("count", self._collection, exact=True).count)

    def pages(self, wanted: Wanted) -> Iterator[VectorPage]:
        """In the order of the points' ids; vectors are asked for in small numbers, and of wanted pages alone."""
        vectors = [self._vectors] if self._vectors else True
        points = ((point, page) for point, page in self._names() if wanted(*page))
        while batch := dict(islice(points, BATCH)):
            records = self._ask("retrieve", self._collection, list(batch), with_payload=False, with_vectors=vectors)
            stored = {record.id: record.vector for record in records}
            for point, (document, page) in batch.items():
                vector = stored.get(point)
                vector = vector.get(self._vectors) if isinstance(vector, dict) else vector
                if vector is None:
                    yield VectorPage(document, page, None, f"the point {point} has no such vectors")
                else:
                    yield VectorPage(document, page, np.asarray(vector, np.float32))

    def _names(self) -> Iterator[tuple[Any, tuple[str, int]]]:
        first = self._ask("scroll", self._collection, limit=1, with_payload=True)[0]
        keys = list(first[0].payload or {}) if first else []
        document = choose_field(self.fields.document, DOCUMENT_FIELDS, keys, self.identity) if first else None
        page = choose_field(self.fields.page, PAGE_FIELDS, keys, self.identity) if first else None
        payload = [key for key in (document, page) if key is not None] or False
        offset: Any = None
        while True:
            records, offset = self._ask("scroll", self._collection, limit=NAMES, offset=offset, with_payload=payload)
            for record in records:
                values = record.payload or {}
                name = str(values.get(document, record.id)) if document else str(record.id)
                yield record.id, (name, page_number(values.get(page), f"point {record.id}") if page else 1)
            if offset is None:
                return
