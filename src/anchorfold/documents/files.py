"""Documents as files: paths as text, and selection by name, folder or pattern."""

from __future__ import annotations

import fnmatch
import os
import re
import unicodedata
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from anchorfold.errors import AnchorFoldError


@dataclass(frozen=True)
class Document:
    """A file: `name` as given by the user, absolute `path`, size in bytes, modification time in nanoseconds."""

    name: str
    path: Path
    size: int
    modified: int

    @cached_property
    def source(self) -> str:
        """The absolute path as text, which identifies the document in later runs."""
        return escape_path(os.fspath(self.path))


def file_status(path: str | Path) -> tuple[int, int] | None:
    """Return size and modification time in nanoseconds; None if the file does not exist or is inaccessible."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def escape_path(path: str) -> str:
    r"""Convert a path to valid Unicode; different paths give different texts.

    Bytes that are not UTF-8 become `\xNN`. In a path with such bytes or such an escape, backslashes are doubled.

    Examples:
        >>> escape_path("plain.png"), escape_path("a\\xff.png"), escape_path("a\udcff.png")
        ('plain.png', 'a\\\\xff.png', 'a\\xff.png')
    """
    data = os.fsencode(path)
    text = data.decode("utf-8", "backslashreplace")
    if os.sep == "\\" or (text == path and "\\x" not in path):
        return text
    return data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def unescape_path(text: str) -> str:
    """Return the path that `escape_path` converted."""
    if os.sep == "\\" or "\\x" not in text:
        return text
    parts = re.split(rb"(\\\\|\\x[0-9a-f]{2})", text.encode())
    plain = [b"\\" if p == b"\\\\" else bytes([int(p[2:], 16)]) if p[:2] == b"\\x" else p for p in parts]
    return os.fsdecode(b"".join(plain))


def source_of(path: str | Path) -> str:
    """Return the identity of a path: absolute, normalised, symbolic links not resolved."""
    return escape_path(os.path.abspath(path))


def require_name(pattern: str) -> None:
    """Refuse an empty name, which as a path would select the current folder and everything in it."""
    if not pattern.strip():
        raise AnchorFoldError("empty document name: use a name, a folder or a pattern such as '*.pdf'.")


def matches(pattern: str, document: str, source: str) -> bool:
    """Return whether a name, path, folder or glob pattern selects a document."""
    require_name(pattern)
    # macOS may store names decomposed, while users type them composed.
    pattern, document, source = (unicodedata.normalize("NFC", text) for text in (pattern, document, source))
    plain, absolute = os.path.normpath(pattern), source_of(pattern)
    if plain in (document, source) or absolute == source:
        return True
    if document.startswith(plain.rstrip(os.sep) + os.sep) or source.startswith(absolute.rstrip(os.sep) + os.sep):
        return True
    name = os.path.basename(document)
    return pattern == name or fnmatch.fnmatchcase(document, pattern) or fnmatch.fnmatchcase(name, pattern)
