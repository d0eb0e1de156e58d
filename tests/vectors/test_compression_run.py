"""Compression of a source into an index or an export: streamed and resumable."""

import random
import time
import weakref
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from anchorfold import Index, SemanticClustering, compress_vectors
from anchorfold.backbones.weights import cache_folder
from anchorfold.compressors import FullIndex, Pooling1D
from anchorfold.errors import AnchorFoldError, LockedError, MismatchError
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage.database import is_index
from anchorfold.storage.lock import writer_lock
from anchorfold.vectors import FieldNames, VectorPage, VectorSource, compress_source, compression_run, open_source
from anchorfold.vectors.compression_target import choose_target
from tests import forked

DIM = 16


def vectors_of(number, tokens=30):
    return np.random.default_rng(number).normal(size=(tokens, DIM)).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    for number in range(12):
        path = tmp_path / "vectors" / "report.pdf" / f"{number + 1}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, vectors_of(number))
    return tmp_path / "vectors"


def stored(index):
    """Vectors by document and page."""
    opened = Index.open(index)
    assert isinstance(opened.store, EmbeddedStore)
    names = opened.store.read(lambda snapshot: [(page.document, page.page) for page in snapshot.pages()])
    return {name: opened.page(*name).vectors for name in names}


class TestIndex:
    def test_stored_vectors(self, folder, tmp_path):
        report = compress_source(open_source(str(folder)), tmp_path / "i", SemanticClustering(0.2), bits=32)
        assert (report.pages, report.vectors, report.full_vectors, report.skipped) == (12, 72, 360, [])
        pages = stored(tmp_path / "i")
        assert set(pages) == {("report.pdf", n) for n in range(1, 13)}
        for number in range(12):
            (expected,) = compress_vectors([vectors_of(number)], SemanticClustering(0.2))
            torch.testing.assert_close(pages["report.pdf", number + 1], expected.vectors)

    def test_search_by_vectors(self, folder, tmp_path):
        compress_source(open_source(str(folder)), tmp_path / "i", FullIndex())
        index = Index.open(tmp_path / "i")
        hits = index.search_vectors([torch.from_numpy(vectors_of(7)[:3])], top_k=1)
        assert (hits[0][0].document, hits[0][0].page) == ("report.pdf", 8)
        with pytest.raises(AnchorFoldError, match="created from existing vectors without a model name"):
            index.search("net revenue")

    def test_search_by_text(self, tmp_path):
        nano = Index.create(tmp_path / "full.index", compressor=FullIndex()).encoder
        queries = nano.encode_queries(["revenue", "weather"])
        for number, query in enumerate(queries):
            np.save(tmp_path / f"{number}.npy", query.numpy())
        compress_source(open_source(str(tmp_path), kind="npy"), tmp_path / "i", FullIndex(), model="nano")
        assert [Index.open(tmp_path / "i").search(text, 1)[0].document for text in ("revenue", "weather")] == ["0", "1"]

    def test_stored_pages_are_not_read(self, folder, tmp_path, monkeypatch):
        compress_source(open_source(str(folder)), tmp_path / "i", Pooling1D(0.2))
        np.save(folder / "new.npy", vectors_of(99))
        read = []

        def load(file, _):
            read.append(Path(file.name).name)
            return vectors_of(99)

        monkeypatch.setattr("anchorfold.vectors.from_npy.read_array", load)
        report = compress_source(open_source(str(folder)), tmp_path / "i", Pooling1D(0.2))
        assert (report.pages, report.unchanged, read) == (1, 12, ["new.npy"])

    def test_two_sources(self, folder, tmp_path):
        np.savez(tmp_path / "more.npz", **{"report.pdf/1": vectors_of(50)})
        for source in (folder, tmp_path / "more.npz"):
            compress_source(open_source(str(source)), tmp_path / "i", Pooling1D(0.2))
        assert Index.open(tmp_path / "i").info().pages == 13

    def test_other_compressor_or_bits(self, folder, tmp_path):
        compress_source(open_source(str(folder)), tmp_path / "i", Pooling1D(0.2))
        for compressor, bits in ((Pooling1D(0.1), None), (Pooling1D(0.2), 8)):
            with pytest.raises(MismatchError, match="was created with"):
                compress_source(open_source(str(folder)), tmp_path / "i", compressor, bits=bits)

    def test_other_dimension(self, folder, tmp_path):
        compress_source(open_source(str(folder)), tmp_path / "i", Pooling1D(0.2))
        np.savez(tmp_path / "wide.npz", a=np.ones((4, DIM + 1)))
        with pytest.raises(MismatchError, match=f"dimension {DIM + 1}, the index has {DIM}"):
            compress_source(open_source(str(tmp_path / "wide.npz")), tmp_path / "i", Pooling1D(0.2))

    def test_writer_lock(self, folder, tmp_path):
        compress_source(open_source(str(folder)), tmp_path / "i", Pooling1D(0.2))
        with writer_lock(tmp_path / "i", 0), pytest.raises(LockedError):
            compress_source(open_source(str(folder)), tmp_path / "i", Pooling1D(0.2), wait=0)


