import base64
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from anchorfold import AnchorFold, Index
from anchorfold.errors import AnchorFoldError
from anchorfold.exporters import CollectionSize, to_qdrant
from anchorfold.exporters.sizing import QUANTIZATION_BITS
from anchorfold.page import EncodedPage
from anchorfold.quantization.codec import BITS
from anchorfold.retrieval.embedded_store import EmbeddedStore
from tests.number_reader import DIM, NumberReader, write_pdf
from tests.storage.page_rows import page_row
from tests.text_pages import write_text_pdf

qdrant_client = pytest.importorskip("qdrant_client")


@pytest.fixture
def index(tmp_path):
    write_pdf(tmp_path / "docs/a.pdf", [1, 2, 3])
    write_pdf(tmp_path / "docs/b.pdf", list(range(20, 60)))
    index = Index.create(tmp_path / "my.index", NumberReader(), AnchorFold(ratio=0.3))
    index.add(tmp_path / "docs")
    return index


def test_npz_can_be_read_with_numpy(index, tmp_path):
    assert index.export("npz", tmp_path / "my.npz") == 43
    data = np.load(tmp_path / "my.npz")
    assert data["vectors"].dtype == np.float16
    assert data["vectors"].shape == (index.info().vectors, DIM)
    for i in (0, 7, 42):
        vectors = data["vectors"][data["offsets"][i] : data["offsets"][i + 1]]
        stored = index.page(str(data["document"][i]), int(data["page"][i])).vectors.numpy()
        assert np.array_equal(vectors.astype(np.float32), stored)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("provenance", [True, False])
def test_vectors_of_any_number_of_bits_are_exported_decoded(tmp_path, bits, provenance):
    index = Index.create(tmp_path / "my.index", NumberReader(), AnchorFold(ratio=0.3), bits=bits, provenance=provenance)
    index.add(write_pdf(tmp_path / "a.pdf", [1, 2, 3]))
    for to in ("npz", "parquet"):
        assert index.export(to, tmp_path / f"my.{to}") == 3
    vectors = np.load(tmp_path / "my.npz")["vectors"].astype(np.float32)
    rows = pq.read_table(tmp_path / "my.parquet").to_pylist()
    assert np.array_equal(vectors, np.concatenate([np.array(row["vectors"], np.float32) for row in rows]))
    store = EmbeddedStore.open(index.path)
    stored = store.read(lambda snapshot: np.concatenate([page.vectors for page in snapshot.pages()]))
    assert np.allclose(vectors, stored, atol=2e-3)
    assert [len(row["groups"]) for row in rows] == [24 if provenance else 0] * 3
    client = qdrant_client.QdrantClient(":memory:")
    assert index.export("qdrant", client, collection="pages") == 3


def test_parquet_contains_groups(index, tmp_path):
    assert index.export("parquet", tmp_path / "my.parquet") == 43
    row = pq.read_table(tmp_path / "my.parquet").slice(5, 1).to_pylist()[0]
    stored = index.page(row["document"], row["page"])
    assert np.array_equal(np.array(row["vectors"], np.float32), stored.vectors.numpy())
    assert row["groups"] == stored.encoded.groups.tolist()
    assert row["full"] == 24


@pytest.mark.parametrize("to", ["npz", "parquet"])
def test_a_failed_export_leaves_no_file(index, tmp_path, to):
    with pytest.raises(AnchorFoldError, match="cannot be written"):
        index.export(to, tmp_path / "nowhere" / "x")
    assert not (tmp_path / "nowhere").exists()


def test_an_unknown_target(index):
    with pytest.raises(AnchorFoldError, match="npz, parquet, qdrant"):
        index.export("floppy", "a:")


