"""Which files of some folders are documents, in a stable order."""

from __future__ import annotations

import fnmatch
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from anchorfold.documents.content import reason
from anchorfold.documents.kinds import endings, is_document
from anchorfold.errors import AnchorFoldError

Skip = Callable[[str, str], None]  # a document's name, and why it is left out


@dataclass(frozen=True)
class Document:
    """A file: `name` as the user gave it (valid text, whatever bytes the system has), `path` absolute."""

    name: str
    path: Path
    size: int
    modified: int

    @cached_property
    def source(self) -> str:
        """The absolute path as text: what makes a document the same one in a later run."""
        return printable(os.fspath(self.path))


def printable(path: str) -> str:
    """A path as valid Unicode, another one for each path: bytes that are no text become `\\xNN`.

    Where a path holds such bytes, or spells such an escape itself, its own backslashes are doubled.

    >>> printable("plain.png"), printable("a\\\\xff.png"), printable("a\\udcff.png")
    ('plain.png', 'a\\\\\\\\xff.png', 'a\\\\xff.png')
    """
    data = os.fsencode(path)
    text = data.decode("utf-8", "backslashreplace")
    if os.sep == "\\" or (text == path and "\\x" not in path):
        return text
    return data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def system_path(text: str) -> str:
    """The path that `printable` made a text of."""
    if os.sep == "\\" or "\\x" not in text:
        return text
    pieces = re.split(rb"(\\\\|\\x[0-9a-f]{2})", text.encode())
    plain = [b"\\" if p == b"\\\\" else bytes([int(p[2:], 16)]) if p[:2] == b"\\x" else p for p in pieces]
    return os.fsdecode(b"".join(plain))


def source_of(path: str | Path) -> str:
    """The identity of a path: absolute and normalised, links kept as they are."""
    return printable(os.path.abspath(path))


def find_documents(
    paths: Iterable[str | Path], skip: Skip, exclude: Path | None = None, ignored: set[str] | None = None
) -> Iterator[Document]:
    """Documents among files and folders (recursively), each once, sorted by name within a folder.

    Args:
        paths: files or folders. A file named by itself is always tried; in folders only known kinds are.
        skip: told of each file or folder that is left out, and why.
        exclude: a folder that is not looked into: the index itself.
        ignored: receives the paths of files in folders whose kind is not supported, hidden files excepted.
    """
    seen: dict[str, str] = {}
    hidden = os.path.realpath(exclude) if exclude is not None else None
    others = set[str]() if ignored is None else ignored
    for given in map(os.path.normpath, paths):
        for path in _walk(given, skip, set(), hidden, others):
            name = printable(path)
            if path == given and not is_document(path):
                skip(name, f"not a kind that can be read ({', '.join(endings())})")
                continue
            real = os.path.realpath(path)
            if real in seen:
                if seen[real] != name:
                    skip(name, f"the same file as {seen[real]}")
                continue
            seen[real] = name
            try:
                status = os.stat(path)
                if not os.access(path, os.R_OK):
                    raise PermissionError(13, "permission denied")
            except OSError as error:
                skip(name, reason(error))
                continue
            yield Document(name, Path(os.path.abspath(path)), status.st_size, status.st_mtime_ns)


def _walk(path: str, skip: Skip, above: set[str], hidden: str | None, ignored: set[str]) -> Iterator[str]:
    real = os.path.realpath(path)
    if not os.path.isdir(path):
        try:
            os.stat(path)
        except FileNotFoundError:
            skip(printable(path), "a broken link" if os.path.islink(path) else "no such file or folder")
        except OSError as error:  # its folder may be closed to us
            skip(printable(path), reason(error))
        else:
            yield path
        return
    if real in above:
        skip(printable(path), "a link back to a folder that holds it")
        return
    if real == hidden:
        return
    try:
        entries = sorted(os.listdir(path))
    except OSError as error:
        skip(printable(path), reason(error))
        return
    for entry in entries:
        inside = os.path.join(path, entry)
        if entry.startswith("."):
            continue
        if os.path.isdir(inside) or is_document(entry):
            yield from _walk(inside, skip, above | {real}, hidden, ignored)
        elif os.path.isfile(inside):
            ignored.add(os.path.join(real, entry))  # one path per file, even if folders are given twice


def require_name(pattern: str) -> None:
    """Refuse an empty name: as a path it would mean the current folder, and everything in it."""
    if not pattern.strip():
        raise AnchorFoldError("an empty name means no document: give a name, a folder or a pattern such as '*.pdf'.")


def matches(pattern: str, document: str, source: str) -> bool:
    """Whether a name as given, a path, a folder or a pattern means this document."""
    require_name(pattern)
    # macOS may store names decomposed, and people type them composed.
    pattern, document, source = (unicodedata.normalize("NFC", text) for text in (pattern, document, source))
    plain = os.path.normpath(pattern)
    if plain in (document, source) or source_of(pattern) == source:
        return True
    inside = plain.rstrip(os.sep) + os.sep
    if document.startswith(inside) or source.startswith(source_of(pattern).rstrip(os.sep) + os.sep):
        return True
    name = os.path.basename(document)
    return pattern == name or fnmatch.fnmatchcase(document, pattern) or fnmatch.fnmatchcase(name, pattern)
