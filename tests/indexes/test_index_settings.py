"""Settings of an index: sizes, bits, models and compressors."""

import subprocess
import warnings

import pytest
import torch

from anchorfold import AGC, AnchorFold, DocPruner, FullIndex, Index
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors.default import DefaultCompressor
from anchorfold.errors import AnchorFoldError, MismatchError, NotAnIndexError
from anchorfold.indexes.creation import choose_compressor
from anchorfold.page import PageState
from anchorfold.storage.file_errors import folder_bytes
from tests.number_reader import NumberReader, write_pdf


def test_info(index, reports):
    index.add("reports")
    info = index.info()
    assert (info.documents, info.pages, info.vectors, info.full_vectors) == (3, 6, 72, 144)
    assert info.vector_compression_ratio == 2
    assert (info.model, info.method) == ("number-reader", "anchorfold")
    assert info.vector_bytes == 72 * 16 * 2 < info.bytes


def test_sizes_are_those_on_disk(tmp_path, reader, reports):
    index = Index.create(tmp_path / "d.index", reader, AnchorFold(ratio=0.5), bits=8)
    index.add("reports")
    before = folder_bytes(index.path)
    index.search("page 1")
    info = index.info()
    counted = subprocess.run(["du", "-sb", index.path], capture_output=True, text=True, check=True).stdout
    assert info.bytes == int(counted.split()[0]) == before  # a search leaves nothing behind
    assert info.vector_compression_ratio == info.full_vector_bytes / info.vector_bytes == 144 * 32 / (72 * 18)
    assert info.compression_ratio == info.full_vector_bytes / (info.bytes - info.thumbnail_bytes - info.text_bytes)
    assert info.provenance_bytes > 0 < info.thumbnail_bytes


@pytest.mark.parametrize(("bits", "size"), [(32, 64), (8, 18), (4, 10), (2, 6), (1, 4)])
def test_bits(tmp_path, reader, reports, bits, size):
    index = Index.create(tmp_path / "d.index", reader, AnchorFold(ratio=0.5), bits=bits)
    index.add("reports")
    assert index.info().vector_bytes == 72 * size
    assert index.search("page 12", top_k=1)[0].page == 2


def test_vectors_are_stored_once(tmp_path):
    index = Index.create(tmp_path / "d.index", NumberReader(), AnchorFold(ratio=0.5))
    empty = index.info().bytes
    assert empty < 200_000  # the tables and indexes of the database
    index.add(write_pdf(tmp_path / "a.pdf", list(range(60))), batch_size=30)
    index.search("page 1")
    info = index.info()
    counted = info.vector_bytes + info.thumbnail_bytes + info.provenance_bytes + info.text_bytes
    rows = 60 * 48  # numbers, lengths and checksums of a page
    assert info.bytes - empty <= 1.1 * counted + rows + 2 * 8192 + 4000


def test_without_provenance(tmp_path, reader, reports):
    index = Index.create(tmp_path / "d.index", reader, AnchorFold(ratio=0.5), provenance=False)
    index.add("reports")
    assert index.info().provenance_bytes == 0
    assert index.search("page 12", top_k=1)[0].page == 2
    with pytest.raises(AnchorFoldError, match="--no-provenance"):
        index.page("reports/a.pdf", 1)


def test_thumbnails_can_be_left_out(tmp_path, reader, reports):
    index = Index.create(tmp_path / "d.index", reader, thumbnails=False)
    index.add("reports")
    assert index.page("reports/a.pdf", 1).thumbnail == b""
    assert index.info().thumbnail_bytes == 0


def test_another_model_is_refused(index):
    other = NumberReader()
    other.fingerprint = "other"
    with pytest.raises(MismatchError, match="another model"):
        Index.open(index.path, other)


def test_another_compressor_is_refused(index, reader):
    with pytest.raises(MismatchError, match="ratio"):
        Index.open_or_create(index.path, reader, AnchorFold(ratio=0.1))
    assert Index.open_or_create(index.path, reader, AnchorFold(ratio=0.5)).settings == index.settings
    with pytest.raises(AnchorFoldError, match="already"):
        Index.create(index.path, reader, AnchorFold(ratio=0.5))


def test_wrong_options(tmp_path, reader):
    for options, words in (({"ratio": 2.0}, "ratio"), ({"method": "zip"}, "zip"),
                           ({"ratio": 0.1, "cap": 3}, "exclude"), ({"method": "docpruner", "cap": 9}, "of a cap"),
                           ({"method": "none", "ratio": 0.2}, "keeps all")):  # fmt: skip
        with pytest.raises(AnchorFoldError, match=words):
            choose_compressor(**options)
    with pytest.raises(AnchorFoldError, match="3 bits"):
        Index.create(tmp_path / "w.index", reader, bits=3)
    for compressor, words in ((DocPruner(0.1), "calibrated"), (AGC(0.1), "universal tokens")):
        with pytest.raises(AnchorFoldError, match=words):
            Index.create(tmp_path / "w.index", reader, compressor)


