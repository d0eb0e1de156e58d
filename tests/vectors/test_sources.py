"""All vector sources return the same pages and read only the needed ones."""

import io
import json
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from qdrant_client import QdrantClient, models
from safetensors.torch import save_file

from anchorfold import FullIndex, Index
from anchorfold.errors import AnchorFoldError
from anchorfold.testing.contracts import VectorSourceContract
from anchorfold.vectors import SOURCES, FieldNames, VectorPage, VectorSource, open_source
from anchorfold.vectors.compression_run import compress_source
from anchorfold.vectors.vector_source import split_name

DIM = 8
PAGES = {
    (document, page): np.random.default_rng(100 * page + len(document))
    .normal(size=(3 + 2 * page, DIM))
    .astype("float32")
    for document in ("a.pdf", "b/c.pdf")
    for page in (1, 2, 3)
}


def arrow_table(vectors_type=None, names=("document", "page")):
    vectors = pa.array([v.tolist() for v in PAGES.values()], vectors_type or pa.list_(pa.list_(pa.float32(), DIM)))
    return pa.table({names[0]: [d for d, _ in PAGES], names[1]: [p for _, p in PAGES], "vectors": vectors})


def write_npy(folder):
    for (document, page), vectors in PAGES.items():
        path = folder / "pages" / document / f"{page:04}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, vectors)
    return folder / "pages"


