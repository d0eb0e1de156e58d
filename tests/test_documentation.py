"""Examples in docstrings and in the README run."""

import contextlib
import doctest
import importlib.util
import io
import pkgutil
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentence_transformers
import torch
import typer
from PIL import Image

import anchorfold
from anchorfold.cli.app import app, load_commands
from tests.report_pages import write_report

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


@pytest.fixture(scope="module")
def model():
    return anchorfold.load("nano")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with documents in reports/."""
    folder = tmp_path_factory.mktemp("work")
    write_report(folder)
    with contextlib.chdir(folder):
        yield folder


@pytest.fixture(scope="module")
def encoder(checkpoints):
    return sentence_transformers.MultiVectorEncoder(str(checkpoints["colpali"]), device="cpu")


@pytest.fixture(scope="module")
def shared(model, encoder, folder):
    """What examples may use without making it."""
    index = anchorfold.Index.create("shared.index", model, anchorfold.AnchorFold(ratio=0.1))
    index.add("reports")
    images = [Image.linear_gradient("L"), Image.radial_gradient("L"), Image.new("L", (600, 800), 255)]
    return {
        "anchorfold": anchorfold,
        "torch": torch,
        "model": model,
        "images": images,
        "index": index,
        "encoder": encoder,
    }


def with_examples():
    for module in pkgutil.walk_packages(anchorfold.__path__, "anchorfold."):
        source = str(importlib.util.find_spec(module.name).origin)
        text = Path(source).read_text("utf-8") if source.endswith(".py") else ""
        if text.count(">>>") > text.count("+SKIP"):  # a cluster is not at hand everywhere
            yield module.name


@pytest.mark.parametrize("name", with_examples())
def test_examples_in_docstrings(name, shared):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testmod(importlib.import_module(name), extraglobs=shared, optionflags=flags)
    assert result.attempted > 0
    assert result.failed == 0


def run_python(name, blocks, names):
    """Run the Python of a document in one namespace; what it prints must be what is shown. Counts what was compared."""
    compared = 0
    for (language, code), (next_language, expected) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), names)
        if next_language == "" and expected.strip() and "print" in code:
            assert printed.getvalue() == expected
            compared += 1
    return compared


def test_python_in_the_readme(folder, tmp_path, monkeypatch):
    """Each block runs as it is copied: in an empty namespace, in a folder with documents in reports/."""
    shutil.copytree(folder / "reports", tmp_path / "reports")
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(README)
    for number, (language, _) in enumerate(blocks):
        if language == "python":
            run_python("README.md", blocks[number : number + 2], {})


def commands():
    for language, code in BLOCK.findall(README):
        if language == "sh":
            yield from (line for line in code.splitlines() if line.startswith("anchorfold "))


@pytest.mark.parametrize("line", commands())
def test_commands_in_the_readme_exist(line):
    load_commands()
    command: Any = typer.main.get_command(app)
    words = shlex.split(line, comments=True)[1:]
    while hasattr(command, "commands"):  # a group of them
        command = command.commands.get(words.pop(0))
        assert command is not None, line
    command.make_context(command.name, [word.replace("...", "x") for word in words], resilient_parsing=False)
