"""Layout of an index in a Qdrant collection, described for applications in `docs/guides/qdrant.md`.

Points have a payload field `type`. A `page` has the vectors `pages` (MaxSim over its vectors), `pooled` (their mean)
and `text` (BM25 weights). A `document` records the versions of a document and has no vectors; its id follows from its
public name, which is therefore unique. `index` and `leases` are in `qdrant_head`.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from anchorfold.databases.qdrant_engine import QdrantEngine, all_of, matches, models
from anchorfold.databases.qdrant_limits import QDRANT_MAX_VALUES
from anchorfold.databases.qdrant_text import SPARSE, term_weights
from anchorfold.errors import AnchorFoldError
from anchorfold.filters.values import BOOLEAN, DATE, FLOAT, FROM_FILE, INTEGER, TEXT, Plain
from anchorfold.page import EncodedPage
from anchorfold.storage.filter_sql import folder_of, kind_of
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.info import day_of
from anchorfold.storage.records import DocumentVersion, PageRow, PageText

PAGES, POOLED = "pages", "pooled"
REQUEST_VALUES = QDRANT_MAX_VALUES  # components of all vectors of one request: below the 32 MB that a server accepts
REQUEST_BYTES = 8 << 20  # of the payloads of one request
INDEXED = {
    "type": "keyword", "version": "keyword", "document_id": "integer", "live": "bool", "source": "keyword",
    "document": "keyword", "public_name": "keyword", "folder": "keyword", "public_folder": "keyword",
    "kind": "keyword", "title": "keyword", "author": "keyword", "language": "keyword", "page": "integer",
    "pages": "integer", "modified": "datetime",
}  # fmt: skip
METADATA_INDEXES = {TEXT: "keyword", INTEGER: "integer", FLOAT: "float", BOOLEAN: "bool", DATE: "datetime"}
HIT_FIELDS = [
    "document_id", "version", "source", "document", "public_name", "digest", "size", "modified_ns", "page", "pages",
    "metadata", "file_metadata",
]  # fmt: skip
ALWAYS_IN_RAM = {8: "scalar", 4: "turbo4", 2: "turbo2", 1: "turbo1"}  # quantization by the bits of the index
_ESCAPED = {"%": "%25", '"': "%22", "\\": "%5C"}  # which a quoted key of a Qdrant path cannot contain
_KEY_CHARACTERS = re.compile(r'[%"\\]')


@dataclass(frozen=True)
class VersionRecord:
    """A version of a document; `version` is its random key."""

    version: str
    digest: str
    size: int
    modified: int
    pages: int
    file_metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DocumentRecord:
    """A document with its versions, the newest last."""

    document_id: int
    source: str
    document: str
    public_name: str
    metadata: Mapping[str, Plain] = field(default_factory=dict)
    versions: tuple[VersionRecord, ...] = ()

    @property
    def id(self) -> str:
        """Id of the point."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"anchorfold document {self.public_name}"))

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> DocumentRecord:
        """From the payload of its point."""
        values = {name: payload[name] for name in cls.__dataclass_fields__}
        values["metadata"] = {decode_key(key): value for key, value in values["metadata"].items()}
        return cls(**{**values, "versions": tuple(VersionRecord(**version) for version in values["versions"])})

    def point(self) -> models.PointStruct:
        """Return the point of the document."""
        payload = {**asdict(self), "metadata": encode_keys(self.metadata), "type": "document"}
        payload["versions"] = [asdict(version) for version in self.versions]
        return models.PointStruct(id=self.id, vector={}, payload=payload)

    def find(self, digest: str) -> VersionRecord | None:
        """Return the version with a digest."""
        return next((version for version in self.versions if version.digest == digest), None)

    def with_version(self, version: VersionRecord) -> DocumentRecord:
        """Return the document with a version replaced, or added as the newest."""
        known = [v.version for v in self.versions]
        if version.version not in known:
            return replace(self, versions=(*self.versions, version))
        return replace(self, versions=tuple(version if v.version == version.version else v for v in self.versions))

    def document_version(self, version: VersionRecord, live: bool = True) -> DocumentVersion:
        """Return a version as other packages see it."""
        return DocumentVersion(
            int(version.version, 16), self.document_id, self.source, self.document, self.public_name, version.digest,
            version.size, version.modified, version.pages, live, self.metadata, version.file_metadata,
        )  # fmt: skip

    def page_fields(self, version: VersionRecord) -> dict[str, Any]:
        """Return the fields that all pages of a version share."""
        known = {**version.file_metadata, **self.metadata}
        return {
            "type": "page", "document_id": self.document_id, "version": version.version, "source": self.source,
            "document": self.document, "public_name": self.public_name, "folder": folder_of(self.document),
            "public_folder": folder_of(self.public_name), "kind": kind_of(self.document), "digest": version.digest,
            "size": version.size, "modified": day_of(version.modified), "modified_ns": version.modified,
            "pages": version.pages, **{name: known.get(name) for name in FROM_FILE},
            "metadata": encode_keys(self.metadata), "file_metadata": dict(version.file_metadata),
        }  # fmt: skip


