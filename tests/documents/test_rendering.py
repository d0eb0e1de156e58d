import os
import signal
import threading
import time

import pytest

from anchorfold.documents import FileIdentity, Renderer, find_documents, rendering
from anchorfold.documents.rendering import Request
from tests.number_reader import read_number, write_pdf


def documents(*paths):
    return list(find_documents(paths, lambda *p: pytest.fail(str(p))))


def test_all_pages_in_order_with_thumbnails_and_an_end(tmp_path):
    write_pdf(tmp_path / "a.pdf", [1, 2, 3])
    write_pdf(tmp_path / "b.pdf", [7])
    with Renderer(Request(d) for d in documents(tmp_path)) as renderer:
        events = list(renderer)
    seen = [(e.document.path.name, e.number, None if e.image is None else read_number(e.image)) for e in events]
    assert seen == [("a.pdf", 0, 1), ("a.pdf", 1, 2), ("a.pdf", 2, 3), ("a.pdf", None, None), ("b.pdf", 0, 7), ("b.pdf", None, None)]  # fmt: skip  # noqa: E501
    assert all(e.thumbnail.startswith(b"\xff\xd8") for e in events if e.image is not None)


def test_only_the_pages_that_are_wanted(tmp_path):
    write_pdf(tmp_path / "a.pdf", [1, 2, 3, 4])
    with Renderer([Request(documents(tmp_path)[0], [1, 3, 9])]) as renderer:
        assert [e.number for e in renderer if e.image is not None] == [1, 3]


def test_it_runs_ahead_but_not_far(tmp_path):
    write_pdf(tmp_path / "a.pdf", list(range(60)))
    with Renderer([Request(documents(tmp_path)[0])], ahead=4) as renderer:
        first = next(iter(renderer))
        time.sleep(1.0)
        assert first.number == 0
        assert renderer._out.qsize() == 4


def test_a_bad_document_does_not_stop_the_others(tmp_path):
    write_pdf(tmp_path / "a.pdf", [1])
    (tmp_path / "b.pdf").write_text("nonsense")
    write_pdf(tmp_path / "c.pdf", [3])
    with Renderer(Request(d) for d in documents(tmp_path)) as renderer:
        events = list(renderer)
    assert [e.document.path.name for e in events if e.problem] == ["b.pdf"]
    assert [read_number(e.image) for e in events if e.image is not None] == [1, 3]


def test_a_crash_of_the_renderer_costs_a_page(tmp_path):
    write_pdf(tmp_path / "a.pdf", list(range(40)))
    with Renderer([Request(documents(tmp_path)[0])], ahead=2) as renderer:
        pages = iter(renderer)
        next(pages)
        time.sleep(0.5)  # the child waits for room in the queue
        os.kill(renderer._child.pid, signal.SIGSEGV)
        rest = list(pages)
    assert any(e.problem and "signal 11" in e.problem for e in rest)
    assert len([e for e in rest if e.image is not None]) >= 37


def test_a_page_that_hangs_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(rendering, "PAGE_SECONDS", 1.0)
    write_pdf(tmp_path / "a.pdf", list(range(12)))
    with Renderer([Request(documents(tmp_path)[0])], ahead=2) as renderer:
        pages = iter(renderer)
        next(pages)
        os.kill(renderer._child.pid, signal.SIGSTOP)
        rest = list(pages)
    assert any(e.problem and "longer than" in e.problem for e in rest)
    assert rest[-2].number == 11


def test_silence_in_the_middle_of_a_message_is_not_waited_for():
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb", buffering=0) as inward, os.fdopen(theirs, "wb", buffering=0) as outward:
        outward.write((1000).to_bytes(8, "little") + b"half of it")
        with pytest.raises(TimeoutError):
            rendering.receive(inward, 0.2)


def test_leaving_early_ends_the_child(tmp_path):
    write_pdf(tmp_path / "a.pdf", list(range(60)))
    with Renderer([Request(documents(tmp_path)[0])]) as renderer:
        next(iter(renderer))
        child = renderer._child
    assert child.poll() is not None
    assert not [t for t in threading.enumerate() if t.name == "anchorfold-render"]


def test_counting_ahead(tmp_path):
    write_pdf(tmp_path / "a.pdf", [1, 2, 3])
    (tmp_path / "b.pdf").write_text("nonsense")
    found = documents(tmp_path)
    with Renderer([Request(found[0])], census=found) as renderer:
        list(renderer)
        assert renderer.counts == {found[0]: 3}


def test_every_event_carries_the_identity_of_the_bytes_that_were_rendered(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [1, 2])
    (tmp_path / "b.pdf").write_text("nonsense")
    with Renderer(Request(d) for d in documents(tmp_path)) as renderer:
        events = list(renderer)
    (document, _), found = documents(tmp_path), path.stat()
    expected = FileIdentity(document.digest, found.st_size, found.st_mtime_ns)
    assert [e.identity for e in events] == [expected] * 3 + [None] * 2


def test_the_identity_is_of_what_was_read_not_of_what_was_listed(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [1])
    (listed,) = documents(path)
    write_pdf(path, [2, 3])
    with Renderer([Request(listed)]) as renderer:
        events = list(renderer)
    assert [read_number(e.image) for e in events if e.image is not None] == [2, 3]
    assert {e.identity.digest for e in events} == {documents(path)[0].digest}


def test_a_file_that_was_replaced_during_a_crash_is_not_mixed(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", list(range(40)))
    old = documents(path)[0].digest
    with Renderer([Request(documents(path)[0])], ahead=2) as renderer:
        pages = iter(renderer)
        next(pages)
        time.sleep(0.5)  # the child waits for room in the queue
        write_pdf(path, list(range(500, 540)))
        os.kill(renderer._child.pid, signal.SIGSEGV)
        rest = list(pages)
    assert all(read_number(e.image) < 500 for e in rest if e.image is not None)
    assert [e.problem for e in rest if e.number is None] == ["changed while it was read", None]
    assert {e.identity.digest for e in rest} == {old}
