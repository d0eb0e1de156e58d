import hashlib
import os
import signal
import threading
import time

import pytest

from anchorfold.documents import (
    DocumentFinished,
    FileIdentity,
    PageFailed,
    PageRendered,
    PagesCounted,
    Renderer,
    Request,
    find_documents,
    rendering,
)  # fmt: skip
from tests.documents.hostile import ENDLESS, HUNGRY, number_content, truncated_tiff, write_pages
from tests.number_reader import page_image, read_number, write_pdf

MEMORY = 2**27


def documents(*paths):
    return list(find_documents(paths, lambda *p: pytest.fail(str(p))))


def summary(event):
    """A page's number and what is on it or wrong with it; of the end of a document only what is wrong."""
    if isinstance(event, DocumentFinished):
        return event.problem
    return event.number, read_number(event.image) if isinstance(event, PageRendered) else event.problem


def digest(path):
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def test_all_pages_in_order_with_thumbnails_and_an_end(tmp_path):
    write_pdf(tmp_path / "a.pdf", [1, 2, 3])
    write_pdf(tmp_path / "b.pdf", [7])
    with Renderer(Request(d) for d in documents(tmp_path)) as renderer:
        events = list(renderer)
    assert [(e.document.path.name, summary(e)) for e in events] == [
        ("a.pdf", (0, 1)), ("a.pdf", (1, 2)), ("a.pdf", (2, 3)), ("a.pdf", None), ("b.pdf", (0, 7)), ("b.pdf", None),
    ]  # fmt: skip
    assert all(e.thumbnail[8:12] == b"WEBP" for e in events if isinstance(e, PageRendered))


def test_pages_that_are_stored_of_this_version_are_left_out(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [1, 2, 3, 4])
    for stored, numbers in (({digest(path): {0, 2}}, [1, 3]), ({"0" * 32: {0, 2}}, [0, 1, 2, 3]),
                            ({digest(path): {0, 1, 2, 3}}, [])):  # fmt: skip
        with Renderer([Request(documents(tmp_path)[0], stored)]) as renderer:
            events = list(renderer)
        assert [e.number for e in events if isinstance(e, PageRendered)] == numbers
        assert events[-1] == DocumentFinished(documents(tmp_path)[0], events[-1].identity)
        assert events[-1].identity.digest == digest(path)


def test_it_runs_ahead_but_not_far(tmp_path):
    write_pdf(tmp_path / "a.pdf", list(range(60)))
    with Renderer([Request(documents(tmp_path)[0])], ahead=4) as renderer:
        first = next(iter(renderer))
        assert first.number == 0
        deadline = time.monotonic() + 60
        while renderer._out.qsize() < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)  # long enough for more, if it went on
        assert renderer._out.qsize() == 4


def test_a_bad_document_does_not_stop_the_others(tmp_path):
    write_pdf(tmp_path / "a.pdf", [1])
    (tmp_path / "b.pdf").write_text("nonsense")
    write_pdf(tmp_path / "c.pdf", [3])
    with Renderer(Request(d) for d in documents(tmp_path)) as renderer:
        events = list(renderer)
    assert [(e.document.path.name, summary(e)) for e in events] == [
        ("a.pdf", (0, 1)), ("a.pdf", None), ("b.pdf", "not a PDF, whatever its name says"), ("c.pdf", (0, 3)),
        ("c.pdf", None),
    ]  # fmt: skip


def test_a_renderer_that_is_killed_costs_nothing(tmp_path):
    write_pdf(tmp_path / "a.pdf", list(range(40)))
    with Renderer([Request(documents(tmp_path)[0])], ahead=2) as renderer:
        pages = iter(renderer)
        next(pages)
        time.sleep(0.5)  # the child waits for room in the queue
        os.kill(renderer.process._child.pid, signal.SIGSEGV)
        rest = list(pages)
    assert [summary(e) for e in rest] == [*((n, n) for n in range(1, 40)), None]


def test_pages_that_end_the_renderer_cost_themselves_alone(tmp_path):
    contents = [HUNGRY, number_content(1), HUNGRY, number_content(2), HUNGRY, HUNGRY, number_content(3)]
    path = write_pages(tmp_path / "a.pdf", contents)
    with Renderer([Request(documents(path)[0])], memory=MEMORY) as renderer:
        events = list(renderer)
    assert [summary(e) for e in events] == [
        *((i, n or "needs more than 0.125 GB to render") for i, n in enumerate((0, 1, 0, 2, 0, 0, 3))), None
    ]  # fmt: skip
    assert {e.total for e in events[:-1]} == {7}


