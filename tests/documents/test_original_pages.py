"""Images and texts of pages from their original files."""

import io
import os
import signal
import subprocess
import sys
import threading

import pytest
from PIL import Image

from anchorfold.demo.sample_documents import new_document
from anchorfold.demo.sample_documents import paragraph as add_text
from anchorfold.documents import original_pages, render_process
from anchorfold.documents.files import source_of
from anchorfold.documents.formats import read_file
from anchorfold.documents.original_pages import OriginalPages, find_image, find_text, find_word_boxes
from anchorfold.errors import AnchorFoldError
from tests.documents.malicious_files import ENDLESS, HUNGRY, number_content, write_pages
from tests.documents.test_formats import write_encrypted
from tests.documents.test_render_process import COMPROMISED
from tests.number_reader import page_image, read_number, write_pdf


def row(path, page=1, thumbnail=True):
    """Return the stored fields of a page."""
    _, identity = read_file(path)
    small = io.BytesIO()
    page_image(999).save(small, "JPEG")
    return {"source": source_of(path), "document": path.name, "page": page, "thumbnail": thumbnail and small.getvalue(), **vars(identity)}  # fmt: skip  # noqa: E501


def number_of(page):
    image, original = find_image(page, 40_000)
    return read_number(image) if original else None


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Use a separate process with low limits."""
    own = OriginalPages()
    own.process.memory, own.process.seconds = 2**27, 1.0
    monkeypatch.setattr(original_pages, "_images", own)
    yield own
    own.process.close()


def test_process_is_reused(tmp_path, fresh):
    path = write_pdf(tmp_path / "a.pdf", [1, 2, 3])
    assert [number_of(row(path, page)) for page in (1, 2, 3, 1)] == [1, 2, 3, 1]
    child = fresh.process._child.pid
    assert number_of(row(write_pdf(tmp_path / "b.pdf", [7]))) == 7
    assert fresh.process._child.pid == child


def test_encrypted_original(tmp_path, monkeypatch):
    path = write_encrypted(tmp_path / "locked.pdf")
    page = row(path)
    assert number_of(page) is None
    monkeypatch.setenv("ANCHORFOLD_PDF_PASSWORD", "secret")
    own = OriginalPages()
    monkeypatch.setattr(original_pages, "_images", own)
    assert number_of(page) == 407
    own.process.close()


def test_other_file_of_the_same_size_and_time(tmp_path):
    path = write_pages(tmp_path / "a.pdf", [number_content(123)])
    page, status = row(path), path.stat()
    other = write_pages(tmp_path / "b.pdf", [number_content(321)]).read_bytes()
    path.write_bytes(other)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    assert number_of(page) is None


def test_failing_pages_are_not_tried_twice(tmp_path, fresh):
    path = write_pages(tmp_path / "a.pdf", [number_content(1), HUNGRY, ENDLESS, number_content(2)])
    assert [number_of(row(path, page)) for page in (1, 2, 3, 4)] == [1, None, None, 2]
    child = fresh.process._child.pid
    assert [number_of(row(path, page)) for page in (2, 3, 4)] == [None, None, 2]
    assert fresh.process._child.pid == child  # not ended again
    with pytest.raises(AnchorFoldError, match=r"a.pdf cannot be rendered \(took longer than 1 seconds to render\)"):
        find_image(row(path, 3, thumbnail=False), 40_000)


def test_document_with_many_failing_pages(tmp_path, fresh):
    path = write_pages(tmp_path / "a.pdf", [HUNGRY, HUNGRY, HUNGRY, ENDLESS])
    assert [number_of(row(path, page)) for page in (1, 2, 3, 4)] == [None] * 4
    assert fresh.process._child is None  # the fourth page was not requested


def test_recovery_after_the_process_ended(tmp_path, fresh):
    path = write_pdf(tmp_path / "a.pdf", [5, 6])
    assert number_of(row(path)) == 5
    os.kill(fresh.process._child.pid, signal.SIGKILL)
    assert number_of(row(path, 2)) == 6
    child = fresh.process._child
    os.kill(child.pid, signal.SIGSTOP)
    assert number_of(row(path, 1)) is None
    assert child.poll() is not None
    assert number_of(row(path, 2)) == 6


def test_threads(tmp_path, fresh):
    paths = [write_pdf(tmp_path / f"{n}.pdf", list(range(10 * n, 10 * n + 10))) for n in range(3)]
    fresh.process.seconds = 60.0
    wrong = []

    def ask(worker):
        for i in range(12):
            document, page = (worker + i) % 3, (worker * 7 + i) % 10
            if number_of(row(paths[document], page + 1)) != 10 * document + page:
                wrong.append((worker, document, page))

    workers = [threading.Thread(target=ask, args=(n,)) for n in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_non_unicode_name(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.pdf")
    path.write_bytes(write_pdf(tmp_path / "a.pdf", [4]).read_bytes())
    assert number_of(row(path)) == 4


def test_thumbnails_are_webp_or_jpeg(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [4])
    page = row(path)
    os.unlink(path)
    assert find_image(page, 40_000)[0].size == (60, 60)
    small = io.BytesIO()
    Image.new("RGB", (7, 7)).save(small, "WEBP")
    assert find_image({**page, "thumbnail": small.getvalue()}, 40_000)[0].size == (7, 7)
    other = io.BytesIO()
    Image.new("RGB", (5, 5)).save(other, "TIFF")
    with pytest.raises(OSError, match="cannot identify"):
        find_image({**page, "thumbnail": other.getvalue()}, 40_000)


def test_process_ends_with_its_parent(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [4])
    script = (
        "import pathlib, sys\n"
        "from anchorfold.documents import original_pages\n"
        "from tests.documents.test_original_pages import row\n"
        f"original_pages.find_image(row(pathlib.Path({str(path)!r})), 40_000)\n"
        "print(original_pages._images.process._child.pid)\n"
    )
    completed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(completed.stdout), 0)


@pytest.fixture
def texts(monkeypatch):
    own = OriginalPages()
    monkeypatch.setattr(original_pages, "_texts", own)
    original_pages._read_text.cache_clear()
    yield own
    own.process.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "annual.pdf"
    document = new_document()
    for title in ("Letter to our shareholders", "Net revenue by region: 12 EUR"):
        document.add_page()
        add_text(document, title, 28)
    document.output(str(path))
    return path


def test_text_of_a_pdf(report, texts):
    assert [find_text(row(report, page)).strip() for page in (1, 2)] == [
        "Letter to our shareholders", "Net revenue by region: 12 EUR",
    ]  # fmt: skip
    assert find_text(row(report, 9)) is None
    assert find_text({**row(report), "modified": 1}) is None
    assert find_text({**row(report), "source": "/nowhere/gone.pdf"}) is None
    assert find_text({**row(report), "digest": "other"}) is None


def test_word_boxes(report, texts):
    ((left, top, right, bottom),) = find_word_boxes(row(report, 2), ("revenue",))
    assert 0 < left < right < 0.5
    assert 0 < top < bottom < 0.5
    assert find_word_boxes(row(report, 2), ("shareholders",)) == []
    assert find_word_boxes(row(report, 2), ()) == []


def test_text_of_an_image(tmp_path, texts):
    page_image(1).save(tmp_path / "a.png")
    assert find_text(row(tmp_path / "a.png")) == ""


@pytest.mark.parametrize("content", [b"", b"nonsense", b"%PDF-1.4 nonsense"])
def test_text_of_an_unreadable_file(tmp_path, texts, content):
    (tmp_path / "a.pdf").write_bytes(content)
    assert find_text(row(tmp_path / "a.pdf")) is None


@pytest.mark.parametrize("failure", ["import time; time.sleep(60)", "os._exit(77)", "os.write(self.output, b'x' * 99)"])
def test_failures_of_the_process_that_reads_text(report, texts, monkeypatch, tmp_path, failure):
    (tmp_path / "child.py").write_text(COMPROMISED.replace("evil.pdf", "annual.pdf").format(evil=failure))
    monkeypatch.setattr(render_process, "COMMAND", [sys.executable, str(tmp_path / "child.py")])
    texts.process.seconds = 0.5 if "sleep" in failure else 30.0
    assert find_text(row(report)) is None
    assert len(texts._failures) == 1