def page_version(payload: Mapping[str, Any]) -> DocumentVersion:
    """Return the version of a document that a page belongs to, from its payload."""
    return DocumentVersion(
        int(payload["version"], 16), payload["document_id"], payload["source"], payload["document"],
        payload["public_name"], payload["digest"], payload["size"], payload["modified_ns"], payload["pages"], True,
        {decode_key(key): value for key, value in payload["metadata"].items()}, payload["file_metadata"],
    )  # fmt: skip


def point_id(version: str, page: int) -> str:
    """Return the id of a page: the same when it is uploaded again."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"anchorfold page {version} {page}"))


def page_point(
    settings: IndexSettings, record: DocumentRecord, version: VersionRecord, row: PageRow, live: bool, provenance: bytes
) -> models.PointStruct:
    """Return the point of a page."""
    payload = {
        **record.page_fields(version), "page": row.page, "live": live, "problem": row.problem, "vectors": 0,
        "full_vectors": 0, "provenance": base64.b64encode(provenance).decode() or None,
        "provenance_bytes": len(provenance), **thumbnail_fields(row.thumbnail),
        **text_fields(row.text if settings.text else None),
    }  # fmt: skip
    vectors: dict[str, Any] = {}
    if row.encoded is not None and len(row.encoded):
        stored = stored_vectors(settings, row.encoded)
        payload["vectors"], payload["full_vectors"] = len(stored), row.encoded.full
        vectors = {PAGES: stored.tolist(), POOLED: pooled(stored).tolist()}
    if settings.text and row.text is not None and (weights := term_weights(row.text.text)):
        vectors[SPARSE] = models.SparseVector(indices=list(weights), values=list(weights.values()))
    return models.PointStruct(id=point_id(version.version, row.page), vector=vectors, payload=payload)


def stored_vectors(settings: IndexSettings, page: EncodedPage) -> np.ndarray:
    """Return the `(m, dim)` vectors of a page in the precision of the collection."""
    kind = np.float32 if settings.bits == 32 else np.float16
    return np.asarray(page.vectors.float().numpy(), kind).astype(np.float32)


def pooled(vectors: np.ndarray) -> np.ndarray:
    """Return the `(dim,)` mean of vectors, for the selection of candidates."""
    mean: np.ndarray = vectors.mean(0)
    return mean


def text_fields(text: PageText | None) -> dict[str, Any]:
    """Return fields of the text of a page; `text` is null if it is unknown."""
    value = None if text is None else text.text
    return {"text": value, "ocr": text is not None and text.ocr, "text_bytes": len((value or "").encode())}


def thumbnail_fields(image: bytes) -> dict[str, Any]:
    """Return fields of a thumbnail, as a data URL."""
    kind = "webp" if image[8:12] == b"WEBP" else "jpeg"
    url = f"data:image/{kind};base64,{base64.b64encode(image).decode()}" if image else None
    return {"thumbnail": url, "thumbnail_bytes": len(image)}


def decode_bytes(value: str | None) -> bytes:
    """Return bytes of a base64 field or of a data URL."""
    return base64.b64decode((value or "").rpartition(",")[2])


def encode_keys(metadata: Mapping[str, Plain]) -> dict[str, Plain]:
    """Metadata with names of columns that a path can contain."""
    return {encode_key(name): value for name, value in metadata.items()}


def encode_key(name: str) -> str:
    """Return a name of a column in the payload: `%`, `"` and backslash are escaped.

    Examples:
        >>> encode_key('odd "name"')
        'odd %22name%22'
    """
    return _KEY_CHARACTERS.sub(lambda match: _ESCAPED[match[0]], name)


def decode_key(key: str) -> str:
    """Return the opposite of `encode_key`."""
    return re.sub("%(25|22|5C)", lambda match: chr(int(match[1], 16)), key)


def metadata_path(name: str) -> str:
    """Return the path of a metadata column in the payload."""
    return f'metadata."{encode_key(name)}"'


def require_size(row: PageRow) -> None:
    """Raise AnchorFoldError if a page has more vectors than Qdrant stores in one point."""
    if row.encoded is not None and row.encoded.vectors.numel() >= QDRANT_MAX_VALUES:
        count, dim = row.encoded.vectors.shape
        raise AnchorFoldError(
            f"page {row.page} of {row.document} has {count:,} vectors of dimension {dim:,}, and Qdrant stores fewer "
            f"than {QDRANT_MAX_VALUES:,} components per point: create the index with a smaller --ratio, or with --cap "
            f"{(QDRANT_MAX_VALUES - 1) // dim}."
        )


def batches(points: Sequence[models.PointStruct]) -> list[list[models.PointStruct]]:
    """Return points in requests that a server accepts."""
    requests: list[list[models.PointStruct]] = [[]]
    values = size = 0
    for point in points:
        payload = point.payload or {}
        own = sum(map(len, (point.vector or {}).get(PAGES, ())))
        data = len(payload.get("text") or "") + len(payload.get("thumbnail") or "") + 4 * len(payload.get("provenance") or "")  # fmt: skip  # noqa: E501
        if requests[-1] and (values + own > REQUEST_VALUES or size + data > REQUEST_BYTES):
            requests.append([])
            values = size = 0
        requests[-1].append(point)
        values, size = values + own, size + data
    return requests if requests[0] else []


def quantization_name(bits: int) -> str | None:
    """Return the quantization of an index with these bits; None for floats."""
    return ALWAYS_IN_RAM.get(bits)


def quantization_config(bits: int) -> Any:
    """Qdrant's configuration of the copy of the vectors that is searched; None for floats."""
    if bits >= 16:
        return None
    if bits == 8:
        return models.ScalarQuantization(
            scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8, quantile=0.99, always_ram=True)
        )
    if not hasattr(models, "TurboQuantization"):
        raise AnchorFoldError(
            f"the installed qdrant-client does not offer TurboQuant, which {bits} bits per vector component require: "
            "pip install -U qdrant-client, or create the index with 16 or 8 bits."
        )
    size = models.TurboQuantBitSize(f"bits{bits}")
    return models.TurboQuantization(turbo=models.TurboQuantQuantizationConfig(bits=size, always_ram=True))