class TestQdrant:
    def ranking(self, client, query):
        points = client.query_points("pages", query=query.tolist(), limit=10).points
        return [(p.payload["document"], p.payload["page"]) for p in points], [p.score for p in points]

    def test_maxsim_of_qdrant_gives_the_same_ranking(self, index):
        client = qdrant_client.QdrantClient(":memory:")
        assert index.export("qdrant", client, collection="pages") == 43
        for number in (2, 33, 59):
            (query,) = index.encoder.encode_queries([f"page {number}"])
            hits = index.search(f"page {number}", top_k=10)
            pages, scores = self.ranking(client, query)
            assert pages == [(h.document, h.page) for h in hits]
            assert scores == pytest.approx([h.score for h in hits], rel=2e-3)

    def test_an_export_resumes_and_follows_the_index(self, index, tmp_path, monkeypatch):
        client = qdrant_client.QdrantClient(":memory:")
        real, calls = client.upsert, []

        def breaks(*arguments, **options):
            calls.append(1)
            if len(calls) == 2:
                raise ConnectionError("connection reset")
            return real(*arguments, **options)

        monkeypatch.setattr(client, "upsert", breaks)
        with pytest.raises(AnchorFoldError, match="run the command again"):
            index.export("qdrant", client, collection="pages")
        assert client.count("pages").count == to_qdrant.BATCH
        assert index.export("qdrant", client, collection="pages") == 43 - to_qdrant.BATCH
        assert index.export("qdrant", client, collection="pages") == 0
        write_pdf(tmp_path / "docs/a.pdf", [7])
        index.add(tmp_path / "docs")
        assert index.export("qdrant", client, collection="pages") == 1
        assert client.count("pages").count == 41

    def test_points_have_text_metadata_and_a_thumbnail_reference(self, tmp_path):
        write_text_pdf(tmp_path / "docs/a.pdf", [(1, "Net   revenue\nby region"), (2, "x" * 900)])
        write_pdf(tmp_path / "docs/scan.pdf", [3])
        index = Index.create(tmp_path / "my.index", NumberReader(), AnchorFold(ratio=0.3))
        index.add(tmp_path / "docs", metadata=lambda path: {"year": 2024} if path.stem == "a" else None)
        client = qdrant_client.QdrantClient(":memory:")
        index.export("qdrant", client, collection="pages", thumbnails=True)
        points, _ = client.scroll("pages", limit=10)
        payloads = {(Path(p.payload["document"]).name, p.payload["page"]): p.payload for p in points}
        first, second, scan = payloads["a.pdf", 1], payloads["a.pdf", 2], payloads["scan.pdf", 1]
        assert (first["text"], first["metadata"], first["pages"]) == ("Net revenue by region", {"year": 2024}, 2)
        assert len(second["text"]) == to_qdrant.SNIPPET
        assert (scan["text"], scan["metadata"]) == ("", {"title": "scan"})  # Pillow writes the title
        hit = index.search("page 1", top_k=1)[0]
        source = hit.source
        assert first["thumbnail"] == f"api/pages/{hit.page_id}/thumbnail"
        data = base64.b64decode(first["thumbnail_data"].removeprefix("data:image/webp;base64,"))
        assert data == index.page_at(source, 1).thumbnail

    def test_payloads_are_updated_and_foreign_keys_preserved(self, index):
        client = qdrant_client.QdrantClient(":memory:")
        index.export("qdrant", client, collection="pages")
        ids = [point.id for point in client.scroll("pages", limit=50)[0]]
        client.set_payload("pages", {"theirs": 1}, ids)
        index.set_metadata({"year": 2024}, documents="*a.pdf")
        assert index.export("qdrant", client, collection="pages") == 0
        years = [point.payload["metadata"].get("year") for point in client.scroll("pages", limit=50)[0]]
        assert (years.count(2024), years.count(None)) == (3, 40)
        assert all(p.payload["theirs"] == 1 and "thumbnail_data" not in p.payload for p in client.scroll("pages")[0])

    @pytest.mark.parametrize(("name", "bits"), QUANTIZATION_BITS.items())
    def test_quantization_and_its_size(self, index, name, bits):
        client, sizes = qdrant_client.QdrantClient(":memory:"), list[CollectionSize]()
        index.export("qdrant", client, collection="pages", quantization=name, announce=sizes.append)
        vectors = client.get_collection("pages").config.params.vectors
        assert to_qdrant._quantization_name(vectors.quantization_config) == name
        assert (vectors.hnsw_config.m, vectors.on_disk) == (0, True)
        components = index.info().vectors * DIM
        assert (sizes[0].vectors, sizes[0].quantized) == (components * 2, components * bits // 8)
        payloads = [len(json.dumps(p.payload)) for p in client.scroll("pages", limit=50)[0]]
        assert sizes[0].payload == pytest.approx(sum(payloads), rel=0.5)
        index.export("qdrant", client, collection="pages", quantization=name)
        other = "scalar" if name != "scalar" else "turbo2"
        with pytest.raises(AnchorFoldError, match=f"exists without {other} quantization: choose another name"):
            index.export("qdrant", client, collection="pages", quantization=other)

    def test_an_unknown_quantization(self, index, monkeypatch):
        client = qdrant_client.QdrantClient(":memory:")
        with pytest.raises(AnchorFoldError, match="no quantization 'product': choose one of scalar, binary, turbo4"):
            index.export("qdrant", client, quantization="product")
        monkeypatch.delattr(qdrant_client.models, "TurboQuantization")  # an older client
        with pytest.raises(AnchorFoldError, match="does not offer TurboQuant: pip install -U qdrant-client"):
            index.export("qdrant", client, quantization="turbo4")

    def test_points_of_other_sources_are_not_changed(self, index):
        client = qdrant_client.QdrantClient(":memory:")
        index.export("qdrant", client, collection="pages")
        models = qdrant_client.models
        client.upsert("pages", [models.PointStruct(id=5, vector=[[1.0] * DIM], payload={"theirs": 1})])
        index.remove("a.pdf")
        index.export("qdrant", client, collection="pages")
        assert client.count("pages").count == 41

    def test_a_collection_of_another_kind_is_refused(self, index):
        client = qdrant_client.QdrantClient(":memory:")
        models = qdrant_client.models
        client.create_collection("pages", models.VectorParams(size=8, distance=models.Distance.DOT))
        with pytest.raises(AnchorFoldError, match="choose another name"):
            index.export("qdrant", client, collection="pages")

    def test_a_page_beyond_the_limit_of_qdrant_is_an_error(self, index, monkeypatch):
        monkeypatch.setattr(to_qdrant, "QDRANT_MAX_VALUES", 100)
        with pytest.raises(AnchorFoldError, match="smaller ratio"):
            index.export("qdrant", qdrant_client.QdrantClient(":memory:"), collection="pages")

    def test_a_local_folder(self, index, tmp_path):
        assert index.export("qdrant", str(tmp_path / "q"), collection="pages") == 43
        client = qdrant_client.QdrantClient(path=str(tmp_path / "q"))
        assert client.count("pages").count == 43


def test_pages_without_vectors_are_not_exported(index, tmp_path):
    store = EmbeddedStore.open(index.path)
    with store.writing():
        store.append([page_row(9, encoded=None, problem="damaged")])
    assert index.export("npz", tmp_path / "my.npz") == 43
    assert isinstance(index.page("a.pdf", 1).encoded, EncodedPage)
    assert torch.isfinite(index.page("a.pdf", 1).vectors).all()
