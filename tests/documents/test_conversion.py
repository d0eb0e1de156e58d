"""Other formats are converted to PDF inside the limits of the renderer, without network access and macros."""

import os
import time

import psutil
import pytest

from anchorfold.documents import (
    Document,
    DocumentFinished,
    PageRendered,
    RenderRequest,
    conversion,
    converted_readers,
    list_documents,
)
from anchorfold.documents.conversion import OFFICE, missing_converter
from anchorfold.documents.converted_readers import office_extension
from anchorfold.documents.formats import is_supported, open_document
from anchorfold.documents.listing import ignored_summary
from anchorfold.documents.render_process import RendererFailedError, RenderProcess
from anchorfold.errors import UnreadableDocumentError
from tests.documents import office_files
from tests.documents.hostile_office import endless_macro, references, web_server

needs_libreoffice = pytest.mark.skipif(
    conversion.soffice() is None and not os.environ.get("ANCHORFOLD_REQUIRE_LIBREOFFICE"),
    reason="LibreOffice is not installed",
)


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ANCHORFOLD_CACHE", str(tmp_path / "cache"))


def page_texts(path):
    with open_document(path) as document:
        assert document.image(0).width > 100
        return [document.text(number) for number in range(len(document))]


@needs_libreoffice
@pytest.mark.parametrize("extension", OFFICE)
def test_office_files(extension, tmp_path):
    path = tmp_path / f"report.{extension}"
    path.write_bytes(office_files.office_file(extension, "quarterly revenue", tmp_path))
    assert "quarterly revenue" in page_texts(path)[0]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("page.html", b"<h1>Annual report</h1><script>document.write('x')</script>", "Annual report"),
        ("page.htm", "<p>Jahresabschlu\u00df</p>".encode("cp1252"), "Jahresabschlu\u00df"),
        ("notes.md", b"# Annual report\n\n| a | b |\n|---|---|\n| 1 | cell |\n", "cell"),
        ("notes.txt", "line one\n<b>line two</b>".encode("utf-16"), "<b>line two</b>"),
    ],
)
def test_markup(name, content, text, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert text in page_texts(tmp_path / name)[0]


def test_mail_with_attachments(tmp_path):
    pdf = conversion.html_to_pdf("<p>the attached invoice</p>")
    attachments = {"invoice.pdf": pdf, "notes.txt": b"the attached notes", "archive.zip": b"PK"}
    (tmp_path / "letter.eml").write_bytes(office_files.mail("Dear reader", attachments))
    texts = page_texts(tmp_path / "letter.eml")
    assert len(texts) == 3
    assert "Quarterly figures" in texts[0]
    assert "Dear reader" in texts[0]
    assert "archive.zip" in texts[0]
    assert ["invoice" in texts[1], "notes" in texts[2]] == [True, True]


def test_conversion_is_cached_until_the_file_changes(tmp_path, monkeypatch):
    path, count = tmp_path / "notes.txt", []
    convert = conversion.html_to_pdf

    def counted(markup):
        count.append(1)
        return convert(markup)

    monkeypatch.setattr("anchorfold.documents.converted_readers.html_to_pdf", counted)
    path.write_text("first")
    assert page_texts(path) == page_texts(path)
    assert len(count) == 1
    path.write_text("second")
    assert "second" in page_texts(path)[0]
    assert len(count) == 2


def test_cache_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "CACHE_BYTES", 25)
    for number in range(4):
        conversion.cached(str(number), lambda: b"0123456789")
        time.sleep(0.01)
    assert sorted(p.name for p in (tmp_path / "cache/converted").iterdir()) == ["2.pdf", "3.pdf"]


def test_the_original_keeps_its_identity(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("some text")
    with open_document(path) as document:
        assert document.identity.size == path.stat().st_size


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.docx", b"not a zip", "not an office file, or damaged or encrypted"),
        ("a.docx", office_files.zipped({"a.txt": "x"}), "not an office file, despite its extension"),
        ("a.xlsx", office_files.zipped({"xl/workbook.xml": b"0" * 2**26}), "which is not plausible"),
        ("a.txt", b"\0\1\2", "not a text file, despite its extension"),
        ("a.eml", b"\xff\xfe\0\0", "not a mail message"),
        ("a.html", b"", "empty file"),
    ],
)
def test_unreadable_files(name, content, reason, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableDocumentError, match=reason), open_document(tmp_path / name):
        pass


@needs_libreoffice
def test_content_decides_the_kind_of_office_file():
    assert office_extension(office_files.docx("x")) == "docx"
    assert office_extension(office_files.open_document("ods", "x")) == "ods"


@pytest.fixture
def requests_received():
    """The address of a local web server, and the paths that were requested from it."""
    with web_server() as (address, received):
        yield address, received


