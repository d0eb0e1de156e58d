"""Into a Qdrant collection whose own MaxSim ranks pages as we do."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from anchorfold.errors import AnchorFoldError
from anchorfold.index.export.exporter import Exporter
from anchorfold.index.store.schema import vectors_of
from anchorfold.index.store.table import PageTable

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

BATCH = 32
MAX_VALUES = 1_048_576  # Qdrant's limit: rows x dim of one multi-vector


def connect(url: str) -> QdrantClient:
    """A client of a server (http://...), of a local folder (a path), or in memory (":memory:")."""
    try:
        from qdrant_client import QdrantClient
    except ImportError as error:
        raise AnchorFoldError("exporting to Qdrant needs its client: pip install 'anchorfold[qdrant]'.") from error
    if url == ":memory:":
        return QdrantClient(":memory:")
    if "://" in url:
        return QdrantClient(url=url, api_key=os.environ.get("QDRANT_API_KEY"), timeout=60)
    return QdrantClient(path=url)


def point_id(source: str, page: int, digest: str) -> str:
    """The same for the same page of the same file content, so that an upload can be taken up again."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"anchorfold:{source}:{page}:{digest}"))


def export(
    table: PageTable,
    target: str | QdrantClient,
    collection: str = "anchorfold",
    progress: Callable[[int], None] | None = None,
) -> int:
    """Upload all pages that the collection lacks and drop those it should no longer hold; returns pages uploaded.

    Args:
        table: the index.
        target: a URL, a folder, ":memory:", or a client.
        collection: made if it does not exist.
        progress: told the number of pages seen so far.
    """
    client = connect(target) if isinstance(target, str) else target
    from qdrant_client import models

    try:
        _prepare(client, table, collection)
        uploaded, seen, current = 0, 0, set()
        owner = str(uuid.uuid5(uuid.NAMESPACE_URL, f"anchorfold:{table.folder.resolve()}"))
        rows = _rows(table, owner)
        while batch := list(islice(rows, BATCH)):
            ids = [b[0] for b in batch]
            current |= set(ids)
            there = {str(r.id) for r in client.retrieve(collection, ids, with_payload=False, with_vectors=False)}
            points = [models.PointStruct(id=i, vector=v, payload=p) for i, v, p in batch if i not in there]
            if points:
                client.upsert(collection, points, wait=True)
            uploaded, seen = uploaded + len(points), seen + len(batch)
            if progress is not None:
                progress(seen)
        _drop_others(client, collection, owner, current)
    except AnchorFoldError:
        raise
    except Exception as error:
        why = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise AnchorFoldError(
            f"Qdrant at {target} did not take the upload ({why}): run the command again to go on where it stopped."
        ) from error
    return uploaded


def _rows(table: PageTable, owner: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for batch in table.encoded_pages(["source", "document", "page", "digest", "vectors", "scales"]):
        for row in range(batch.num_rows):
            vectors = vectors_of(batch, row).astype("float32")
            source, document, page, digest = (batch[c][row].as_py() for c in ("source", "document", "page", "digest"))
            if vectors.size >= MAX_VALUES:
                raise AnchorFoldError(
                    f"page {page} of {document} has {len(vectors)} vectors of dimension {vectors.shape[1]}, more than "
                    "Qdrant takes for one point: index with a smaller ratio."
                )
            yield point_id(source, page, digest), vectors.tolist(), {"document": document, "page": page, "index": owner}


def _prepare(client: QdrantClient, table: PageTable, collection: str) -> None:
    from qdrant_client import models

    if client.collection_exists(collection):
        found = client.get_collection(collection).config.params.vectors
        size = getattr(found, "size", None)
        if size != table.settings.dim or getattr(found, "multivector_config", None) is None:
            raise AnchorFoldError(
                f"the collection {collection!r} is not a multi-vector collection of dimension {table.settings.dim}: "
                "choose another name."
            )
        return
    half = table.settings.dtype != "float32"
    client.create_collection(
        collection,
        vectors_config=models.VectorParams(
            size=table.settings.dim,
            # Pages are unit vectors; queries may weigh their words, which a cosine would undo.
            distance=models.Distance.DOT,
            multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
            datatype=models.Datatype.FLOAT16 if half else models.Datatype.FLOAT32,
            hnsw_config=models.HnswConfigDiff(m=0),  # exact scan: a graph over multi-vectors costs more than it saves
        ),
    )


def _drop_others(client: QdrantClient, collection: str, owner: str, current: set[str]) -> None:
    """Delete what this index uploaded earlier and no longer holds; other points of the collection are not ours."""
    from qdrant_client import models

    ours = models.Filter(must=[models.FieldCondition(key="index", match=models.MatchValue(value=owner))])
    offset: Any = None
    stale: list[str] = []
    while True:
        records, offset = client.scroll(collection, ours, limit=1000, offset=offset, with_payload=False, with_vectors=False)  # fmt: skip  # noqa: E501
        stale += [str(r.id) for r in records if str(r.id) not in current]
        if offset is None:
            break
    if stale:
        client.delete(collection, models.PointIdsList(points=list(stale)))


EXPORTER = Exporter("qdrant", export, is_file=False, has_collections=True)
