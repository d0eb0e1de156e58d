import numpy as np
import pytest

from anchorfold.store import flat as module
from anchorfold.store.flat import CACHE, open_flat
from anchorfold.store.table import PageTable
from tests.number_reader import index_settings
from tests.store.test_schema import row


@pytest.fixture
def table(tmp_path):
    made = PageTable.create(tmp_path / "my.index", index_settings())
    made.append([row(p, vectors=1 + p % 4) for p in range(1, 12)])
    made.append([row(12, encoded=None, problem="damaged")])
    return made


def test_all_live_vectors_sorted_by_length(table):
    flat = open_flat(table)
    assert len(flat) == 11
    assert list(flat.lengths) == sorted(flat.lengths)
    starts = np.concatenate(([0], flat.lengths.cumsum()))
    for i, page in enumerate(flat.pages["page"].to_pylist()):
        expected = row(page, vectors=1 + page % 4).encoded.vectors.numpy()
        assert np.allclose(flat.vectors[starts[i] : starts[i + 1]], expected, atol=1e-3)
    assert np.abs(flat.codes * flat.scale - flat.vectors).max() <= 0.51 * flat.scale


def test_it_is_built_once_a_version(table, monkeypatch):
    first = open_flat(table)
    monkeypatch.setattr(module, "build", lambda *_: pytest.fail("built again"))
    assert open_flat(table).version == first.version
    monkeypatch.undo()
    table.append([row(20)])
    assert len(open_flat(table)) == 12
    assert len(list((table.folder / CACHE).iterdir())) == 1


@pytest.mark.parametrize("name", ["vectors.npy", "codes.npy", "lengths.npy", "pages.feather", "about.json"])
def test_a_damaged_copy_is_built_again(table, name):
    open_flat(table)
    (place,) = (table.folder / CACHE).iterdir()
    (place / name).write_bytes((place / name).read_bytes()[:10])
    assert len(open_flat(table)) == 11


def test_an_index_that_may_only_be_read(table, monkeypatch):
    monkeypatch.setattr(module.tempfile, "mkdtemp", lambda **_: (_ for _ in ()).throw(PermissionError(13, "denied")))
    flat = open_flat(table)
    assert len(flat) == 11
    assert not list((table.folder / CACHE).iterdir())


def test_an_empty_index(tmp_path):
    assert len(open_flat(PageTable.create(tmp_path / "e.index", index_settings()))) == 0
