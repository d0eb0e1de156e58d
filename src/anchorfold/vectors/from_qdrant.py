"""Qdrant collections with multi-vectors, of a server or of a local folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.databases.urls import is_url
from anchorfold.errors import AnchorFoldError
from anchorfold.exporters.to_qdrant import connect, qdrant_errors
from anchorfold.vectors.vector_source import (
    DOCUMENT_FIELDS,
    PAGE_FIELDS,
    PageFilter,
    VectorPage,
    VectorSource,
    choose_field,
    page_number,
)

NAME_BATCH, VECTOR_BATCH = 256, 16  # points per request, without and with vectors


class QdrantSource(VectorSource):
    """Points are pages. Payload fields contain document and page; without them the document is the id of the point."""

    description = "the URL of a Qdrant server, or a local folder of its client"

    @classmethod
    def accepts(cls, address: str) -> bool:
        """Return whether this is a URL, or a folder with the files of the Qdrant client."""
        folder = Path(address)
        return address.startswith(("http://", "https://")) or (
            (folder / "meta.json").is_file() and (folder / "collection").is_dir()
        )

    @property
    def identity(self) -> str:
        """URL or absolute path, and the collection."""
        address = self.location.rstrip("/") if is_url(self.address) else os.path.abspath(self.address)
        return f"{address}/{self._collection}"

    @cached_property
    def _client(self) -> Any:
        return connect(self.address)

    def close(self) -> None:
        """Close the client: it locks a local folder. Later calls open another one."""
        if (client := self.__dict__.pop("_client", None)) is not None:
            client.close()

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        client = self._client
        with qdrant_errors(self.address):
            return getattr(client, method)(*args, **options)

    @cached_property
    def _collection(self) -> str:
        names = sorted(c.name for c in self._call("get_collections").collections)
        name = self.fields.collection or (names[0] if len(names) == 1 else None)
        if name is None or name not in names:
            raise AnchorFoldError(
                f"{self.location} has the collections {', '.join(names) or '(none)'}: name one with --collection."
            )
        return name

    @cached_property
    def _vectors(self) -> str:
        """The name of the multi-vector; empty for an unnamed one."""
        params = self._call("get_collection", self._collection).config.params.vectors
        by_name = params if isinstance(params, dict) else {"": params}
        names = [key for key, vector in by_name.items() if vector.multivector_config is not None]
        name: str | None = self.fields.vectors
        if name is None and len(names) == 1:
            name = names[0]
        if name is None or name not in names:
            raise AnchorFoldError(
                f"the collection {self._collection} has {'several multi-vectors' if names else 'no multi-vectors'} "
                f"({', '.join(names) or 'none'}): name one with --vectors-field."
            )
        return name

    def __len__(self) -> int:
        return int(self._call("count", self._collection, exact=True).count)

    def pages(self, is_needed: PageFilter) -> Iterator[VectorPage]:
        """Read the needed points in batches, ordered by id."""
        vectors = [self._vectors] if self._vectors else True
        points = ((point, page) for point, page in self._names() if is_needed(*page))
        while batch := dict(islice(points, VECTOR_BATCH)):
            records = self._call("retrieve", self._collection, list(batch), with_payload=False, with_vectors=vectors)
            stored = {record.id: record.vector for record in records}
            for point, (document, page) in batch.items():
                vector = stored.get(point)
                vector = vector.get(self._vectors) if isinstance(vector, dict) else vector
                if vector is None:
                    yield VectorPage(document, page, None, f"point {point} has no vectors")
                else:
                    yield VectorPage(document, page, np.asarray(vector, np.float32))

    def search(self, queries: Sequence[np.ndarray], count: int) -> list[list[tuple[str, int]]]:
        """Return the best pages by MaxSim of all stored vectors, for each query."""
        from qdrant_client import models

        # The local mode is always exact, and warns about the option.
        exact = models.SearchParams(exact=True) if "://" in self.address else None
        fields = [f for f in self._name_fields if f] or False
        results = []
        for query in queries:
            answer = self._call(
                "query_points", self._collection, query=query.tolist(), using=self._vectors or None, limit=count,
                search_params=exact, with_payload=fields,
            )  # fmt: skip
            results.append([self._name(point) for point in answer.points])
        return results

    @cached_property
    def _name_fields(self) -> tuple[str | None, str | None]:
        """The payload fields of the document and of the page number."""
        first = self._call("scroll", self._collection, limit=1, with_payload=True)[0]
        if not first:
            return None, None
        keys = list(first[0].payload or {})
        return (
            choose_field(self.fields.document, DOCUMENT_FIELDS, keys, self.identity),
            choose_field(self.fields.page, PAGE_FIELDS, keys, self.identity),
        )

    def _name(self, point: Any) -> tuple[str, int]:
        (document, page), values = self._name_fields, point.payload or {}
        name = str(values.get(document, point.id)) if document else str(point.id)
        return name, page_number(values.get(page), f"point {point.id}") if page else 1

    def _names(self) -> Iterator[tuple[Any, tuple[str, int]]]:
        fields = [key for key in self._name_fields if key is not None] or False
        offset: Any = None
        while True:
            records, offset = self._call(
                "scroll", self._collection, limit=NAME_BATCH, offset=offset, with_payload=fields
            )
            for record in records:
                yield record.id, self._name(record)
            if offset is None:
                return
