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
