"""The soak test's side of its worker processes, and a disk that can be full."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.soak_worker import serve

LATE = 180.0  # seconds after which a command counts as hanging
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2  # of Linux

# Workers are forked from a process that has imported everything: they start at once, however many are killed.
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["benchmarks.soak_worker"])


def be_like_anybody() -> None:
    """Root may read everything; the programs that it starts from now on are held to the permissions of files."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH) if os.geteuid() == 0 else ():
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


class Worker:
    """A process that runs `soak_worker.serve`, one command at a time."""

    def __init__(self, run: str, log: Path) -> None:
        self.log = log
        self._pipe, theirs = _forks.Pipe()
        self.process = _forks.Process(target=serve, args=(theirs, log, run), daemon=True)
        self.process.start()
        theirs.close()
        self.progress = 0  # messages that told of pages since the last command
        self.least_memory = 0.0  # megabytes, when it had worked for a while
        self.rounds = 0
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                message = self._pipe.recv()
                if "pages" in message:
                    self.progress += 1
                else:
                    self._answers.put(message)
        except (EOFError, OSError):
            self.process.join()
            log = self.log.read_text(errors="replace") if self.log.exists() else ""
            self._answers.put({"ended": self.process.exitcode, "log": log[-3000:]})

    def send(self, do: str, home: Path, **options: Any) -> None:
        self.progress = 0
        self._pipe.send({"do": do, "home": str(home), **options})

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def answer(self, seconds: float = LATE) -> dict[str, Any]:
        """What the command said; how the process ended, if it did; or that it is late, and was killed for that."""
        try:
            return self._answers.get(timeout=seconds)
        except queue.Empty:
            self.end()
            return {"late": seconds}

    @property
    def busy(self) -> bool:
        return self.alive and self._answers.empty()

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def wait_for(self, pages: int, seconds: float) -> None:
        """Until that many pages were told, the time is over, or the command is done."""
        limit = time.monotonic() + seconds
        while self.busy and self.progress < pages and time.monotonic() < limit:
            time.sleep(0.002)

    def end(self) -> None:
        self.process.kill()
        self.process.join()

    def memory(self) -> float:
        """Megabytes that it holds for itself."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("RssAnon"))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def left_processes(run: str, grace: float = 10.0) -> list[str]:
    """Processes that workers started and that outlived them, after some seconds in which they may end."""
    limit = time.monotonic() + grace
    while (leftover := orphans(run)) and time.monotonic() < limit:
        time.sleep(0.1)
    return leftover


def orphans(run: str) -> list[str]:
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"ANCHORFOLD_SOAK={run}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if marked and "\nPPid:\t1\n" in (folder / "status").read_text():
                commands.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended
    return commands


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[bool]:
    """A file system of so many bytes at `folder`; False, and a plain folder, if it cannot be mounted."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = bool(shutil.which("mount")) and not subprocess.run(command, check=False, capture_output=True).returncode
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def ballast(folder: Path, leave: int) -> Iterator[None]:
    """Fill the file system of a folder but for so many bytes."""
    path = folder / "ballast"
    status = os.statvfs(folder)
    size = status.f_bavail * status.f_frsize - leave
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(size, 1))
    try:
        yield
    finally:
        path.unlink()
