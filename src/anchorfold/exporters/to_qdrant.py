"""Export pages to a Qdrant collection that ranks them by MaxSim as AnchorFold does.

Each point is a page. Its payload contains `document`, `page`, `pages`, the beginning of its `text`, the `metadata` of
its document, a `thumbnail` reference, and the `index` that it was uploaded from.
"""

from __future__ import annotations

import base64
import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from anchorfold.databases.qdrant_limits import QDRANT_MAX_VALUES
from anchorfold.databases.urls import keyring_password, without_password
from anchorfold.errors import AnchorFoldError
from anchorfold.exporters.exporter import CollectionSize, Exporter
from anchorfold.exporters.sizing import QUANTIZATION_BITS
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.page_content import PageContent
from anchorfold.storage.protocol import PageCollection

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

BATCH = 32
SNIPPET = 500  # characters of text per payload
SAMPLE = 100  # pages sampled to estimate the size of all payloads


def connect(url: str) -> QdrantClient:
    """Return a client of a server (http://...), a local folder (a path), or an in-memory database (":memory:").

    Raises:
        AnchorFoldError: qdrant-client is not installed, or the folder is in use.
    """
    try:
        from qdrant_client import QdrantClient
    except ImportError as error:
        raise AnchorFoldError("exporting to Qdrant needs its client: pip install 'anchorfold[qdrant]'.") from error
    if url == ":memory:":
        return QdrantClient(":memory:")
    if "://" in url:
        key = os.environ.get("QDRANT_API_KEY") or keyring_password(f"qdrant://{urlsplit(url).hostname}", "api_key")
        return QdrantClient(url=url, api_key=key, timeout=60)
    try:
        return QdrantClient(path=url)
    except RuntimeError as error:  # another client has locked the folder
        raise AnchorFoldError(f"{url} cannot be opened: {error}") from error