def create_collection(engine: QdrantEngine, name: str, settings: IndexSettings) -> None:
    """Create the collection of an index with its payload indexes."""
    quantization = quantization_config(settings.bits)
    half = models.Datatype.FLOAT32 if settings.bits == 32 else models.Datatype.FLOAT16
    vectors = {
        # Queries may weight their tokens, which cosine distance would undo.
        PAGES: models.VectorParams(
            size=settings.dim, distance=models.Distance.DOT, datatype=half,
            multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
            hnsw_config=models.HnswConfigDiff(m=0),  # candidates come from the pooled vectors
            quantization_config=quantization, on_disk=None if quantization is None else True,
        ),
        POOLED: models.VectorParams(size=settings.dim, distance=models.Distance.DOT),
    }  # fmt: skip
    texts = {SPARSE: models.SparseVectorParams(modifier=models.Modifier.IDF)}
    with engine.client() as client:
        client.create_collection(
            name, vectors_config=vectors, sparse_vectors_config=texts, on_disk_payload=True,
            strict_mode_config=models.StrictModeConfig(enabled=False),  # sizes are not indexed
        )  # fmt: skip
        if not engine.is_local:
            for field_name, kind in INDEXED.items():
                client.create_payload_index(name, field_name, field_schema=kind, wait=True)


def index_columns(engine: QdrantEngine, columns: Mapping[str, str]) -> None:
    """Create payload indexes of metadata columns, by type."""
    for name, kind in columns.items():
        if not engine.is_local:
            engine.call("create_payload_index", metadata_path(name), field_schema=METADATA_INDEXES[kind], wait=True)


def of_type(kind: str) -> models.FieldCondition:
    """Return a condition on the type of a point."""
    return matches("type", kind)


def pages_of(versions: Sequence[str]) -> models.Filter:
    """Return a filter for all pages of versions."""
    return all_of(of_type("page"), matches("version", list(versions)))
