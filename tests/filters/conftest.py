"""An index of three documents with metadata."""

import contextlib
import os
import shutil

import pytest

from anchorfold import AnchorFold, Index
from tests.filters.sample_metadata import A_METADATA, B_METADATA
from tests.number_reader import NumberReader, page_image, write_pdf


@pytest.fixture
def reader():
    return NumberReader()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """reports/ with three documents, and my.index of them; two have metadata."""
    folder = tmp_path_factory.mktemp("original")
    write_pdf(folder / "reports/a.pdf", [1, 2, 3])
    write_pdf(folder / "reports/old/b.pdf", [11, 12])
    page_image(77).save(folder / "reports/c.png")
    os.utime(folder / "reports/a.pdf", (1_700_000_000, 1_700_000_000))
    with contextlib.chdir(folder):
        index = Index.create(folder / "my.index", NumberReader(), AnchorFold(ratio=0.5))
        index.add("reports", metadata=lambda path: {"a.pdf": A_METADATA, "b.pdf": B_METADATA}.get(path.name))
    return folder


@pytest.fixture
def index(original, tmp_path, reader, monkeypatch):
    """A copy with copies of the documents."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    index = Index.open(tmp_path / "my.index", reader)
    with index.store.writing():
        sources = index.store.names()
        index.store.move({source: source.replace(str(original), str(tmp_path)) for source in sources})
    return index
