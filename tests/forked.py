"""Processes forked from one that has imported the libraries, which is faster than new interpreters."""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ENVIRONMENT = {**os.environ, "COLUMNS": "200", "OMP_WAIT_POLICY": "passive"}
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.preloaded"])
Pipe = _forks.Pipe


def start(target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """Run a function that a module has by name; killing the process is up to the caller."""
    before = os.environ.copy()
    os.environ.update(ENVIRONMENT)  # for the process that all others are forked from
    try:
        process = _forks.Process(target=target, args=arguments)
        process.start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return process


def _run(script: Path | None, arguments: list[str], environment: dict[str, str], cwd: str, folder: str) -> None:
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(os.open(f"{folder}/{name}", os.O_RDWR), descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    os.environ.update(environment)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)  # as a new interpreter does
    if script is None:
        sys.argv = ["anchorfold", *arguments]
        runpy.run_module("anchorfold", run_name="__main__", alter_sys=True)
    else:
        sys.argv = [str(script), *arguments]
        runpy.run_path(str(script), run_name="__main__")


@dataclass
class Running:
    """`anchorfold` or a script, at work; what it prints goes to files in a folder."""

    arguments: list[str]
    process: ForkServerProcess
    folder: Path

    def printed(self, stream: str) -> str:
        """What it has written to `stdout` or `stderr` so far."""
        return (self.folder / stream).read_text()

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.kill(self.process.pid or 0, signal.SIGINT)

    def wait(self) -> subprocess.CompletedProcess[str]:
        """Its end."""
        self.process.join()
        code = self.process.exitcode or 0
        return subprocess.CompletedProcess(self.arguments, code, self.printed("stdout"), self.printed("stderr"))


@contextmanager
def running(
    *arguments: object, script: Path | None = None, stdin: str = "", cwd: Path | None = None, **environment: str
) -> Iterator[Running]:
    """`anchorfold` or a script with these arguments; it does not outlive the block."""
    words = [str(argument) for argument in arguments]
    with TemporaryDirectory() as folder:
        for name, content in (("stdin", stdin), ("stdout", ""), ("stderr", "")):
            Path(folder, name).write_text(content)
        process = start(_run, script, words, environment, str(cwd or os.getcwd()), folder)
        try:
            yield Running(words, process, Path(folder))
        finally:
            process.kill()
            process.join()


def completed(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """As `running`, to its end."""
    with running(*arguments, **options) as process:
        return process.wait()
