"""PDFs with text, and an index of them."""

import shutil

import pytest

from anchorfold import AnchorFold, Index
from tests.number_reader import NumberReader, page_image
from tests.text_pages import write_text_pdf

REPORT = [(101, "Letter to our shareholders"), (102, "Net revenue of the northern regions rose"), (103, "The auditors")]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """docs/ with a report, a handbook and a scan, and my.index of them."""
    folder = tmp_path_factory.mktemp("text")
    write_text_pdf(folder / "docs/report.pdf", REPORT)
    write_text_pdf(folder / "docs/handbook.pdf", [(201, "Night work and revenue"), (202, "Dogs and horses")])
    page_image(300).save(folder / "docs/scan.png")
    index = Index.create(folder / "my.index", NumberReader(), AnchorFold(ratio=0.5))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        index.add("docs")
    return folder


@pytest.fixture
def folder(original, tmp_path, monkeypatch):
    """A copy of it, the current folder."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def index(folder):
    opened = Index.open("my.index", NumberReader())
    with opened.store.writing():
        opened.store.move({source: str(folder / name) for source, name in opened.store.names().items()})
    return opened
