import hashlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

from anchorfold.documents import (
    DocumentFinished,
    FileIdentity,
    PageFailed,
    PageRendered,
    Renderer,
    RenderRequest,
    list_documents,
)  # fmt: skip
from anchorfold.documents import (
    renderer as module,
)
from tests.documents.malicious_files import ENDLESS, HUNGRY, number_content, truncated_tiff, write_pages
from tests.number_reader import page_image, read_number, write_pdf

MEMORY = 2**27


def documents(*paths):
    listing = list_documents(paths)
    assert listing.skipped == ()
    return list(listing.documents)


def summary(event):
    """A page's number and what is on it or wrong with it; of the end of a document only what is wrong."""
    if isinstance(event, DocumentFinished):
        return event.problem
    return event.number, read_number(event.image) if isinstance(event, PageRendered) else event.problem


def digest(path):
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def test_pages_in_order_with_thumbnails(tmp_path):
    write_pdf(tmp_path / "a.pdf", [1, 2, 3])
    write_pdf(tmp_path / "b.pdf", [7])
    with Renderer(RenderRequest(d) for d in documents(tmp_path)) as renderer:
        events: list[Any] = list(renderer)
    assert [(e.document.path.name, summary(e)) for e in events] == [
        ("a.pdf", (0, 1)), ("a.pdf", (1, 2)), ("a.pdf", (2, 3)), ("a.pdf", None), ("b.pdf", (0, 7)), ("b.pdf", None),
    ]  # fmt: skip
    assert all(e.thumbnail[8:12] == b"WEBP" for e in events if isinstance(e, PageRendered))


def test_stored_pages_are_not_rendered(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [1, 2, 3, 4])
    for stored, numbers in (({digest(path): {0, 2}}, [1, 3]), ({"0" * 32: {0, 2}}, [0, 1, 2, 3]),
                            ({digest(path): {0, 1, 2, 3}}, [])):  # fmt: skip
        with Renderer([RenderRequest(documents(tmp_path)[0], stored)]) as renderer:
            events: list[Any] = list(renderer)
        assert [e.number for e in events if isinstance(e, PageRendered)] == numbers
        assert events[-1] == DocumentFinished(documents(tmp_path)[0], events[-1].identity, total=4)
        assert events[-1].identity.digest == digest(path)


def test_bounded_queue(tmp_path):
    write_pdf(tmp_path / "a.pdf", list(range(60)))
    with Renderer([RenderRequest(documents(tmp_path)[0])], queue_size=4) as renderer:
        first: Any = next(iter(renderer))
        assert first.number == 0
        deadline = time.monotonic() + 60
        while renderer._queue.qsize() < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)  # long enough for more, if it went on
        assert renderer._queue.qsize() == 4


def test_unreadable_document(tmp_path):
    write_pdf(tmp_path / "a.pdf", [1])
    (tmp_path / "b.pdf").write_text("nonsense")
    write_pdf(tmp_path / "c.pdf", [3])
    with Renderer(RenderRequest(d) for d in documents(tmp_path)) as renderer:
        events: list[Any] = list(renderer)
    assert [(e.document.path.name, summary(e)) for e in events] == [
        ("a.pdf", (0, 1)), ("a.pdf", None), ("b.pdf", "not a PDF, despite its extension"), ("c.pdf", (0, 3)),
        ("c.pdf", None),
    ]  # fmt: skip


def test_killed_process_loses_no_page(tmp_path):
    write_pdf(tmp_path / "a.pdf", list(range(40)))
    with Renderer([RenderRequest(documents(tmp_path)[0])], queue_size=2) as renderer:
        pages: Iterator[Any] = iter(renderer)
        next(pages)
        time.sleep(0.5)  # the child waits for room in the queue
        os.kill(renderer.process._child.pid, signal.SIGSEGV)
        rest = list(pages)
    assert [summary(e) for e in rest] == [*((n, n) for n in range(1, 40)), None]


def test_pages_that_exceed_the_memory_limit(tmp_path):
    contents = [HUNGRY, number_content(1), HUNGRY, number_content(2), HUNGRY, HUNGRY, number_content(3)]
    path = write_pages(tmp_path / "a.pdf", contents)
    with Renderer([RenderRequest(documents(path)[0])], memory=MEMORY) as renderer:
        events: list[Any] = list(renderer)
    assert [summary(e) for e in events] == [
        *((i, n or "needs more than 0.125 GB to render") for i, n in enumerate((0, 1, 0, 2, 0, 0, 3))), None
    ]  # fmt: skip
    assert {e.total for e in events[:-1]} == {7}


