"""Transfer documents in chunks from the driver to workers that cannot read them."""

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

from anchorfold.documents.files import Document
from anchorfold.documents.formats import CHANGED
from anchorfold.errors import os_reason

CHUNK_BYTES = 8 << 20  # bytes
CONCURRENT_REQUESTS = 2  # concurrent requests per worker
CACHED_DOCUMENTS = 2  # documents cached per worker
ATTEMPTS = 3  # per document that changes during the transfer
PREFIX = "anchorfold-documents-"


@dataclass(frozen=True)
class Chunk:
    """A chunk of a file with the size and time of the file, or the `problem` of reading it."""

    size: int = 0
    modified: int = 0
    data: bytes = b""
    problem: str = ""


class FileReader:
    """Reads chunks of files. Runs as an actor on the machine of the driver."""

    def read(self, path: str, offset: int) -> Chunk:
        """Return at most `CHUNK_BYTES` bytes at an offset."""
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                data = file.read(CHUNK_BYTES)
                status = os.fstat(file.fileno())
        except OSError as error:
            return Chunk(problem=os_reason(error))
        return Chunk(status.st_size, status.st_mtime_ns, data)


class DocumentCache:
    """Cache of transferred documents in a temporary folder.

    Args:
        files: the `FileReader` actor.
    """

    def __init__(self, files: Any) -> None:
        self.files = files
        self._documents: OrderedDict[tuple[str, int, int], Path] = OrderedDict()
        self._folder: Path | None = None

    def fetch(self, document: Document) -> Path:
        """Return the path of a copy of a document with its modification time.

        Raises:
            OSError: the document cannot be read or written.
        """
        key = (document.source, document.size, document.modified)
        if key in self._documents:
            self._documents.move_to_end(key)
            return self._documents[key]
        while len(self._documents) >= CACHED_DOCUMENTS:
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
        """Copy a file and return its modification time; restart if the file changes during the transfer."""
        import ray

        for _ in range(ATTEMPTS):
            versions: set[tuple[int, int]] = set()
            chunks: deque[Any] = deque()
            offset, size = 0, 1
            with open(target, "wb") as file:
                while chunks or offset < size:
                    # The first chunk contains the size of the file.
                    while offset < size and len(chunks) < (CONCURRENT_REQUESTS if versions else 1):
                        chunks.append(self.files.read.remote(path, offset))
                        offset += CHUNK_BYTES
                    chunk: Chunk = ray.get(chunks.popleft())
                    if chunk.problem:
                        raise OSError(chunk.problem)
                    size = chunk.size
                    versions.add((chunk.size, chunk.modified))
                    file.write(chunk.data)
            if len(versions) == 1 and target.stat().st_size == size:
                return chunk.modified
        raise OSError(CHANGED)

    def folder(self) -> Path:
        """Return the temporary folder, created on first use; folders of killed processes are removed."""
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
    if os.name == "nt":  # signal 0 is Ctrl-C there
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