def test_a_calibrated_docpruner_and_the_full_index_can_be_used(tmp_path, reader, reports):
    for name, compressor in (("d", DocPruner(0.5, threshold=0.0)), ("n", FullIndex())):
        index = Index.create(tmp_path / name, reader, compressor)
        index.add("reports")
        again = Index.open(tmp_path / name, reader)
        assert again.settings.options == compressor.options
        assert again.info().pages == 6
        assert (again.info().vectors == again.info().full_vectors) == (name == "n")


def test_a_folder_with_other_files_is_refused(tmp_path, reader):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "thesis.doc").write_text("precious")
    with pytest.raises(NotAnIndexError, match=r"it contains thesis\.doc"):
        Index.create(tmp_path / "x", reader)
    with pytest.raises(NotAnIndexError, match="is a file"):
        Index.create(tmp_path / "x" / "thesis.doc", reader)


def test_an_interrupted_creation_can_be_repeated(tmp_path, reader):
    (tmp_path / "my.index" / "vectors").mkdir(parents=True)
    (tmp_path / "my.index" / "index.db.part").write_bytes(b"half of a database")
    index = Index.open_or_create(tmp_path / "my.index", reader)
    assert index.info().pages == 0


def test_a_later_calibration_does_not_change_an_index(index, reader, reports):
    index.add("reports")
    others = [
        Index.create(f"{method}.index", reader, choose_compressor(method))
        for method in ("spread-fold", "focus-clustering", "sap")
    ]
    before = [i.compressor.signals(reader.layer_settings) for i in (index, *others)]
    reader.layer_settings = LayerSettings(window=(0, 0), sap_window=(0, 0), layers=4, steps=2)
    again = [Index.open(i.path, reader).compressor.signals(reader.layer_settings) for i in (index, *others)]
    assert again == before
    assert [(s.layer, s.steps) for s in again[0]] == [(1, 6), (2, 6)]
    settings = index.info().settings
    assert (settings["window"], settings["steps"]) == ([1, 2], 6)


class CausalReader:
    """An encoder whose visual tokens cannot attend to later ones."""

    is_causal = True

    def __init__(self, reader):
        self.reader = reader

    def __getattr__(self, name):
        return getattr(self.reader, name)


@pytest.mark.parametrize(
    ("family", "method"), [("nano", "anchorfold"), ("colpali", "anchorfold"), ("colgemma3", "focus-clustering")]
)
def test_the_default_method_depends_on_the_family(tmp_path, reader, family, method):
    reader.family = family
    assert Index.create(tmp_path / "a.index", reader).settings.method == method


def test_an_encoder_without_a_family_has_a_default_method(tmp_path, reader):
    class Encoder:
        def __getattr__(self, name):
            if name == "family":
                raise AttributeError(name)
            return getattr(reader, name)

    assert Index.create(tmp_path / "a.index", Encoder()).settings.method == "focus-clustering"


def test_the_default_method_depends_on_causality(tmp_path, reader):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index = Index.create(tmp_path / "b.index", CausalReader(reader), choose_compressor(ratio=0.5))
    assert (index.settings.method, index.settings.options) == (
        "focus-clustering", {"ratio": 0.5, "graph": "mirrored-symmetric"}
    )  # fmt: skip
    again = Index.open_or_create(index.path, CausalReader(reader), choose_compressor("auto", ratio=0.5))
    assert again.settings == index.settings
    with pytest.raises(MismatchError, match=r"not with \{'ratio': 0.1\}"):
        Index.open_or_create(index.path, CausalReader(reader), choose_compressor(ratio=0.1))


def test_a_graph_is_stored(tmp_path, reader):
    index = Index.create(tmp_path / "g.index", reader, choose_compressor(graph="symmetric"))
    assert (index.settings.method, index.settings.options) == ("anchorfold", {"ratio": 0.2, "graph": "symmetric"})
    assert choose_compressor("focus-clustering", cap=9, graph="symmetric").options == {"cap": 9, "graph": "symmetric"}
    for method, words in (("sap", "does not read an attention graph"), (None, "graph must be one of")):
        with pytest.raises(AnchorFoldError, match=words):
            choose_compressor(method, graph="circular")


def test_the_default_compressor_requires_a_model(reader):
    with pytest.raises(TypeError, match="depends on the model"):
        DefaultCompressor(0.5).compress(PageState(torch.eye(4), lambda z: z), reader.layer_settings)