def test_pages_that_hang(tmp_path):
    path = write_pages(tmp_path / "a.pdf", [number_content(1), ENDLESS, number_content(2), ENDLESS, number_content(3)])
    with Renderer([RenderRequest(documents(path)[0])], seconds=1.0) as renderer:
        events: list[Any] = list(renderer)
    slow = "took longer than 1 seconds to render"
    assert [summary(e) for e in events] == [(0, 1), (1, slow), (2, 2), (3, slow), (4, 3), None]


def test_document_with_many_hanging_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOST_SECONDS", 1.5)
    path = write_pages(tmp_path / "a.pdf", [number_content(1), ENDLESS, ENDLESS, ENDLESS, number_content(2)])
    with Renderer([RenderRequest(documents(path)[0])], seconds=1.0) as renderer:
        events: list[Any] = list(renderer)
    assert [e.number for e in events[:-1]] == [0, 1, 2]
    assert isinstance(events[-1], DocumentFinished)
    assert "skipped the rest" in str(events[-1].problem)


def test_stopped_process(tmp_path):
    write_pdf(tmp_path / "a.pdf", list(range(12)))
    with Renderer([RenderRequest(documents(tmp_path)[0])], queue_size=2, seconds=1.0) as renderer:
        pages: Iterator[Any] = iter(renderer)
        next(pages)
        os.kill(renderer.process._child.pid, signal.SIGSTOP)
        rest = list(pages)
    assert [e.number for e in rest[:-1]] == [*range(1, 12)]
    assert len([e for e in rest if isinstance(e, PageFailed)]) <= 1


def test_leaving_early_ends_the_process(tmp_path):
    write_pdf(tmp_path / "a.pdf", list(range(60)))
    with Renderer([RenderRequest(documents(tmp_path)[0])]) as renderer:
        next(iter(renderer))
        child = renderer.process._child
    assert child.poll() is not None
    assert not [t for t in threading.enumerate() if t.name == "anchorfold-render"]


def test_identity_of_the_rendered_bytes(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [1, 2])
    (tmp_path / "b.pdf").write_text("nonsense")
    with Renderer(RenderRequest(d) for d in documents(tmp_path)) as renderer:
        events: list[Any] = list(renderer)
    status = path.stat()
    expected = FileIdentity(digest(path), status.st_size, status.st_mtime_ns)
    assert [e.identity for e in events] == [expected] * 3 + [None]


def test_file_changed_after_listing(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [1])
    (listed,) = documents(path)
    write_pdf(path, [2, 3])
    with Renderer([RenderRequest(listed)]) as renderer:
        events: list[Any] = list(renderer)
    assert [summary(e) for e in events] == [(0, 2), (1, 3), None]
    assert {e.identity.digest for e in events} == {digest(path)}


def test_file_replaced_during_a_crash(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", list(range(40)))
    old = digest(path)
    with Renderer([RenderRequest(documents(path)[0])], queue_size=2) as renderer:
        pages: Iterator[Any] = iter(renderer)
        next(pages)
        time.sleep(0.5)  # the child waits for room in the queue
        write_pdf(path, list(range(500, 540)))
        os.kill(renderer.process._child.pid, signal.SIGSEGV)
        rest = list(pages)
    assert all(read_number(e.image) < 500 for e in rest if isinstance(e, PageRendered))
    assert rest[-1].problem == "changed while it was read"
    assert {e.identity.digest for e in rest} == {old}


def test_no_output_of_libraries(tmp_path, capfd):
    (tmp_path / "a.tiff").write_bytes(truncated_tiff())
    page_image(1).save(tmp_path / "b.tiff", save_all=True, append_images=[page_image(2)])
    (tmp_path / "b.tiff").write_bytes((tmp_path / "b.tiff").read_bytes()[:-11_000])
    with Renderer(RenderRequest(d) for d in documents(tmp_path)) as renderer:
        problems = {
            e.document.path.name: e.problem for e in cast(Iterator[Any], renderer) if getattr(e, "problem", None)
        }
    assert problems == {"a.tiff": "not a supported image", "b.tiff": "damaged image"}
    assert capfd.readouterr() == ("", "")


def test_modules_in_the_current_folder_are_not_imported(tmp_path, monkeypatch):
    write_pdf(tmp_path / "a.pdf", [1])
    (tmp_path / "pypdfium2.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    with Renderer(RenderRequest(d) for d in documents("a.pdf")) as renderer:
        assert [summary(e) for e in renderer] == [(0, 1), None]
    assert not (tmp_path / "run").exists()