@needs_libreoffice
@pytest.mark.slow
@pytest.mark.parametrize("isolated", [True, False])
def test_office_files_load_nothing_from_the_network(isolated, requests_received, tmp_path, monkeypatch):
    """In a network namespace, and where there is none: the profile is sufficient."""
    if not isolated:
        monkeypatch.setattr(conversion, "_isolate", lambda: None)
    address, received = requests_received
    for name, content in references(address, tmp_path).items():
        (tmp_path / name).write_bytes(content)
        assert "links" in page_texts(tmp_path / name)[0], name
    assert received == []


@needs_libreoffice
def test_macros_do_not_run(tmp_path):
    path = tmp_path / "a.odt"
    path.write_bytes(endless_macro())
    assert "a macro" in page_texts(path)[0]


def test_markup_loads_nothing(requests_received, tmp_path):
    address, received = requests_received
    secret = tmp_path / "secret.txt"
    secret.write_text("confidential")
    (tmp_path / "a.html").write_text(
        f'<link rel=stylesheet href="{address}/a.css"><p>text</p><img src="{address}/a.png">'
        f'<object data="file://{secret}"></object><link rel=attachment href="file://{secret}">'
    )
    assert page_texts(tmp_path / "a.html")[0].strip() == "text"
    assert received == []
    assert b"confidential" not in (next((tmp_path / "cache/converted").iterdir())).read_bytes()


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def fake_soffice(tmp_path, monkeypatch, script):
    command = tmp_path / "soffice"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("ANCHORFOLD_SOFFICE", str(command))
    path = tmp_path / "a.docx"
    path.write_bytes(office_files.docx("x"))
    return path


def test_time_limit_ends_all_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "CONVERSION_SECONDS", 1.0)
    path = fake_soffice(tmp_path, monkeypatch, f"sh -c 'echo $$ > {tmp_path}/pid; exec sleep 300' &\nwait")
    with pytest.raises(UnreadableDocumentError, match="took longer than 1 seconds to convert"), open_document(path):
        pass
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_memory_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "default_memory", lambda: 2**26)
    script = "exec python3 -c 'import time; x = bytes(1) * 2**28; y = bytearray(x); time.sleep(300)'"
    path = fake_soffice(tmp_path, monkeypatch, script)
    with pytest.raises(UnreadableDocumentError, match=r"needs more than 0.0625 GB to convert"), open_document(path):
        pass


def test_converter_ends_with_the_renderer(tmp_path, monkeypatch):
    path = fake_soffice(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; exec sleep 300")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    process = RenderProcess(seconds=3.0)
    document = Document(str(path), path, 0, 0)
    with pytest.raises(RendererFailedError, match="took longer"):
        list(process.render(RenderRequest(document), 10_000))
    time.sleep(0.5)
    assert not is_running(int((tmp_path / "pid").read_text()))
    assert list(temporary.iterdir()) == []


def test_renderer_converts(tmp_path):
    path = tmp_path / "notes.md"
    path.write_text("# Title\n\nbody")
    process = RenderProcess()
    events = list(process.render(RenderRequest(Document(str(path), path, 0, 0), with_text=True), 100_000))
    process.close()
    assert isinstance(events[1], PageRendered)
    assert "Title" in events[1].text
    assert isinstance(events[-1], DocumentFinished)


def test_without_converters(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHORFOLD_SOFFICE", str(tmp_path / "missing"))
    monkeypatch.setattr(conversion, "_has_weasyprint", lambda: False)
    assert missing_converter("docx") == "LibreOffice"
    assert missing_converter("md") == "anchorfold[html]"
    assert missing_converter("pdf") is None
    assert not is_supported("a.docx")
    for name in ("a.docx", "b.docx", "c.md", "d.zip"):
        (tmp_path / name).write_bytes(b"x")
    assert ignored_summary(list_documents(tmp_path).ignored) == (
        "Ignored 4 files: 2 .docx, 1 .md, 1 .zip. Install LibreOffice to index .docx. "
        "Install anchorfold[html] to index .md."
    )


def test_mail_names_attachments_that_are_not_included(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHORFOLD_SOFFICE", str(tmp_path / "missing"))
    monkeypatch.setattr(converted_readers, "MAX_ATTACHMENTS", 5)
    attachments = {
        "notes.txt": b"the attached notes", "invoice.pdf": b"%PDF-1.4 damaged", "photo.png": b"damaged",
        "archive.zip": b"PK", "plan.docx": office_files.docx("plan"), "6.txt": b"6", "7.txt": b"7",
    }  # fmt: skip
    (tmp_path / "letter.eml").write_bytes(office_files.mail("Dear reader", attachments))
    body, notes = page_texts(tmp_path / "letter.eml")
    assert "attached notes" in notes
    for note in (
        "invoice.pdf (not included: damaged or encrypted)", "photo.png (not included: damaged image)",
        "archive.zip (not included: unsupported format)", "plan.docx (not included: LibreOffice is not installed)",
        "2 more (not included)",
    ):  # fmt: skip
        assert note in " ".join(body.split())
