"""Commands in processes of their own."""

import subprocess
from pathlib import Path

from tests.forked import completed


def run(
    *arguments: object, code: int = 0, stdin: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; it must end with this exit code, and without a traceback."""
    process = completed(*arguments, stdin=stdin, cwd=cwd)
    assert process.returncode == code, f"exit {process.returncode}\n{process.stdout}\n{process.stderr}"
    assert "Traceback" not in process.stderr
    return process