@contextmanager
def qdrant_errors(address: object) -> Iterator[None]:
    """Convert errors of the server and of the connection to AnchorFoldError."""
    from qdrant_client.common.client_exceptions import QdrantException
    from qdrant_client.http.exceptions import ApiException

    try:
        yield
    except (ApiException, QdrantException, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        shown = without_password(str(address))
        raise AnchorFoldError(f"Qdrant at {shown} failed ({reason}): run the command again to resume.") from error


def point_id(source: str, page: int, digest: str) -> str:
    """Return an id that is stable per page and file content, so that an interrupted upload can be resumed."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"anchorfold:{source}:{page}:{digest}"))


def export(
    index: PageCollection,
    target: str | QdrantClient,
    collection: str = "anchorfold",
    progress: Callable[[int], None] | None = None,
    quantization: str | None = None,
    thumbnails: bool = False,
    announce: Callable[[CollectionSize], None] | None = None,
) -> int:
    """Upload missing pages, delete pages that the index no longer contains, and return the number of uploaded pages.

    Args:
        index: one commit of the index.
        target: a URL, a folder, ":memory:", or a client.
        collection: name of the collection, which is created if it does not exist.
        progress: called with the number of pages processed so far.
        quantization: quantization of the copy that Qdrant searches: "scalar" (8 bits per component), "binary" (1), or
            TurboQuant ("turbo4", "turbo2", "turbo1"). The original vectors are stored on disk for rescoring.
        thumbnails: upload thumbnails as data URLs (`thumbnail_data`), not only references to them.
        announce: called with the estimated size of the collection before the upload starts.
    """
    client = connect(target) if isinstance(target, str) else target
    from qdrant_client import models

    with qdrant_errors(target):
        _prepare(client, index.settings, collection, quantization)
        if announce is not None:
            announce(collection_size(index, quantization, thumbnails))
        uploaded, seen, current = 0, 0, set()
        owner = str(uuid.uuid5(uuid.NAMESPACE_URL, f"anchorfold:{index.location}"))
        rows = _rows(index, owner, thumbnails)
        while batch := list(islice(rows, BATCH)):
            ids = [b[0] for b in batch]
            current |= set(ids)
            records = client.retrieve(collection, ids, with_payload=True, with_vectors=False)
            stored = {str(record.id): record.payload or {} for record in records}
            points = [models.PointStruct(id=i, vector=v.tolist(), payload=p) for i, v, p in batch if i not in stored]
            if points:
                client.upsert(collection, points, wait=True)
            _update_payloads(client, collection, [(i, p, stored[i]) for i, _, p in batch if i in stored])
            uploaded, seen = uploaded + len(points), seen + len(batch)
            if progress is not None:
                progress(seen)
        _delete_stale(client, collection, owner, current)
    return uploaded


def page_payload(page: PageContent, thumbnails: bool = False) -> dict[str, Any]:
    """Return the payload of a page; all keys but `thumbnail_data` are always present.

    Args:
        page: stored page.
        thumbnails: include the thumbnail as a data URL (`thumbnail_data`).
    """
    text, image = page.text, page.thumbnail
    payload: dict[str, Any] = {
        "document": page.document,
        "page": page.page,
        "pages": page.version.pages or None,  # unknown for existing vectors that were compressed
        "text": None if text is None else " ".join(text.split())[:SNIPPET],
        "metadata": page.metadata,
        "thumbnail": f"api/pages/{page.public_id}/thumbnail" if image else None,
    }
    if thumbnails and image:
        kind = "webp" if image[8:12] == b"WEBP" else "jpeg"
        payload["thumbnail_data"] = f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
    return payload


def collection_size(index: PageCollection, quantization: str | None = None, thumbnails: bool = False) -> CollectionSize:
    """Estimate the size of an index's pages in a collection, without Qdrant's overhead per point and segment."""
    settings = index.settings
    pages = vectors = 0
    for page in index.pages():
        pages, vectors = pages + 1, vectors + page.kept
    sample = [page_payload(page, thumbnails) for page in islice(index.pages(), SAMPLE)]
    measured = sum(len(json.dumps(payload)) for payload in sample)
    bits = 0 if quantization is None else QUANTIZATION_BITS[quantization]
    return CollectionSize(
        vectors=vectors * settings.dim * (4 if settings.bits == 32 else 2),
        quantized=vectors * settings.dim * bits // 8,
        payload=measured * pages // max(len(sample), 1),
    )


def _update_payloads(client: QdrantClient, collection: str, points: Sequence[tuple[str, Any, Any]]) -> None:
    """Update changed payloads of points (id, payload, stored payload); keys added by other clients are preserved."""
    from qdrant_client import models

    operations = [
        models.SetPayloadOperation(set_payload=models.SetPayload(payload=payload, points=[identity]))
        for identity, payload, stored in points
        if any(key not in stored or stored[key] != value for key, value in payload.items())
    ]
    if operations:
        client.batch_update_points(collection, operations, wait=True)


def _rows(index: PageCollection, owner: str, thumbnails: bool) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for page in index.pages():
        vectors = page.vectors
        if vectors.size >= QDRANT_MAX_VALUES:
            raise AnchorFoldError(
                f"page {page.page} of {page.document} has {len(vectors)} vectors of dimension {vectors.shape[1]}, more "
                "than Qdrant takes for one point: index with a smaller ratio."
            )
        payload = {**page_payload(page, thumbnails), "index": owner}
        yield point_id(page.source, page.page, page.version.digest), vectors, payload


def require_quantization(name: str) -> None:
    """Raise AnchorFoldError if a quantization is unknown or the installed client does not support it."""
    if name not in QUANTIZATION_BITS:
        raise AnchorFoldError(f"there is no quantization {name!r}: choose one of {', '.join(QUANTIZATION_BITS)}.")
    _quantization_config(name)


def _quantization_config(name: str | None) -> Any:
    """Return the Qdrant configuration of a quantization, with the quantized vectors in RAM."""
    from qdrant_client import models

    if name is None:
        return None
    if name == "scalar":
        config = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, quantile=0.99, always_ram=True)
        return models.ScalarQuantization(scalar=config)
    if name == "binary":
        return models.BinaryQuantization(binary=models.BinaryQuantizationConfig(always_ram=True))
    if not hasattr(models, "TurboQuantization"):
        raise AnchorFoldError(
            "the installed qdrant-client does not offer TurboQuant: pip install -U qdrant-client, or choose scalar or "
            "binary quantization."
        )
    bits = models.TurboQuantBitSize(f"bits{QUANTIZATION_BITS[name]}")
    return models.TurboQuantization(turbo=models.TurboQuantQuantizationConfig(bits=bits, always_ram=True))


def _quantization_name(config: Any) -> str | None:
    """Return the name of a collection's quantization; None if it has another kind or none."""
    if getattr(config, "turbo", None) is not None:
        return f"turbo{str(getattr(config.turbo.bits, 'value', 'bits4')).removeprefix('bits')}"
    return next((name for name in ("scalar", "binary") if getattr(config, name, None) is not None), None)


def _prepare(client: QdrantClient, settings: IndexSettings, collection: str, quantization: str | None) -> None:
    from qdrant_client import models

    if quantization is not None:
        require_quantization(quantization)
    quantization_config = _quantization_config(quantization)
    if client.collection_exists(collection):
        config = client.get_collection(collection).config
        kind = config.params.vectors
        size = getattr(kind, "size", None)
        if size != settings.dim or getattr(kind, "multivector_config", None) is None:
            raise AnchorFoldError(
                f"the collection {collection!r} is not a multi-vector collection of dimension {settings.dim}: "
                "choose another name."
            )
        quantized = kind.quantization_config or getattr(config, "quantization_config", None)
        if quantization is not None and _quantization_name(quantized) != quantization:
            raise AnchorFoldError(
                f"the collection {collection!r} exists without {quantization} quantization: choose another name, or "
                "change the collection in Qdrant and leave --quantization out."
            )
        return
    half = settings.bits != 32
    client.create_collection(
        collection,
        vectors_config=models.VectorParams(
            size=settings.dim,
            # Page vectors are normalized, but queries may weight their tokens, which cosine distance would undo.
            distance=models.Distance.DOT,
            multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
            datatype=models.Datatype.FLOAT16 if half else models.Datatype.FLOAT32,
            hnsw_config=models.HnswConfigDiff(m=0),  # exact scan: a graph over multi-vectors costs more than it saves
            quantization_config=quantization_config,
            on_disk=None if quantization_config is None else True,  # only rescoring reads the original vectors
        ),
    )


def _delete_stale(client: QdrantClient, collection: str, owner: str, current: set[str]) -> None:
    """Delete points that this index uploaded and no longer contains; points from other sources are not changed."""
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


EXPORTER = Exporter(
    "qdrant", export, is_file=False, has_collections=True, options=("quantization", "thumbnails", "announce")
)
