import os
from dataclasses import replace

import pytest
import torch

from anchorfold.errors import AnchorFoldError, MismatchError
from anchorfold.index.store.checking import check
from anchorfold.index.store.old_format import convert_index
from anchorfold.index.store.table import PageTable
from tests.index.store.old_index import write_old_index
from tests.index.store.test_pages import row
from tests.number_reader import index_settings

ROWS = [
    *(row(p, vectors=1 + p, thumbnail=b"picture") for p in range(1, 5)),
    row(5, encoded=None, problem="damaged"),
    row(1, source="/c.pdf", document="c.pdf", grid=False),
    row(1, digest="new", live=False),
]
BITS = {"float16": 16, "float32": 32, "int8": 8}


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_everything_comes_along_and_nothing_is_encoded(tmp_path, dtype):
    folder = tmp_path / "my.index"
    settings = index_settings(window=(3, 4))
    write_old_index(folder, ROWS, settings, dtype)
    with pytest.raises(MismatchError, match=r"version 0\.1: `anchorfold convert"):
        PageTable.open(folder)
    counts: list[int] = []
    assert convert_index(folder, progress=counts.append) == len(ROWS)
    assert counts[-1] == len(ROWS)
    table = PageTable.open(folder)
    assert table.settings == replace(settings, bits=BITS[dtype])
    stored = {(p.source, p.page, p.version.digest): p for p in table.pages(live=False)}
    for given in ROWS:
        page = stored[given.source, given.page, given.digest]
        assert (page.document, page.version.pages, page.version.size, page.version.modified, page.version.live) == (
            given.document, given.pages, given.size, given.modified, given.live,
        )  # fmt: skip
        assert (page.thumbnail, page.problem, page.kept) == (
            given.thumbnail, given.problem, 0 if given.encoded is None else len(given.encoded),
        )  # fmt: skip
        if given.encoded is not None:
            encoded = page.encoded()
            assert torch.allclose(encoded.vectors, given.encoded.vectors, atol=2e-2, rtol=0)
            assert torch.equal(encoded.groups, given.encoded.groups)
            assert encoded.grid == given.encoded.grid
    assert check(folder) == []
    assert sorted(os.listdir(folder)) == ["head", "logs", "segments", "writer.lock"]


def test_fewer_bits_on_the_way(tmp_path):
    write_old_index(tmp_path / "my.index", ROWS, index_settings())
    with pytest.raises(AnchorFoldError, match="3 bits"):
        convert_index(tmp_path / "my.index", bits=3)
    convert_index(tmp_path / "my.index", bits=1)
    assert PageTable.open(tmp_path / "my.index").settings.bits == 1


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_conversion_that_is_cut_short_is_begun_again(tmp_path, monkeypatch, step):
    folder = tmp_path / "my.index"
    write_old_index(folder, ROWS, index_settings())
    real, calls = os.rename, []

    def rename(*arguments):
        calls.append(arguments)
        if len(calls) > step:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        convert_index(folder)
    monkeypatch.undo()
    with pytest.raises(MismatchError, match="convert"):
        PageTable.open(folder)
    assert convert_index(folder) == len(ROWS)
    assert check(folder) == []


def test_an_index_of_today_is_left_alone(tmp_path):
    PageTable.create(tmp_path / "my.index", index_settings()).append([row(1)])
    with pytest.raises(AnchorFoldError, match="present format already"):
        convert_index(tmp_path / "my.index")
    with pytest.raises(AnchorFoldError, match="does not exist"):
        convert_index(tmp_path / "nowhere")
