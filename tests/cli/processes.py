"""Commands in processes of their own, forked from one that has imported the libraries: a second each, not five."""

import multiprocessing
import os
import runpy
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ENVIRONMENT = {**os.environ, "COLUMNS": "200", "OMP_WAIT_POLICY": "passive"}
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.cli.preloaded"])


def command(*arguments: object) -> list[str]:
    """For a process that starts from nothing."""
    return [sys.executable, "-m", "anchorfold", *map(str, arguments)]


def _main(arguments: list[str], cwd: str, folder: str) -> None:
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(os.open(f"{folder}/{name}", os.O_RDWR), descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    sys.argv = ["anchorfold", *arguments]
    runpy.run_module("anchorfold", run_name="__main__", alter_sys=True)


def run(
    *arguments: object, code: int = 0, stdin: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; it must end with this exit code, and without a traceback."""
    with TemporaryDirectory() as folder:
        for name, content in (("stdin", stdin or ""), ("stdout", ""), ("stderr", "")):
            Path(folder, name).write_text(content)
        before = os.environ.copy()
        os.environ.update(ENVIRONMENT)  # for the process that all others are forked from
        try:
            process = _forks.Process(target=_main, args=([str(a) for a in arguments], str(cwd or os.getcwd()), folder))
            process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        process.join()
        out, err = (Path(folder, name).read_text() for name in ("stdout", "stderr"))
    assert process.exitcode == code, f"exit {process.exitcode}\n{out}\n{err}"
    assert "Traceback" not in err
    return subprocess.CompletedProcess([str(a) for a in arguments], process.exitcode, out, err)
