"""The text of a page, read in a process of its own."""

import os

import pytest
from PIL import Image

from anchorfold.demo.corpus import new_document, text
from anchorfold.documents import page_text as module
from anchorfold.documents.content import read_file
from anchorfold.documents.page_text import page_text, read_text
from anchorfold.errors import UnreadableDocumentError
from anchorfold.explain.page_text import find_text


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "annual.pdf"
    document = new_document()
    for title in ("Letter to our shareholders", "Net revenue by region: 12 \N{EURO SIGN}"):
        document.add_page()
        text(document, title.replace("\N{EURO SIGN}", "EUR"), 28)
    document.output(str(path))
    return path


def digest(path):
    return read_file(path)[1].digest


def test_pages_of_a_pdf(report):
    assert page_text(str(report), digest(report), 0).strip() == "Letter to our shareholders"
    assert page_text(str(report), digest(report), 1).strip() == "Net revenue by region: 12 EUR"


def test_a_picture_has_none(tmp_path):
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    assert page_text(str(tmp_path / "a.png"), digest(tmp_path / "a.png"), 0) == ""


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "empty file"), (b"nonsense", "not a PDF"), (b"%PDF-1.4 nonsense", "not a PDF, or dam")],
)
def test_what_cannot_be_read(tmp_path, content, reason):
    (tmp_path / "a.pdf").write_bytes(content)
    assert reason in read_text(str(tmp_path / "a.pdf"), 0)["problem"]


def test_other_content_is_not_taken_for_it(report):
    with pytest.raises(UnreadableDocumentError, match="changed"):
        page_text(str(report), "another digest", 0)
    assert read_text(str(report), 9)["problem"] == "a damaged page"


@pytest.mark.parametrize(
    ("program", "reason"),
    [("import time; time.sleep(60)", "took more than"), ("import os; os._exit(77)", "memory"), ("print('x')", "ended")],
)
def test_a_process_that_misbehaves(report, monkeypatch, program, reason):
    import sys

    monkeypatch.setattr(module, "COMMAND", [sys.executable, "-c", program])
    monkeypatch.setattr(module, "SECONDS", 0.5 if "sleep" in program else 30)
    with pytest.raises(UnreadableDocumentError, match=reason):
        page_text(str(report), f"digest for {program}", 0)


def test_of_an_indexed_page(report, tmp_path):
    status = os.stat(report)
    row = {
        "source": str(report),
        "page": 2,
        "digest": digest(report),
        "size": status.st_size,
        "modified": status.st_mtime_ns,
    }
    assert find_text(row).strip().startswith("Net revenue")
    assert find_text({**row, "modified": 1}) is None
    assert find_text({**row, "source": str(tmp_path / "gone.pdf")}) is None
    assert find_text({**row, "digest": "other"}) is None