class TestBadPages:
    def test_skipped_with_a_reason(self, folder, tmp_path):
        np.save(folder / "flat.npy", np.ones(5))
        np.save(folder / "nan.npy", np.full((3, DIM), np.nan))
        np.save(folder / "none.npy", np.ones((0, DIM)))
        np.save(folder / "text.npy", np.array([["a", "b"]]))
        np.save(folder / "wide.npy", np.ones((3, DIM + 1)))
        report = compress_source(open_source(str(folder)), tmp_path / "i", Pooling1D(0.2))
        assert report.pages == 12
        reasons = dict(report.skipped)
        assert reasons["flat page 1"] == "shape (5,), expected (vectors, dim)"
        assert reasons["nan page 1"] == "NaN or infinite values"
        assert reasons["none page 1"] == "no vectors"
        assert "expected numbers" in reasons["text page 1"]
        assert "dimension" in reasons["wide page 1"]

    @pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
    def test_a_page_with_too_many_vectors_is_skipped(self, folder, tmp_path, monkeypatch, error):
        def compress(vectors, compressor):
            raise error

        monkeypatch.setattr("anchorfold.vectors.compression_run.compress_hidden_states", compress)
        report = compress_source(open_source(str(folder)), tmp_path / "my.index", FullIndex())
        assert report.pages == 0
        assert all(reason.startswith("not enough memory to compress its ") for _, reason in report.skipped)

    def test_other_errors_of_a_compressor_are_raised(self, folder, tmp_path, monkeypatch):
        def compress(vectors, compressor):
            raise RuntimeError("another cause")

        monkeypatch.setattr("anchorfold.vectors.compression_run.compress_hidden_states", compress)
        with pytest.raises(RuntimeError, match="another cause"):
            compress_source(open_source(str(folder)), tmp_path / "my.index", FullIndex())

    def test_no_valid_page(self, tmp_path):
        np.save(tmp_path / "flat.npy", np.ones(5))
        with pytest.raises(AnchorFoldError, match=r"has no page with vectors \(flat page 1: shape"):
            compress_source(open_source(str(tmp_path)), tmp_path / "i", Pooling1D(0.2))
        assert not (tmp_path / "i").exists()

    def test_duplicate_names(self, tmp_path):
        table = {"document": ["a", "b", "a"], "vectors": [vectors_of(n).tolist() for n in range(3)]}
        pq.write_table(pa.table(table), tmp_path / "x.parquet", row_group_size=1)
        for _ in range(2):
            with pytest.raises(AnchorFoldError, match="two pages named 'a' page 1"):
                compress_source(open_source(str(tmp_path / "x.parquet")), tmp_path / "i", Pooling1D(0.2))


class Counted(VectorSource):
    """Counts the pages in memory."""

    description, identity = "counted", "counted"

    def __init__(self, pages):
        super().__init__("counted", FieldNames())
        self.count, self.references, self.most = pages, [], 0

    @classmethod
    def accepts(cls, address):
        return False

    def __len__(self):
        return self.count

    def pages(self, is_needed):
        for number in range(self.count):
            if is_needed("a", number + 1):
                page = VectorPage("a", number + 1, vectors_of(number))
                self.references.append(weakref.ref(page))
                yield page
                del page
                self.most = max(self.most, sum(reference() is not None for reference in self.references))


class TestStreaming:
    def test_memory(self, tmp_path):
        source = Counted(40)
        assert compress_source(source, tmp_path / "i", Pooling1D(0.2)).pages == 40
        assert source.most <= 2

    def test_stop(self, tmp_path):
        reports: list[int] = []
        stop = lambda: bool(reports) and reports[-1] >= 5  # noqa: E731
        report = compress_source(
            Counted(40), tmp_path / "i", Pooling1D(0.2), stop=stop, progress=lambda r: reports.append(r.pages)
        )
        assert (report.interrupted, report.pages) == (True, 5)
        assert Index.open(tmp_path / "i").info().pages == 5
        report = compress_source(Counted(40), tmp_path / "i", Pooling1D(0.2))
        assert (report.unchanged, report.pages) == (5, 35)

    def test_error_of_the_source(self, tmp_path):
        class Breaking(Counted):
            def pages(self, is_needed):
                yield from super().pages(is_needed)
                raise AnchorFoldError("the source is gone.")

        with pytest.raises(AnchorFoldError, match="gone"):
            compress_source(Breaking(3), tmp_path / "i", Pooling1D(0.2))
        assert Index.open(tmp_path / "i").info().pages == 3


