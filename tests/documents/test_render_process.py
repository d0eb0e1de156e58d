"""Failures and attacks of the renderer process."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from anchorfold.documents import Document, PageRendered, Renderer, RenderRequest, limits, list_documents, render_process
from anchorfold.documents.render_events import DocumentOpened
from anchorfold.documents.render_process import RendererFailedError, RenderProcess
from anchorfold.errors import AnchorFoldError
from tests.documents.malicious_files import ENDLESS, HUNGRY, number_content, write_pages
from tests.number_reader import read_number, write_pdf

# Behaves like the renderer until it reads a file named evil.pdf.
COMPROMISED = """
import os, sys
from anchorfold.documents import render_child
honest = render_child.RenderChild.render
def render(self, path, **rest):
    if path.endswith("evil.pdf"):
        {evil}
    honest(self, path, **rest)
render_child.RenderChild.render = render
render_child.main()
"""


def request_of(path: str | Path, pages: list[int] | None = None) -> RenderRequest:
    return RenderRequest(Document(str(path), Path(path), 0, 0), pages=pages)


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def replace_renderer(folder: Path, monkeypatch, evil: str) -> None:
    (folder / "child.py").write_text(COMPROMISED.format(evil=evil))
    monkeypatch.setattr(render_process, "COMMAND", [sys.executable, str(folder / "child.py")])


def events_of(folder: Path) -> list[tuple[str, int | None, str | None]]:
    requests = [RenderRequest(document) for document in list_documents(folder).documents]
    with Renderer(requests, seconds=2.0) as renderer:
        return [(e.document.path.name, getattr(e, "number", None), getattr(e, "problem", None)) for e in renderer]


INVALID = "crashed the renderer (invalid message)"


@pytest.mark.parametrize(
    ("evil", "problem"),
    [
        ("os.write(self.output, b'\\xff' * 5000); os._exit(0)", INVALID),
        ("self.send('page', page=0, width=5, height=5)", INVALID),
        ("self.send('opened', pages=9, digest='../../etc/passwd', size=1, modified=1)", INVALID),
        ("self.send('ready')", INVALID),
        ("self.send('document_failed', reason='\\x1b[31m')", INVALID),
        (
            "self.send('opened', pages=1, digest='0' * 32, size=1, modified=1); "
            "self.send('page_failed', page=7, reason='x')",
            INVALID,
        ),
        ("os._exit(3)", "crashed the renderer (exit 3)"),
        ("os.kill(os.getpid(), 11)", "crashed the renderer (signal 11)"),
        ("os.close(self.output); import time; time.sleep(60)", "crashed the renderer (signal 9)"),
        ("import time; time.sleep(60)", "took longer than 2 seconds to render"),
    ],
)
def test_compromised_renderer_loses_one_document(tmp_path, monkeypatch, evil, problem):
    (tmp_path / "docs").mkdir()
    write_pdf(tmp_path / "docs/a.pdf", [1])
    write_pdf(tmp_path / "docs/evil.pdf", [2])
    write_pdf(tmp_path / "docs/z.pdf", [3])
    replace_renderer(tmp_path, monkeypatch, evil)
    events = events_of(tmp_path / "docs")
    lost = [e for e in events if e[2]]
    assert [(name, why) for name, _, why in lost] == [("evil.pdf", problem)]
    assert [e for e in events if e[0] != "evil.pdf"] == [(n, i, None) for n in ("a.pdf", "z.pdf") for i in (0, None)]


def test_messages_are_not_unpickled(tmp_path, monkeypatch):
    """Pickled messages would execute code in the parent."""
    pickle.loads(pickle.dumps(Payload(tmp_path / "proof"))).close()
    assert (tmp_path / "proof").exists()
    data = pickle.dumps(Payload(tmp_path / "run"), protocol=5)
    evil = f"os.write(self.output, {len(data).to_bytes(8, 'little') + data!r})"
    (tmp_path / "docs").mkdir()
    write_pdf(tmp_path / "docs/evil.pdf", [2])
    replace_renderer(tmp_path, monkeypatch, evil)
    assert events_of(tmp_path / "docs") == [("evil.pdf", None, INVALID)]
    assert not (tmp_path / "run").exists()


def test_renderer_that_does_not_start(tmp_path, monkeypatch):
    monkeypatch.setattr(render_process, "COMMAND", [sys.executable, "-c", "import nothing_like_this"])
    write_pdf(tmp_path / "a.pdf", [1])
    with pytest.raises(AnchorFoldError, match="cannot start the renderer"):
        events_of(tmp_path)
    monkeypatch.setattr(render_process, "COMMAND", [str(tmp_path / "no such program")])
    with pytest.raises(AnchorFoldError, match="cannot start the renderer"):
        events_of(tmp_path)


def test_last_document_stays_open_until_it_changes(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [1, 2])
    process = RenderProcess()
    try:

        def first_page():
            opened, page, _ = process.render(request_of(path, [0]), 40_000)
            assert isinstance(opened, DocumentOpened)
            assert isinstance(page, PageRendered)
            return opened.identity.digest, read_number(page.image)

        digest, number = first_page()
        child = process._child
        assert first_page() == (digest, 1)
        write_pdf(path, [7])
        changed, number = first_page()
        assert (changed != digest, number) == (True, 7)
        os.unlink(path)
        (finished,) = cast(Iterator[Any], process.render(request_of(path, [0]), 40_000))
        assert finished.problem == "no such file or directory"
        assert process._child is child
    finally:
        process.close()


def test_abandoned_request(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [1, 2, 3])
    process = RenderProcess()
    try:
        with closing(cast(Generator, process.render(request_of(path), 40_000))) as events:
            next(events)
        rest = process.render(request_of(path, [2]), 40_000)
        assert [read_number(e.image) for e in rest if isinstance(e, PageRendered)] == [3]
    finally:
        process.close()


def test_memory_limit(tmp_path):
    path = write_pages(tmp_path / "a.pdf", [HUNGRY])
    assert path.stat().st_size < 1_400
    limit = 2**28
    script = (
        "import resource, subprocess, sys\n"
        "from anchorfold.documents.render_process import *\n"
        "from tests.documents.test_render_process import request_of\n"
        "try:\n"
        f"    list(RenderProcess({limit}).render(request_of({str(path)!r}), 40_000))\n"
        "except RendererFailedError as failure:\n"
        "    print(failure)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == 'darwin' else 1024))\n"
    )
    completed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    problem, peak = completed.stdout.splitlines()
    assert problem == "needs more than 0.25 GB to render"
    assert limit < int(peak) < 2 * limit


def test_memory_in_use_without_proc(monkeypatch):
    resident = limits.memory_in_use()

    def refuse(*_):
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", refuse)
    assert resident * 0.9 <= limits.memory_in_use() < resident * 100  # the peak, in the same unit


def test_default_memory():
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert limits.MIN_MEMORY <= limits.default_memory() <= max(limits.MIN_MEMORY, machine // 4)


def test_renderer_ends_after_its_parent(tmp_path):
    """Also while it renders a page and does not read its input."""
    path = write_pages(tmp_path / "a.pdf", [number_content(1), ENDLESS])
    child = (
        "from anchorfold.documents import limits, render_child\n"
        "limits.GRACE = 0\n"
        "render_child.main()\n"
    )  # fmt: skip
    parent = (
        "import sys\n"
        "from anchorfold.documents import render_process\n"
        "from tests.documents.test_render_process import request_of\n"
        f"render_process.COMMAND = [sys.executable, '-c', {child!r}]\n"
        "process = render_process.RenderProcess(seconds=2)\n"
        f"for event in process.render(request_of({str(path)!r}), 40_000):\n"
        "    print(process._child.pid, flush=True)\n"
    )
    running = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    pids = {int(running.stdout.readline()) for _ in range(2)}  # opened and the first page
    running.kill()
    running.communicate()
    (pid,) = pids
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").exists() and " Z " in Path(f"/proc/{pid}/stat").read_text():
            return  # ended, but not reaped yet
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("it ran on")


def test_kill_from_another_thread(tmp_path):
    path = write_pages(tmp_path / "a.pdf", [ENDLESS])
    process = RenderProcess()
    events = process.render(request_of(path), 40_000)
    next(events)
    killer = threading.Timer(0.3, process.kill)
    killer.start()
    with pytest.raises(RendererFailedError, match="signal 9"):
        list(events)


def test_error_of_the_operating_system(monkeypatch):
    def refuse(*_, **__):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(AnchorFoldError, match="cannot start the renderer: too many open files"):
        next(RenderProcess().render(request_of("a.pdf"), 40_000))
