"""An index of sample documents made with the embedded model, and a real server process on it."""

import re
import shutil
import subprocess
import sys

import pytest

from anchorfold import Index
from anchorfold.demo.sample_documents import forms, handbook
from anchorfold.server.service import IndexService


@pytest.fixture(scope="session")
def served_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    (folder / "office").mkdir()
    handbook().output(str(folder / "office" / "handbook.pdf"))
    forms().output(str(folder / "office" / "forms.pdf"))
    known = {"handbook.pdf": {"team": "people", "year": 2023}, "forms.pdf": {"team": "sales", "signed": True}}
    Index.create(folder / "my.index").add(folder / "office", metadata=lambda path: known[path.name])
    return folder


@pytest.fixture(scope="session")
def service(served_folder):
    service = IndexService(Index.open(served_folder / "my.index"))
    service.warm_up()
    return service


@pytest.fixture
def own_copy(served_folder, tmp_path):
    """A copy that a test may change; its documents are the originals, by their absolute paths."""
    shutil.copytree(served_folder / "my.index", tmp_path / "my.index")
    return tmp_path / "my.index"


@pytest.fixture(scope="session")
def server(served_folder):
    """The address of `anchorfold serve` in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "anchorfold",
        "serve",
        str(served_folder / "my.index"),
        "--port",
        "0",
        "--no-browser",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    line = process.stdout.readline()
    address = re.search(r"http://\S+", line)
    assert address, line + process.stdout.read()
    yield address.group()
    process.terminate()
    process.wait(timeout=20)


@pytest.fixture(scope="module")  # while it runs, asyncio.run fails in this process
def browser():
    """Chromium; skips where there is none."""
    from playwright.sync_api import sync_playwright

    from tests.server.browser import launch

    with sync_playwright() as playwright:
        chromium = launch(playwright)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser, server):
    """The search page in a new browser context; errors of its console fail the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, color_scheme="light")
    tab = context.new_page()
    problems = []
    tab.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    tab.on("pageerror", lambda e: problems.append(str(e)))
    tab.expected_problems = 0
    tab.goto(server)
    yield tab
    context.close()
    assert len(problems) <= tab.expected_problems, problems