def test_a_page_that_hangs_is_given_up(tmp_path):
    path = write_pages(tmp_path / "a.pdf", [number_content(1), ENDLESS, number_content(2), ENDLESS, number_content(3)])
    with Renderer([Request(documents(path)[0])], seconds=1.0) as renderer:
        events = list(renderer)
    slow = "took longer than 1 seconds to render"
    assert [summary(e) for e in events] == [(0, 1), (1, slow), (2, 2), (3, slow), (4, 3), None]


def test_a_document_whose_lost_pages_take_long_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(rendering, "LOST_SECONDS", 1.5)
    path = write_pages(tmp_path / "a.pdf", [number_content(1), ENDLESS, ENDLESS, ENDLESS, number_content(2)])
    with Renderer([Request(documents(path)[0])], seconds=1.0) as renderer:
        events = list(renderer)
    assert [e.number for e in events[:-1]] == [0, 1, 2]
    assert isinstance(events[-1], DocumentFinished)
    assert "given up" in str(events[-1].problem)


def test_a_renderer_that_is_stopped_is_not_waited_for(tmp_path):
    write_pdf(tmp_path / "a.pdf", list(range(12)))
    with Renderer([Request(documents(tmp_path)[0])], ahead=2, seconds=1.0) as renderer:
        pages = iter(renderer)
        next(pages)
        os.kill(renderer.process._child.pid, signal.SIGSTOP)
        rest = list(pages)
    assert [e.number for e in rest[:-1]] == [*range(1, 12)]
    assert len([e for e in rest if isinstance(e, PageFailed)]) <= 1  # none if it was stopped between two pages


def test_leaving_early_ends_the_child(tmp_path):
    write_pdf(tmp_path / "a.pdf", list(range(60)))
    with Renderer([Request(documents(tmp_path)[0])]) as renderer:
        next(iter(renderer))
        child = renderer.process._child
    assert child.poll() is not None
    assert not [t for t in threading.enumerate() if t.name == "anchorfold-render"]


def test_counting_ahead(tmp_path):
    write_pdf(tmp_path / "a.pdf", [1, 2, 3])
    (tmp_path / "b.pdf").write_text("nonsense")
    listed = documents(tmp_path)
    with Renderer([Request(listed[0])], census=listed) as renderer:
        assert next(iter(renderer)) == PagesCounted(listed[0], 3)


def test_every_event_carries_the_identity_of_the_bytes_that_were_rendered(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [1, 2])
    (tmp_path / "b.pdf").write_text("nonsense")
    with Renderer(Request(d) for d in documents(tmp_path)) as renderer:
        events = list(renderer)
    status = path.stat()
    expected = FileIdentity(digest(path), status.st_size, status.st_mtime_ns)
    assert [e.identity for e in events] == [expected] * 3 + [None]


def test_the_identity_is_of_what_was_read_not_of_what_was_listed(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [1])
    (listed,) = documents(path)
    write_pdf(path, [2, 3])
    with Renderer([Request(listed)]) as renderer:
        events = list(renderer)
    assert [summary(e) for e in events] == [(0, 2), (1, 3), None]
    assert {e.identity.digest for e in events} == {digest(path)}


def test_a_file_that_was_replaced_during_a_crash_is_not_mixed(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", list(range(40)))
    old = digest(path)
    with Renderer([Request(documents(path)[0])], ahead=2) as renderer:
        pages = iter(renderer)
        next(pages)
        time.sleep(0.5)  # the child waits for room in the queue
        write_pdf(path, list(range(500, 540)))
        os.kill(renderer.process._child.pid, signal.SIGSEGV)
        rest = list(pages)
    assert all(read_number(e.image) < 500 for e in rest if isinstance(e, PageRendered))
    assert rest[-1].problem == "changed while it was read"
    assert {e.identity.digest for e in rest} == {old}


def test_nothing_that_a_library_says_reaches_the_terminal(tmp_path, capfd):
    (tmp_path / "a.tiff").write_bytes(truncated_tiff())
    page_image(1).save(tmp_path / "b.tiff", save_all=True, append_images=[page_image(2)])
    (tmp_path / "b.tiff").write_bytes((tmp_path / "b.tiff").read_bytes()[:-11_000])
    with Renderer(Request(d) for d in documents(tmp_path)) as renderer:
        problems = {e.document.path.name: e.problem for e in renderer if getattr(e, "problem", None)}
    assert problems == {"a.tiff": "not an image that can be read", "b.tiff": "a damaged image"}
    assert capfd.readouterr() == ("", "")


def test_files_of_the_current_folder_are_not_run(tmp_path, monkeypatch):
    write_pdf(tmp_path / "a.pdf", [1])
    (tmp_path / "pypdfium2.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    with Renderer(Request(d) for d in documents("a.pdf")) as renderer:
        assert [summary(e) for e in renderer] == [(0, 1), None]
    assert not (tmp_path / "run").exists()
