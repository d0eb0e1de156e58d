"""Documents that a worker does not see are read for it on the driver's machine, in pieces."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorfold.documents.content import CHANGED, reason
from anchorfold.documents.files import Document

PIECE = 8 << 20  # bytes
OUTSTANDING = 2  # pieces on their way to a worker
HELD = 2  # documents that a worker keeps
ATTEMPTS = 3  # at a document that changes on its way
PREFIX = "anchorfold-documents-"


@dataclass(frozen=True)
class Piece:
    """Bytes of a file that has this size and time; or the `problem` of reading it."""

    size: int = 0
    modified: int = 0
    data: bytes = b""
    problem: str = ""


class FileReader:
    """Reads pieces of files. An actor on the driver's machine."""

    def read(self, path: str, offset: int) -> Piece:
        """At most `PIECE` bytes."""
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                data = file.read(PIECE)
                status = os.fstat(file.fileno())
        except OSError as error:
            return Piece(problem=reason(error))
        return Piece(status.st_size, status.st_mtime_ns, data)


class Inbox:
    """Documents that were shipped to this process, in a temporary folder.

    Args:
        files: an actor of `FileReader`.
    """

    def __init__(self, files: Any) -> None:
        self.files = files
        self._documents: OrderedDict[tuple[str, int, int], Path] = OrderedDict()
        self._folder: Path | None = None

    def fetch(self, document: Document) -> Path:
        """A copy of a document, with its time.

        Raises:
            OSError: it cannot be read or written.
        """
        key = (document.source, document.size, document.modified)
        if key in self._documents:
            self._documents.move_to_end(key)
            return self._documents[key]
        while len(self._documents) >= HELD:
            self._documents.popitem(last=False)[1].unlink(missing_ok=True)
        name = hashlib.blake2b(repr(key).encode(), digest_size=12).hexdigest() + document.path.suffix
        target = self.folder() / name
        try:
            version = self._receive(str(document.path), target)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        os.utime(target, ns=(version, version))
        self._documents[key] = target
        return target

    def _receive(self, path: str, target: Path) -> int:
        """Copy a file; returns its time. A file that changes on its way is begun again."""
        import ray

        for _ in range(ATTEMPTS):
            versions: set[tuple[int, int]] = set()
            pieces: deque[Any] = deque()
            offset, size = 0, 1
            with open(target, "wb") as file:
                while pieces or offset < size:
                    # The first piece says how many there are.
                    while offset < size and len(pieces) < (OUTSTANDING if versions else 1):
                        pieces.append(self.files.read.remote(path, offset))
                        offset += PIECE
                    piece: Piece = ray.get(pieces.popleft())
                    if piece.problem:
                        raise OSError(piece.problem)
                    size = piece.size
                    versions.add((piece.size, piece.modified))
                    file.write(piece.data)
            if len(versions) == 1 and target.stat().st_size == size:
                return piece.modified
        raise OSError(CHANGED)

    def folder(self) -> Path:
        """Where documents are put. Folders of processes that were killed are removed."""
        if self._folder is None:
            base = Path(tempfile.gettempdir())
            for other in base.glob(f"{PREFIX}*"):
                with suppress(ValueError, PermissionError):
                    if not _runs(int(other.name.removeprefix(PREFIX).split("-")[0])):
                        shutil.rmtree(other, ignore_errors=True)
            self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        return self._folder

    def close(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
