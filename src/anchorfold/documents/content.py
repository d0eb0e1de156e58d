"""The bytes of a file, read once, and what identifies them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from anchorfold.errors import UnreadableDocumentError

CHANGED = "changed while it was read"


@dataclass(frozen=True)
class FileIdentity:
    """What a file was when its pages were rendered: a hash of its bytes, how many, and its time in nanoseconds.

    `information` is what it says of itself: `title`, `author`, `language`, as far as it does.
    """

    digest: str
    size: int
    modified: int
    information: Mapping[str, str] = field(default_factory=dict, compare=False)


def read_file(path: str | Path) -> tuple[bytes, FileIdentity]:
    """All bytes of a file, and the identity of exactly these.

    The whole file is read before anything is made of it. A library that reads from a path, an open file or a memory
    map sees whatever somebody writes there meanwhile: its pages would not be those of the digest. The bytes are the
    only copy: both libraries read from them in place.
    """
    try:
        # Without O_NONBLOCK a named pipe would be waited for.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb", buffering=0) as file:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise UnreadableDocumentError("not a file")
            data = file.readall()
            after = os.fstat(descriptor)
    except OSError as error:
        raise UnreadableDocumentError(reason(error)) from error
    if (before.st_size, before.st_mtime_ns) != (len(data), after.st_mtime_ns):
        raise UnreadableDocumentError(CHANGED)
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return data, FileIdentity(digest, len(data), after.st_mtime_ns)


def reason(error: OSError) -> str:
    """What the system says, in a few words."""
    return (error.strerror or str(error) or type(error).__name__).lower()
