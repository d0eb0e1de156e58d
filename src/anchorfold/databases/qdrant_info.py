"""Counts, sizes, facets and verification of an index in Qdrant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from anchorfold.databases.qdrant_documents import QdrantDocuments
from anchorfold.databases.qdrant_engine import QdrantEngine, all_of, matches, models
from anchorfold.databases.qdrant_head import Head
from anchorfold.databases.qdrant_layout import (
    PAGES,
    DocumentRecord,
    VersionRecord,
    of_type,
    pages_of,
    quantization_name,
)  # fmt: skip
from anchorfold.databases.qdrant_records import groups, readable_pages
from anchorfold.filters.values import BUILT_IN, Plain, shown
from anchorfold.storage.checking import Damage
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.info import FEW_VALUES, NO_FACETS, Facet, IndexInfo

Live = Mapping[str, tuple[DocumentRecord, VersionRecord]]
SIZES = ("vectors", "full_vectors", "provenance_bytes", "thumbnail_bytes", "text_bytes")
COMPARED = (
    "document_id", "source", "document", "public_name", "digest", "size", "modified_ns", "pages", "metadata",
    "file_metadata",
)  # fmt: skip


def collection_info(engine: QdrantEngine, settings: IndexSettings, live: Live, head: Head) -> IndexInfo:
    """Count the live pages; `bytes` is what the engine reports."""
    visible = all_of(of_type("page"), none_of=[matches("version", head.hidden)] if head.hidden else [])

    s, sums, readable = settings, Counter[str](), 0
    for point in engine.scroll(visible, list(SIZES)):
        sums.update({name: point.payload[name] for name in SIZES})
        readable += point.payload["vectors"] > 0
        sums["pages"] += 1
    stored = engine.facet("version", all_of(of_type("page")), len(live) + len(head.hidden) + 500)
    layers = s.layers or {"window": [0, 0], "steps": 0}
    component = 4 if s.bits == 32 else 2
    quantized = 0 if s.bits >= 16 else s.bits / 8
    return IndexInfo(
        documents=sum(version.version in stored for _, version in live.values()), pages=readable,
        vectors=sums["vectors"], full_vectors=sums["full_vectors"], bytes=engine.stored_bytes(),
        vector_bytes=round(sums["vectors"] * s.dim * (component + quantized)),
        provenance_bytes=sums["provenance_bytes"],
        thumbnail_bytes=sums["thumbnail_bytes"], text_bytes=sums["text_bytes"],
        full_vector_bytes=sums["full_vectors"] * s.dim * 2,
        unreadable_pages=sums["pages"] - readable, model=s.model, method=s.method,
        settings={
            "fingerprint": s.fingerprint, "dim": s.dim, "bits": s.bits,
            "quantization": quantization_name(s.bits) or "none", "window": list(layers["window"]),
            "steps": layers["steps"], "text": ("with OCR" if s.ocr else "yes") if s.text else "no", **s.options,
        },
        columns={**BUILT_IN, **head.columns},
    )  # fmt: skip


def count_facets(live: Live, columns: Mapping[str, str], public: bool) -> list[Facet]:
    """Return columns with few values that distinguish documents, those given by users first."""
    types, facets = {**BUILT_IN, **columns}, []
    rows = []
    for record, version in live.values():
        fields: dict[str, Any] = {**record.page_fields(version), **record.metadata}
        rows.append({**fields, "folder": fields["public_folder" if public else "folder"]})
    for name in sorted(types, key=lambda name: name in BUILT_IN):
        if name in NO_FACETS:
            continue
        counts: Counter[Plain | None] = Counter(row.get(name) for row in rows)
        missing = counts.pop(None, 0)
        if 0 < len(counts) <= FEW_VALUES and len(counts) + bool(missing) > 1:
            ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            values = {shown(value, types[name]): count for value, count in ranked if value is not None}
            facets.append(Facet(name, types[name], values, missing))
    return facets


def check_collection(store: QdrantDocuments, fix: bool) -> list[Damage]:
    """Compare pages with their documents; with `fix`, delete orphans and write the fields of documents again.

    Call it while a lease is held: documents that are being written look like damage.
    """
    records = store.records()[0]
    versions = {v.version: (record, v) for record in records.values() for v in record.versions}
    damages: list[Damage] = []
    name = store.engine.address.collection
    orphans: Counter[str] = Counter()
    different: dict[str, str] = {}
    fields = ["version", "page", "vectors", *COMPARED]
    for point in store.engine.scroll(all_of(of_type("page")), fields):
        version = point.payload["version"]
        if version not in versions:
            orphans[version] += 1
            continue
        record, known = versions[version]
        expected = record.page_fields(known)
        if any(point.payload.get(field) != expected[field] for field in COMPARED):
            different[version] = record.document
    without = all_of(*readable_pages(), none_of=[models.HasVectorCondition(has_vector=PAGES)])
    damaged = [*store.engine.scroll(without, ["version", "page", "document"])]
    if orphans:
        text = f"{sum(orphans.values())} pages belong to no document"
        damages.append(Damage(name, text, repair="deleted" if fix else ""))
    if different:
        documents = tuple(sorted(set(different.values())))
        text = "pages differ from the entry of their document"
        damages.append(Damage(name, text, documents, "written again" if fix else ""))
    if damaged:
        documents = tuple(sorted({point.payload["document"] for point in damaged}))
        repair = "deleted: index these documents again" if fix else ""
        damages.append(Damage(name, f"{len(damaged)} pages have lost their vectors", documents, repair))
    if fix and damages:
        for keys in groups(orphans):
            store.engine.delete(pages_of(keys))
        for version in different:
            store.engine.set_payload(versions[version][0].page_fields(versions[version][1]), pages_of([version]))
        for points in groups(damaged):
            store.engine.delete(all_of(models.HasIdCondition(has_id=[point.id for point in points])))
        changed = {record.document_id for record, _ in versions.values()}
        store.commit(lambda h: h, changed)
    return damages
