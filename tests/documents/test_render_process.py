"""The parent's side of the renderer's process, also against processes that were taken over."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from anchorfold.documents import Renderer, find_documents, limits, render_process
from anchorfold.documents.messages import Opened, Picture
from anchorfold.documents.render_process import RendererFailedError, RenderProcess
from anchorfold.documents.rendering import Request
from anchorfold.errors import AnchorFoldError
from tests.documents.hostile import ENDLESS, HUNGRY, number_content, write_pages
from tests.number_reader import read_number, write_pdf

# Answers like a renderer until it meets a file called evil.pdf.
TAKEN_OVER = """
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


class Payload:
    """Runs in whoever unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def replace_renderer(folder: Path, monkeypatch, evil: str) -> None:
    (folder / "child.py").write_text(TAKEN_OVER.format(evil=evil))
    monkeypatch.setattr(render_process, "COMMAND", [sys.executable, str(folder / "child.py")])


def events_of(folder: Path) -> list[tuple[str, int | None, str | None]]:
    requests = [Request(d) for d in find_documents([folder], lambda *p: pytest.fail(str(p)))]
    with Renderer(requests, seconds=2.0) as renderer:
        return [(e.document.path.name, getattr(e, "number", None), getattr(e, "problem", None)) for e in renderer]


GARBLED = "crashed the renderer (garbled message)"


@pytest.mark.parametrize(
    ("evil", "problem"),
    [
        ("os.write(self.answers, b'\\xff' * 5000); os._exit(0)", GARBLED),
        ("self.answer('picture', page=0, width=5, height=5)", GARBLED),
        ("self.answer('opened', pages=9, digest='../../etc/passwd', size=1, modified=1)", GARBLED),
        ("self.answer('done')", GARBLED),
        ("self.answer('document problem', reason='\\x1b[31m')", GARBLED),
        (
            "self.answer('opened', pages=9, digest='0' * 32, size=1, modified=1); self.answer('started', page=7)",
            GARBLED,
        ),
        ("os._exit(3)", "crashed the renderer (exit 3)"),
        ("os.kill(os.getpid(), 11)", "crashed the renderer (signal 11)"),
        ("os.close(self.answers); import time; time.sleep(60)", "crashed the renderer (signal 9)"),
        ("import time; time.sleep(60)", "took longer than 2 seconds to render"),
    ],
)
def test_a_renderer_that_was_taken_over_costs_a_document_and_one_line(tmp_path, monkeypatch, evil, problem):
    (tmp_path / "docs").mkdir()
    write_pdf(tmp_path / "docs/a.pdf", [1])
    write_pdf(tmp_path / "docs/evil.pdf", [2])
    write_pdf(tmp_path / "docs/z.pdf", [3])
    replace_renderer(tmp_path, monkeypatch, evil)
    events = events_of(tmp_path / "docs")
    lost = [e for e in events if e[2]]
    assert [(name, why) for name, _, why in lost] == [("evil.pdf", problem)]
    assert [e for e in events if e[0] != "evil.pdf"] == [(n, i, None) for n in ("a.pdf", "z.pdf") for i in (0, None)]


def test_nothing_from_the_renderer_is_run(tmp_path, monkeypatch):
    """The messages were pickles once: whoever took over the renderer ran what they liked in its parent."""
    pickle.loads(pickle.dumps(Payload(tmp_path / "proof"))).close()
    assert (tmp_path / "proof").exists()
    data = pickle.dumps(Payload(tmp_path / "run"), protocol=5)
    evil = f"os.write(self.answers, {len(data).to_bytes(8, 'little') + data!r})"
    (tmp_path / "docs").mkdir()
    write_pdf(tmp_path / "docs/evil.pdf", [2])
    replace_renderer(tmp_path, monkeypatch, evil)
    assert events_of(tmp_path / "docs") == [("evil.pdf", None, GARBLED)]
    assert not (tmp_path / "run").exists()


def test_a_renderer_that_does_not_start_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(render_process, "COMMAND", [sys.executable, "-c", "import nothing_like_this"])
    write_pdf(tmp_path / "a.pdf", [1])
    with pytest.raises(AnchorFoldError, match="does not start"):
        events_of(tmp_path)
    monkeypatch.setattr(render_process, "COMMAND", [str(tmp_path / "no such program")])
    with pytest.raises(AnchorFoldError, match="does not start"):
        events_of(tmp_path)


def test_the_last_document_stays_open_until_it_changes(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [1, 2])
    process = RenderProcess()
    try:

        def first_page():
            opened, _, picture = process.render(str(path), [0], 40_000)
            assert isinstance(opened, Opened)
            assert isinstance(picture, Picture)
            return opened.identity.digest, read_number(picture.image)

        digest, number = first_page()
        child = process._child
        assert first_page() == (digest, 1)
        write_pdf(path, [7])
        changed, number = first_page()
        assert (changed != digest, number) == (True, 7)
        os.unlink(path)
        (problem,) = process.render(str(path), [0], 40_000)
        assert problem.reason == "no such file or directory"
        assert process._child is child
    finally:
        process.close()


def test_leaving_in_the_middle_does_not_mix_answers(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [1, 2, 3])
    process = RenderProcess()
    try:
        with closing(cast(Generator, process.render(str(path), None, 40_000))) as answers:
            next(answers)
        assert [read_number(a.image) for a in process.render(str(path), [2], 40_000) if isinstance(a, Picture)] == [3]
    finally:
        process.close()


def test_a_small_file_cannot_take_much_memory(tmp_path):
    path = write_pages(tmp_path / "a.pdf", [HUNGRY])
    assert path.stat().st_size < 1_400
    limit = 2**28
    script = (
        "import resource, subprocess, sys\n"
        "from anchorfold.documents.render_process import *\n"
        "try:\n"
        f"    list(RenderProcess({limit}).render({str(path)!r}, None, 40_000))\n"
        "except RendererFailedError as failure:\n"
        "    print(failure)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == 'darwin' else 1024))\n"
    )
    completed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    problem, peak = completed.stdout.splitlines()
    assert problem == "needs more than 0.25 GB to render"
    assert limit < int(peak) < 2 * limit


def test_memory_is_watched_where_the_system_has_no_proc(monkeypatch):
    resident = limits.memory_in_use()

    def refuse(*_):
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", refuse)
    assert resident * 0.9 <= limits.memory_in_use() < resident * 100  # the peak, in the same unit


def test_the_default_is_a_share_of_the_machine():
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert limits.LEAST <= limits.default_memory() <= max(limits.LEAST, machine // 4)


def test_a_renderer_whose_parent_was_killed_ends(tmp_path):
    """Also one that is deep in a page, where it cannot see that nobody listens any more."""
    path = write_pages(tmp_path / "a.pdf", [number_content(1), ENDLESS])
    child = (
        "from anchorfold.documents import limits, render_child\n"
        "limits.GRACE = 0\n"
        "render_child.main()\n"
    )  # fmt: skip
    parent = (
        "import sys\n"
        "from anchorfold.documents import render_process\n"
        f"render_process.COMMAND = [sys.executable, '-c', {child!r}]\n"
        "process = render_process.RenderProcess(seconds=2)\n"
        f"for answer in process.render({str(path)!r}, None, 40_000):\n"
        "    print(process._child.pid, flush=True)\n"
    )
    running = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    pids = {int(running.stdout.readline()) for _ in range(4)}  # opened, started, its picture, started
    running.kill()
    running.communicate()
    (pid,) = pids
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").exists() and " Z " in Path(f"/proc/{pid}/stat").read_text():
            return  # it has ended; whoever adopted it has not noticed yet
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("it ran on")


def test_a_renderer_that_is_killed_from_another_thread_fails(tmp_path):
    path = write_pages(tmp_path / "a.pdf", [ENDLESS])
    process = RenderProcess()
    answers = process.render(str(path), None, 40_000)
    next(answers)
    killer = threading.Timer(0.3, process.kill)
    killer.start()
    with pytest.raises(RendererFailedError, match="signal 9"):
        list(answers)


def test_a_system_without_descriptors_is_named_as_what_it_is(monkeypatch):
    def refuse(*_, **__):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(AnchorFoldError, match="does not start: too many open files"):
        next(RenderProcess().count(["a.pdf"], 1.0))