def npy_header(shape):
    """An array of float32 of this shape, of which the file has 512 bytes."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(512)


def write_members(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


def write_npz_of_pages(folder):
    arrays: dict[str, Any] = {f"{d}/{p}": v for (d, p), v in PAGES.items()}
    np.savez_compressed(folder / "pages.npz", **arrays)
    return folder / "pages.npz"


def write_npz_with_offsets(folder):
    offsets = np.cumsum([0, *map(len, PAGES.values())])
    documents, numbers = zip(*PAGES, strict=True)
    vectors = np.concatenate(list(PAGES.values()))
    np.savez_compressed(folder / "flat.npz", vectors=vectors, offsets=offsets, document=documents, page=numbers)
    return folder / "flat.npz"


def write_safetensors(folder):
    save_file({f"{d}/{p}": torch.from_numpy(v).bfloat16() for (d, p), v in PAGES.items()}, folder / "p.safetensors")
    return folder / "p.safetensors"


def write_parquet(folder):
    pq.write_table(arrow_table(), folder / "pages.parquet", row_group_size=2)
    return folder / "pages.parquet"


def write_parquet_folder(folder):
    (folder / "parts").mkdir()
    table = arrow_table(pa.large_list(pa.list_(pa.float16())), names=("file_name", "page_number"))
    for i in range(3):
        pq.write_table(table.slice(2 * i, 2), folder / "parts" / f"{i}.parquet")
    return folder / "parts"


def write_lance(folder):
    table = lancedb.connect(folder / "db").create_table("mine", arrow_table().slice(0, 4))
    table.add(arrow_table().slice(4))
    return folder / "db"


def write_lance_dataset(folder):
    return write_lance(folder) / "mine.lance"


def write_qdrant(folder):
    client = QdrantClient(path=str(folder / "qdrant"))
    config = models.VectorParams(
        size=DIM,
        distance=models.Distance.DOT,
        multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
    )
    client.create_collection("pages", vectors_config={"colpali": config})
    points = [
        models.PointStruct(id=i, vector={"colpali": v.tolist()}, payload={"document": d, "page": p, "more": "x" * 99})
        for i, ((d, p), v) in enumerate(PAGES.items())
    ]
    client.upsert("pages", points)
    client.close()
    return folder / "qdrant"


WRITERS = {
    "npy": write_npy,
    "npz": write_npz_of_pages,
    "npz with offsets": write_npz_with_offsets,
    "safetensors": write_safetensors,
    "parquet": write_parquet,
    "parquet folder": write_parquet_folder,
    "lance": write_lance,
    "lance dataset": write_lance_dataset,
    "qdrant": write_qdrant,
}


def every(*_):
    return True


@pytest.mark.parametrize("kind", WRITERS)
class TestEverySource(VectorSourceContract):
    @pytest.fixture
    def source(self, kind, tmp_path):
        return open_source(str(WRITERS[kind](tmp_path)))

    def test_vectors(self, kind, source):
        pages = list(source.pages(every))
        assert {(p.document, p.page) for p in pages} == set(PAGES)
        tolerance = 1e-6 if kind not in ("safetensors", "parquet folder") else 0.02
        for page in pages:
            np.testing.assert_allclose(page.vectors, PAGES[page.document, page.page], atol=tolerance)

    def test_identity_is_independent_of_the_working_directory(self, kind, source, tmp_path, monkeypatch):
        identity = source.identity
        if kind == "qdrant":
            source._client.close()  # one client a folder
        monkeypatch.chdir(tmp_path)
        assert open_source(str(Path(source.address).relative_to(tmp_path))).identity == identity


class TestNames:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("report.pdf/3", ("report.pdf", 3)),
            ("in/report_page_0012", ("in/report", 12)),
            ("report-p7", ("report", 7)),
            ("Report Page 7", ("Report", 7)),
            ("invoice-2024", ("invoice-2024", 1)),
            ("0003", ("0003", 1)),
            ("page-3", ("page-3", 1)),
            ("step3", ("step3", 1)),
            ("report.pdf/page_3", ("report.pdf", 3)),
        ],
    )
    def test_split_name(self, name, expected):
        assert split_name(name) == expected

    def test_field_names(self, tmp_path):
        pq.write_table(arrow_table(names=("report", "sheet")), tmp_path / "x.parquet")
        fields = FieldNames(vectors="vectors", document="report", page="sheet")
        pages = open_source(str(tmp_path / "x.parquet"), fields).pages(every)
        assert {(p.document, p.page) for p in pages} == set(PAGES)
        with pytest.raises(AnchorFoldError, match="no field 'titel': its fields are report, sheet, vectors"):
            list(open_source(str(tmp_path / "x.parquet"), FieldNames(document="titel")).pages(every))

    @pytest.mark.parametrize("kind", ["parquet", "lance"])
    def test_rows_without_names(self, tmp_path, kind):
        table = arrow_table().select(["vectors"])
        if kind == "parquet":
            pq.write_table(table, tmp_path / "x.parquet", row_group_size=4)
        else:
            lancedb.connect(tmp_path).create_table("x", table)
        pages = list(open_source(str(tmp_path / f"x.{kind}")).pages(every))
        assert [(p.document, p.page) for p in pages] == [("x", n) for n in range(1, 7)]
        np.testing.assert_allclose(np.asarray(pages[4].vectors), PAGES["b/c.pdf", 2])


class TestInvalidSources:
    def test_missing_source(self, tmp_path):
        with pytest.raises(AnchorFoldError, match=r"nowhere does not exist .*npy \(a folder of .npy files"):
            open_source("nowhere")

    def test_index_as_source(self, tmp_path):
        Index.create(tmp_path / "my.index", compressor=FullIndex())
        with pytest.raises(AnchorFoldError, match=r"is an AnchorFold index: export it"):
            open_source(str(tmp_path / "my.index"))

    def test_damaged_file_is_one_skipped_page(self, tmp_path):
        folder = write_npy(tmp_path)
        (folder / "a.pdf" / "0002.npy").write_bytes(b"\x93NUMPY nonsense")
        pages = {(p.document, p.page): p for p in open_source(str(folder)).pages(every)}
        assert "cannot be read" in str(pages["a.pdf", 2].problem)
        assert sum(p.vectors is not None for p in pages.values()) == 5

    def test_npy_header_larger_than_the_file(self, tmp_path):
        huge = npy_header((10**11, 128))
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "a.npy").write_bytes(huge)
        write_members(tmp_path / "pages.npz", {"a": huge})
        for name in ("folder", "pages.npz"):
            (page,) = open_source(str(tmp_path / name)).pages(every)
            assert page.vectors is None
            assert "its header states 51,200,000,000,000 bytes of data" in str(page.problem)
            with pytest.raises(AnchorFoldError, match=r"has no page with vectors .*51,200,000,000,000 bytes"):
                compress_source(open_source(str(tmp_path / name)), tmp_path / "my.index", FullIndex())

    @pytest.mark.parametrize("shape", ["(True, 128)", "((" * 50])
    def test_npy_header_that_is_no_shape(self, tmp_path, shape):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + bytes(512))
        (page,) = open_source(str(tmp_path)).pages(every)
        assert "a cannot be read (its header" in str(page.problem)

    def test_reasons_are_short(self, tmp_path):
        """NumPy quotes the whole header, or suggests to allow pickles."""
        (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", 6000) + b"(" * 3000 + b")" * 3000)
        (tmp_path / "b.npy").write_bytes(b"\x93NUMPY\2\0" + struct.pack("<I", 20_000) + b"(" * 20_000)
        for page in open_source(str(tmp_path)).pages(every):
            assert "cannot be read (" in str(page.problem)
            assert len(str(page.problem)) < 300
            assert "allow_pickle" not in str(page.problem)

    def test_npz_with_scalars(self, tmp_path):
        np.savez(tmp_path / "a.npz", vectors=np.ones((3, 4), np.float32), offsets=[0, 1, 3], model="nano")
        assert [page.page for page in open_source(str(tmp_path / "a.npz")).pages(every)] == [1, 2]
        np.savez(tmp_path / "b.npz", vectors=np.ones((3, 4), np.float32), offsets=3)
        with pytest.raises(AnchorFoldError, match="offsets have the shape"):
            list(open_source(str(tmp_path / "b.npz")).pages(every))

    @pytest.mark.parametrize("name", ["vectors", "offsets"])
    def test_npz_header_larger_than_the_file(self, tmp_path, name):
        good = {"vectors": npy_header((1, 128)), "offsets": npy_header((2,))}
        write_members(tmp_path / "flat.npz", {**good, name: npy_header((10**13, 1)[: 1 + (name == "vectors")])})
        with pytest.raises(AnchorFoldError, match=rf"flat.npz: {name} cannot be read \(its header states"):
            list(open_source(str(tmp_path / "flat.npz")).pages(every))

    def test_npy_named_npz(self, tmp_path):
        (tmp_path / "a.npz").write_bytes(npy_header((10**11, 128)))
        with pytest.raises(AnchorFoldError, match=r"a.npz cannot be read as a NumPy archive"):
            len(open_source(str(tmp_path / "a.npz")))

    def test_offsets_without_vectors(self, tmp_path):
        write_members(tmp_path / "a.npz", {"offsets": npy_header((2,))})
        with pytest.raises(AnchorFoldError, match="has offsets but no vectors"):
            list(open_source(str(tmp_path / "a.npz")).pages(every))

    def test_zip_header_larger_than_the_file(self, tmp_path):
        """The sizes in a zip directory are claims as well."""
        write_members(tmp_path / "a.npz", {"a": npy_header((10**7, 128))})
        data = (tmp_path / "a.npz").read_bytes()
        entry = data.index(b"PK\1\2") + 24  # of the uncompressed size in the central directory
        (tmp_path / "a.npz").write_bytes(data[:entry] + b"\xfe\xff\xff\xff" + data[entry + 4 :])
        (page,) = open_source(str(tmp_path / "a.npz")).pages(every)
        assert "its header states 5,120,000,000 bytes of data" in str(page.problem)

    def test_safetensors_header_larger_than_the_file(self, tmp_path):
        header = json.dumps({"a": {"dtype": "F32", "shape": [10**11, 128], "data_offsets": [0, 512 * 10**11]}}).encode()
        (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(512))
        with pytest.raises(AnchorFoldError, match=r"a.safetensors cannot be read as safetensors"):
            list(open_source(str(tmp_path / "a.safetensors")).pages(every))

    def test_pickles_are_refused(self, tmp_path):
        np.save(tmp_path / "a.npy", np.array([object()]), allow_pickle=True)
        (page,) = open_source(str(tmp_path)).pages(every)
        assert page.vectors is None

    def test_damaged_containers(self, tmp_path):
        for name in ("a.npz", "a.safetensors", "a.parquet"):
            (tmp_path / name).write_bytes(b"nonsense")
            with pytest.raises(AnchorFoldError, match=rf"{name} cannot be read"):
                list(open_source(str(tmp_path / name)).pages(every))

    def test_column_without_vectors(self, tmp_path):
        pq.write_table(pa.table({"a": [1], "b": [[0.5, 0.5]]}), tmp_path / "a.parquet")
        with pytest.raises(AnchorFoldError, match="no column contains lists of vectors"):
            list(open_source(str(tmp_path / "a.parquet")).pages(every))
        with pytest.raises(AnchorFoldError, match="the column b contains"):
            list(open_source(str(tmp_path / "a.parquet"), FieldNames(vectors="b")).pages(every))

    def test_rows_without_vectors(self, tmp_path):
        rows = [[[1.0, 2.0]], None, [], [[1.0], [1.0, 2.0]]]
        table = pa.table({"vectors": pa.array(rows, pa.list_(pa.list_(pa.float32())))})
        pq.write_table(table, tmp_path / "a.parquet")
        problems = [p.problem for p in open_source(str(tmp_path / "a.parquet")).pages(every)]
        assert problems == [None, "no vectors", "no vectors", "vectors of different dimensions"]

    def test_invalid_offsets(self, tmp_path):
        np.savez(tmp_path / "a.npz", vectors=np.ones((4, 2)), offsets=[0, 3, 7])
        with pytest.raises(AnchorFoldError, match="offsets do not match the 4 vectors"):
            list(open_source(str(tmp_path / "a.npz")).pages(every))

    def test_several_tables_or_collections(self, tmp_path):
        database = lancedb.connect(tmp_path / "db")
        for name in ("one", "two"):
            database.create_table(name, arrow_table())
        with pytest.raises(AnchorFoldError, match="the tables one, two"):
            list(open_source(str(tmp_path / "db")).pages(every))
        assert len(open_source(str(tmp_path / "db"), FieldNames(collection="two"))) == 6
        with pytest.raises(AnchorFoldError, match="the collections pages"):
            len(open_source(str(write_qdrant(tmp_path)), FieldNames(collection="other")))

    def test_collection_of_single_vectors(self, tmp_path):
        client = QdrantClient(path=str(tmp_path / "q"))
        config = models.VectorParams(size=DIM, distance=models.Distance.DOT)
        client.create_collection("single", vectors_config=config)
        client.close()
        with pytest.raises(AnchorFoldError, match="no multi-vectors"):
            list(open_source(str(tmp_path / "q")).pages(every))

    def test_unreachable_server(self):
        with pytest.raises(AnchorFoldError, match=r"Qdrant at .* failed"):
            len(open_source("http://127.0.0.1:9", FieldNames(collection="x")))


class OnePage(VectorSource):
    description = "one page"
    identity = "one"

    @classmethod
    def accepts(cls, address):
        return address.startswith("one:")

    def __len__(self):
        return 1

    def pages(self, is_needed):
        if is_needed("a", 1):
            yield VectorPage("a", 1, np.ones((3, 2), np.float32))


def test_registered_source():
    SOURCES.register("one", OnePage)
    try:
        (page,) = open_source("one:x").pages(every)
        assert page.document == "a"
    finally:
        SOURCES.unregister("one")


def test_safetensors_with_offsets(tmp_path):
    stacked = torch.from_numpy(np.concatenate(list(PAGES.values())))
    offsets = torch.tensor(np.cumsum([0, *map(len, PAGES.values())]))
    save_file({"vectors": stacked, "offsets": offsets}, tmp_path / "report.safetensors")
    source = open_source(str(tmp_path / "report.safetensors"))
    assert len(source) == len(PAGES)
    pages = list(source.pages(lambda _, page: page != 2))
    assert [(page.document, page.page) for page in pages] == [("report", number) for number in (1, 3, 4, 5, 6)]
    expected = list(PAGES.values())
    for page in pages:
        np.testing.assert_array_equal(page.vectors, expected[page.page - 1])
    save_file({"matrix": stacked, "offsets": offsets}, tmp_path / "other.safetensors")
    with pytest.raises(AnchorFoldError, match="has offsets but no vectors: name their array with --vectors-field"):
        list(open_source(str(tmp_path / "other.safetensors")).pages(lambda *_: True))


def test_lance_without_lancedb(tmp_path, monkeypatch):
    address = str(write_lance(tmp_path))
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(AnchorFoldError, match=r"pip install 'anchorfold\[lance\]'"):
        len(open_source(address))
