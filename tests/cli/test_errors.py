"""Errors that users can fix are one line with exit code 1; other exceptions are internal errors with exit code 70."""

import errno
import logging

import pytest

from anchorfold.cli import app as cli
from anchorfold.errors import AnchorFoldError, InvalidArgumentError


@pytest.fixture(autouse=True)
def _restore_logging():
    yield
    cli.logger.handlers.clear()
    cli.logger.setLevel(logging.NOTSET)


def run(monkeypatch, capsys, error, *options):
    """Run `anchorfold models` such that it raises an error; return the exit code and stderr."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr("anchorfold.cli.list_commands.print_table", fail)
    monkeypatch.setattr("sys.argv", ["anchorfold", *options, "models"])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return exit_.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (AnchorFoldError("the index is damaged:\nrepair it."), "anchorfold: the index is damaged: repair it.\n"),
        (InvalidArgumentError("ratio must be in (0, 1], got 2."), "anchorfold: ratio must be in (0, 1], got 2.\n"),
        (ConnectionError("the hub is not reachable."), "anchorfold: the hub is not reachable.\n"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.pdf"), "anchorfold: No such file: a.pdf\n"),
        (PermissionError(errno.EACCES, "Permission denied", "a.pdf"), "anchorfold: Permission denied: a.pdf\n"),
    ],
)
def test_errors_that_users_can_fix(monkeypatch, capsys, error, message):
    assert run(monkeypatch, capsys, error) == (1, message)


@pytest.mark.parametrize("error", [ValueError("x is wrong"), RuntimeError("x is wrong"), KeyError("x is wrong")])
def test_internal_errors(monkeypatch, capsys, error):
    code, output = run(monkeypatch, capsys, error)
    assert code == 70
    assert output.startswith(f"anchorfold: internal error: {type(error).__name__}: ")
    assert "anchorfold -v" in output
    assert output.count("\n") == 1


@pytest.mark.parametrize("error", [ValueError("x is wrong"), AnchorFoldError("x is wrong")])
def test_verbose_mode_prints_the_traceback(monkeypatch, capsys, error):
    _, output = run(monkeypatch, capsys, error, "-v")
    assert "Traceback (most recent call last)" in output
    assert output.splitlines()[-1].startswith("anchorfold: ")
