"""Pictures of pages from their original files, in a process of their own."""

import io
import os
import signal
import subprocess
import sys
import threading

import pytest
from PIL import Image

from anchorfold.documents import originals
from anchorfold.documents.content import read_file
from anchorfold.documents.files import source_of
from anchorfold.documents.originals import Originals, find_image
from anchorfold.errors import AnchorFoldError
from tests.documents.hostile import ENDLESS, HUNGRY, number_content, write_pages
from tests.documents.test_pages import write_encrypted
from tests.number_reader import page_image, read_number, write_pdf


def row(path, page=1, thumbnail=True):
    """What the index says of a page."""
    _, identity = read_file(path)
    small = io.BytesIO()
    page_image(999).save(small, "JPEG")
    return {"source": source_of(path), "document": path.name, "page": page, "thumbnail": thumbnail and small.getvalue(), **vars(identity)}  # fmt: skip  # noqa: E501


def number_of(page):
    image, original = find_image(page, 40_000)
    return read_number(image) if original else None


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A process of the test's own, with little memory and time."""
    own = Originals()
    own.process.memory, own.process.seconds = 2**27, 1.0
    monkeypatch.setattr(originals, "_originals", own)
    yield own
    own.process.close()


def test_it_is_rendered_in_another_process_that_stays(tmp_path, fresh):
    path = write_pdf(tmp_path / "a.pdf", [1, 2, 3])
    assert [number_of(row(path, page)) for page in (1, 2, 3, 1)] == [1, 2, 3, 1]
    child = fresh.process._child.pid
    assert number_of(row(write_pdf(tmp_path / "b.pdf", [7]))) == 7
    assert fresh.process._child.pid == child


def test_an_encrypted_original_opens_with_the_password_of_the_environment(tmp_path, monkeypatch):
    path = write_encrypted(tmp_path / "locked.pdf")
    page = row(path)
    assert number_of(page) is None
    monkeypatch.setenv("ANCHORFOLD_PDF_PASSWORD", "secret")
    own = Originals()
    monkeypatch.setattr(originals, "_originals", own)
    assert number_of(page) == 407
    own.process.close()


def test_another_file_of_the_same_size_and_time_is_not_the_original(tmp_path):
    path = write_pages(tmp_path / "a.pdf", [number_content(123)])
    page, status = row(path), path.stat()
    other = write_pages(tmp_path / "b.pdf", [number_content(321)]).read_bytes()
    path.write_bytes(other)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    assert number_of(page) is None


def test_hostile_pages_cost_their_picture_and_are_not_tried_twice(tmp_path, fresh):
    path = write_pages(tmp_path / "a.pdf", [number_content(1), HUNGRY, ENDLESS, number_content(2)])
    assert [number_of(row(path, page)) for page in (1, 2, 3, 4)] == [1, None, None, 2]
    child = fresh.process._child.pid
    assert [number_of(row(path, page)) for page in (2, 3, 4)] == [None, None, 2]
    assert fresh.process._child.pid == child  # nobody ended it again
    with pytest.raises(AnchorFoldError, match=r"a.pdf cannot be rendered \(took longer than 1 seconds to render\)"):
        find_image(row(path, 3, thumbnail=False), 40_000)


def test_a_document_of_many_hostile_pages_is_not_tried_for_ever(tmp_path, fresh):
    path = write_pages(tmp_path / "a.pdf", [HUNGRY, HUNGRY, HUNGRY, ENDLESS])
    assert [number_of(row(path, page)) for page in (1, 2, 3, 4)] == [None] * 4
    assert fresh.process._child is None  # the fourth was not asked for


def test_it_recovers_when_the_process_dies(tmp_path, fresh):
    path = write_pdf(tmp_path / "a.pdf", [5, 6])
    assert number_of(row(path)) == 5
    os.kill(fresh.process._child.pid, signal.SIGKILL)
    assert number_of(row(path, 2)) == 6
    child = fresh.process._child
    os.kill(child.pid, signal.SIGSTOP)
    assert number_of(row(path, 1)) is None
    assert child.poll() is not None
    assert number_of(row(path, 2)) == 6


def test_many_threads(tmp_path, fresh):
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


def test_a_name_that_is_no_unicode(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.pdf")
    path.write_bytes(write_pdf(tmp_path / "a.pdf", [4]).read_bytes())
    assert number_of(row(path)) == 4


def test_a_thumbnail_is_opened_as_nothing_but_webp_or_jpeg(tmp_path):
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


def test_no_process_is_left_behind(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [4])
    script = (
        "import pathlib, sys\n"
        "from anchorfold.documents import originals\n"
        "from tests.documents.test_originals import row\n"
        f"originals.find_image(row(pathlib.Path({str(path)!r})), 40_000)\n"
        "print(originals._originals.process._child.pid)\n"
    )
    completed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(completed.stdout), 0)
