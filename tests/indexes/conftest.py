"""Documents that are read by the number reader, and an index for them."""

import pytest

from anchorfold import AnchorFold, Index
from tests.number_reader import NumberReader, page_image, write_pdf


@pytest.fixture
def reader():
    return NumberReader()


@pytest.fixture
def index(tmp_path, reader):
    return Index.create(tmp_path / "my.index", reader, AnchorFold(ratio=0.5))


@pytest.fixture
def reports(tmp_path, monkeypatch):
    """reports/ in the current folder with two PDFs and an image."""
    monkeypatch.chdir(tmp_path)
    write_pdf(tmp_path / "reports/a.pdf", [1, 2, 3])
    write_pdf(tmp_path / "reports/b.pdf", [11, 12])
    page_image(77).save(tmp_path / "reports/c.png")
    return tmp_path / "reports"
