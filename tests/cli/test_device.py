"""`--device` is checked by every command that takes it, before anything is read or written."""

import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from anchorfold.cli.app import app, load_commands
from anchorfold.errors import AnchorFoldError

load_commands()
ARGUMENTS = {
    "ablate": ["variants", "."],
    "bench agreement": [".", "queries.jsonl"],
    "bench efficiency": [],
    "calibrate": [],
    "compress": [".", "-o", "my.index"],
    "eval": ["."],
    "explain": [".", "query"],
    "index": [".", "-o", "my.index"],
    "search": [".", "query"],
    "mcp": ["."],
    "serve": ["."],
}


def with_device(command, name=""):
    if hasattr(command, "commands"):  # a group of them
        return [f for n, c in command.commands.items() for f in with_device(c, f"{name} {n}".strip())]
    return [name] if any(p.name == "device" for p in command.params) else []


def test_all_commands_are_tested():
    assert set(with_device(get_command(app))) == set(ARGUMENTS)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_unavailable_device(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    completed = CliRunner().invoke(app, [*name.split(), *ARGUMENTS[name], "--device", "tpu"])
    assert isinstance(completed.exception, AnchorFoldError)
    assert str(completed.exception).startswith("unknown device 'tpu': choose ")
    assert not list(tmp_path.iterdir())


def test_message(tmp_path):
    command = [sys.executable, "-m", "anchorfold", "index", ".", "-o", "my.index", "--device", "tpu"]
    completed = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert completed.returncode == 1
    assert completed.stderr.startswith("anchorfold: unknown device 'tpu': choose ")
    assert completed.stderr.count("\n") == 1