class TestExports:
    @pytest.mark.parametrize("ending", ["parquet", "npz"])
    def test_files(self, folder, tmp_path, ending):
        target, source = choose_target(str(tmp_path / f"small.{ending}")), open_source(str(folder))
        between = target.folder(source, SemanticClustering(0.2), None)
        compress_source(source, between, SemanticClustering(0.2))
        assert target.export(between) == 12
        assert not between.exists()
        again = {
            (p.document, p.page): np.asarray(p.vectors) for p in open_source(target.address).pages(lambda *_: True)
        }
        assert len(again) == 12
        (expected,) = compress_vectors([vectors_of(4)], SemanticClustering(0.2))
        np.testing.assert_allclose(again["report.pdf", 5], expected.vectors, atol=1e-3)

    def test_intermediate_index_per_settings(self, folder, tmp_path):
        target, source = choose_target(str(tmp_path / "small.npz")), open_source(str(folder))
        folders = {
            target.folder(source, Pooling1D(0.2), None),
            target.folder(source, Pooling1D(0.1), None),
            target.folder(source, Pooling1D(0.2), 32),
        }
        assert len(folders) == 3
        assert target.folder(source, Pooling1D(0.2), None) in folders

    def test_intermediate_index_of_a_database(self, folder, tmp_path, monkeypatch):
        source = open_source(str(folder))
        at = choose_target("http://localhost:6333").folder(source, Pooling1D(0.2), None)
        monkeypatch.chdir(tmp_path)
        assert choose_target("http://localhost:6333").folder(source, Pooling1D(0.2), None) == at
        assert at.parent == cache_folder() / "unfinished"
        assert choose_target("http://localhost:6333", collection="x").folder(source, Pooling1D(0.2), None) != at

    def test_locked_intermediate_index(self, folder, tmp_path):
        target = choose_target(str(tmp_path / "small.npz"))
        between = target.folder(open_source(str(folder)), Pooling1D(0.2), None)
        assert isinstance(between, Path)
        between.mkdir()
        with writer_lock(between, 0), pytest.raises(LockedError):
            target.discard_empty(between)
        assert target.discard_empty(between) == 0
        assert not between.exists()

    @pytest.mark.parametrize("address", ["small.npz", "small.parquet", "http://localhost:6333"])
    def test_unsupported_bits(self, folder, address):
        with pytest.raises(AnchorFoldError, match=f"--bits 4 cannot be stored in {address}: .* supports 16 or 32 bits"):
            choose_target(address).folder(open_source(str(folder)), Pooling1D(0.2), 4)

    def test_choose_target(self):
        assert choose_target("http://localhost:6333", collection="x").exporter == "qdrant"
        assert choose_target("folder", "qdrant").exporter == "qdrant"
        assert choose_target("odd.npz", "index").exporter is None
        with pytest.raises(AnchorFoldError, match="no export target called 'zip'"):
            choose_target("x", "zip")
        with pytest.raises(AnchorFoldError, match="no collections"):
            choose_target("x.npz", collection="y")


def work(source, index):
    """Run slowly, with small commits."""
    compression_run.COMMIT_PAGES = 3
    compress_source(open_source(source), index, Pooling1D(0.2), progress=lambda _: time.sleep(0.01))


@pytest.mark.slow
def test_resume_after_kill(tmp_path):
    np.savez(tmp_path / "x.npz", **{f"a/{n}": vectors_of(n) for n in range(1, 61)})
    index, rng, before = tmp_path / "i", random.Random(3), 0
    for kill in (True, True, False):
        process = forked.start(work, str(tmp_path / "x.npz"), str(index))
        if kill:
            while not is_index(index) and process.is_alive():
                time.sleep(0.01)
            time.sleep(rng.uniform(0.05, 0.4))
            process.kill()
        process.join()
        if is_index(index):
            pages = Index.open(index).info().pages
            assert pages >= before
            before = pages
    assert process.exitcode == 0
    compress_source(open_source(str(tmp_path / "x.npz")), tmp_path / "undisturbed", Pooling1D(0.2))
    killed, undisturbed = stored(index), stored(tmp_path / "undisturbed")
    assert len(killed) == 60
    assert all(torch.equal(killed[name], undisturbed[name]) for name in undisturbed)


def test_index_target(tmp_path):
    source, target = Counted(1), choose_target(str(tmp_path / "x.index"))
    assert target.folder(source, Pooling1D(0.2), None) == tmp_path / "x.index"
    with pytest.raises(AnchorFoldError, match="is an index and needs no export"):
        target.export(tmp_path)
