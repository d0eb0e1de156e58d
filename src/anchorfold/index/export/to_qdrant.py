"""Into a Qdrant collection whose own MaxSim ranks pages as we do."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from anchorfold.errors import AnchorFoldError
from anchorfold.index.export.exporter import Exporter
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.store.snapshot import Snapshot

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
    snapshot: Snapshot,
    target: str | QdrantClient,
    collection: str = "anchorfold",
    progress: Callable[[int], None] | None = None,
) -> int:
    """Upload all pages that the collection lacks and drop those it should no longer hold; returns pages uploaded.

    Args:
        snapshot: one version of the index.
        target: a URL, a folder, ":memory:", or a client.
        collection: made if it does not exist.
        progress: told the number of pages seen so far.
    """
    client = connect(target) if isinstance(target, str) else target
    from qdrant_client import models

    try:
        _prepare(client, snapshot.settings, collection)
        uploaded, seen, current = 0, 0, set()
        owner = str(uuid.uuid5(uuid.NAMESPACE_URL, f"anchorfold:{snapshot.folder.resolve()}"))
        rows = _rows(snapshot, owner)
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


def _rows(snapshot: Snapshot, owner: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for page in snapshot.pages():
        vectors = page.vectors
        if vectors.size >= MAX_VALUES:
            raise AnchorFoldError(
                f"page {page.page} of {page.document} has {len(vectors)} vectors of dimension {vectors.shape[1]}, more "
                "than Qdrant takes for one point: index with a smaller ratio."
            )
        payload = {"document": page.document, "page": page.page, "index": owner}
        yield point_id(page.source, page.page, page.version.digest), vectors.tolist(), payload


def _prepare(client: QdrantClient, settings: IndexSettings, collection: str) -> None:
    from qdrant_client import models

    if client.collection_exists(collection):
        kind = client.get_collection(collection).config.params.vectors
        size = getattr(kind, "size", None)
        if size != settings.dim or getattr(kind, "multivector_config", None) is None:
            raise AnchorFoldError(
                f"the collection {collection!r} is not a multi-vector collection of dimension {settings.dim}: "
                "choose another name."
            )
        return
    half = settings.bits != 32
    client.create_collection(
        collection,
        vectors_config=models.VectorParams(
            size=settings.dim,
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
