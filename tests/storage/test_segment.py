"""Vector files: columns of pages, descriptions of documents, and what is intact of a damaged one."""

import json
import os

import numpy as np
import pytest

from anchorfold.errors import DamagedError, MismatchError
from anchorfold.storage.records import DocumentVersion
from anchorfold.storage.segment import OpenSegments, Segment, file_header, page_columns, segment_path
from tests.number_reader import DIM, index_settings
from tests.storage.page_rows import SOURCE, flip_bit, make_store, page_row


def first_segment(store):
    return Segment(segment_path(store.folder, 1))


def test_pages_with_few_vectors_come_first(tmp_path):
    rows = [page_row(1, vectors=5), page_row(2, vectors=2), page_row(3, encoded=None, problem="x")]
    segment = first_segment(make_store(tmp_path / "my.index", rows))
    assert segment.page.tolist() == [3, 2, 1]
    assert segment.kept.tolist() == [0, 2, 5]
    assert segment.full.tolist() == [0, 24, 24]
    assert segment.starts.tolist() == [0, 0, 2, 7]
    assert segment.page_ids() == [(1 << 24) + 3, (1 << 24) + 2, (1 << 24) + 1]
    assert len(segment) == 3


def test_vectors_of_a_page(tmp_path):
    store = make_store(tmp_path / "my.index", [page_row(1), page_row(2, vectors=2)], bits=32)
    segment = first_segment(store)
    for row, page in ((0, page_row(2, vectors=2)), (1, page_row(1))):
        assert np.allclose(segment.vectors(row, store.settings.coding), page.encoded.vectors, atol=1e-6)


def test_another_dimension_is_refused():
    version = DocumentVersion(1, 1, SOURCE, "b.pdf", "b.pdf", "d", 1, 1, 1, True)
    with pytest.raises(MismatchError, match=f"vectors of dimension 8, the model returns {DIM}"):
        list(page_columns([page_row()], [1], {1: version}, index_settings(dim=8)))


def test_a_file_describes_its_documents_and_its_index(tmp_path):
    rows = [page_row(1, file_metadata={"title": "T"}), page_row(1, source="/c.pdf", metadata={"year": 1})]
    store = make_store(tmp_path / "my.index", rows)
    segment = first_segment(store)
    assert segment.documents() == {
        1: DocumentVersion(1, 1, SOURCE, "b.pdf", "b.pdf", "d", 3, 4, 9, True, {}, {"title": "T"}),
        2: DocumentVersion(2, 2, "/c.pdf", "c.pdf", "c.pdf", "d", 3, 4, 9, True, {}, {}),
    }
    header = file_header(store.version.index_id, store.settings)
    assert segment.header == json.loads(json.dumps(header))


def column_start(segment, column):
    return segment._directory[column][2]


def test_pages_beside_a_damaged_one_are_intact(tmp_path):
    store = make_store(tmp_path / "my.index", [page_row(p) for p in range(1, 7)], bits=32)
    segment = first_segment(store)
    assert segment.intact().all()
    flip_bit(segment.path, 8 * (column_start(segment, "codes") + 5 * 4 * DIM))
    damaged = Segment(segment.path)
    assert damaged.intact().tolist() == [True, False, True, True, True, True]
    with pytest.raises(DamagedError, match="the vectors of page 2 do not match their checksum"):
        damaged.vectors(1, store.settings.coding)
    for row in (0, 2, 5):
        assert damaged.vectors(row, store.settings.coding).shape == (5, DIM)
    with pytest.raises(DamagedError, match="the column codes"):
        _ = damaged.codes


def test_a_damaged_provenance_concerns_one_page(tmp_path):
    store = make_store(tmp_path / "my.index", [page_row(p) for p in range(1, 4)])
    segment = first_segment(store)
    flip_bit(segment.path, 8 * (column_start(segment, "provenance") + int(segment.blob_starts[1])))
    assert Segment(segment.path).intact().tolist() == [True, False, True]
    with pytest.raises(DamagedError, match=r"00000001\.seg: the provenance of page 2 does not match its checksum"):
        store.read_page(SOURCE, 2, lambda page: page.encoded())
    assert store.read_page(SOURCE, 3, lambda page: len(page.encoded())) == 5


def test_open_files_are_shared_between_commits_and_replaced_ones_are_opened_again(tmp_path):
    store = make_store(tmp_path / "my.index", [page_row(1)])
    segments = OpenSegments(store.folder)
    entries = store.read(lambda snapshot: snapshot.files)
    first = segments.get(entries)[1]
    assert segments.get(entries)[1] is first
    path = segment_path(store.folder, 1)
    path.with_suffix(".copy").write_bytes(path.read_bytes())
    os.replace(path.with_suffix(".copy"), path)  # as a restored backup does
    assert segments.get(entries)[1] is not first
    path.unlink()
    with pytest.raises(DamagedError, match=r"00000001\.seg is missing"):
        segments.get(entries)
    assert segments.get({}) == {}
