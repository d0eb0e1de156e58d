"""File formats: the `DocumentReader` interface and the registry of formats by file extension."""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from anchorfold._registry import Registry
from anchorfold.documents.conversion import OFFICE, missing_converter
from anchorfold.errors import UnreadableDocumentError, os_reason

if TYPE_CHECKING:
    from PIL import Image

CHANGED = "changed while it was read"
RENDER_PIXELS = 2_000_000  # default page size; sufficient for every backbone (Nemotron: eight tiles of 512 x 512)
MAX_SIDE = 20_000  # pixels; limits pages that are thin strips
MAX_BOXES = 1000  # word positions per page
Box = tuple[float, float, float, float]  # left, top, right, bottom as fractions of the page


@dataclass(frozen=True)
class FileIdentity:
    """Identity of a file's content: hash, size in bytes and modification time in nanoseconds.

    `metadata` contains `title`, `author` and `language` as stored in the file.
    """

    digest: str
    size: int
    modified: int
    metadata: Mapping[str, str] = field(default_factory=dict, compare=False)


class DocumentReader(ABC):
    """An open document.

    Readers run in the renderer process, whose memory and time are limited. An exception loses one document or page.

    Args:
        data: content of the file.
        identity: identity of `data`.
        pixels: maximum number of pixels of a page image.
    """

    def __init__(self, data: bytes, identity: FileIdentity, pixels: int) -> None:
        self.identity, self.pixels = identity, pixels

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of pages."""

    @abstractmethod
    def image(self, number: int) -> Image.Image:
        """Render page `number` (from 0) in RGB.

        Raises:
            UnreadableDocumentError: the page is damaged; the message is the reason.
        """

    def text(self, number: int) -> str:
        """Return the text layer of page `number` (from 0); empty if the format has none."""
        return ""

    def word_boxes(self, number: int, words: Sequence[str]) -> list[Box]:
        """Return the positions of `words` in the text layer of page `number` (from 0), at most `MAX_BOXES`."""
        return []

    def metadata(self) -> dict[str, str]:
        """Return `title`, `author` and `language` as stored in the file. May raise any exception."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Release the content of the file."""


_IMAGES = dict.fromkeys(("png", "jpg", "jpeg", "webp", "tif", "tiff"), "anchorfold.documents.image_reader:ImageReader")
_READERS = "anchorfold.documents.converted_readers"
_CONVERTED = {
    **dict.fromkeys(OFFICE, f"{_READERS}:OfficeReader"),
    **dict.fromkeys(("html", "htm"), f"{_READERS}:HtmlReader"),
    "md": f"{_READERS}:MarkdownReader",
    "txt": f"{_READERS}:TextReader",
    "eml": f"{_READERS}:MailReader",
}
# Other packages register a `DocumentReader` in this entry point group, named by the file extension.
FORMATS: Registry[type[DocumentReader]] = Registry(
    "anchorfold.documents",
    "document format",
    {"pdf": "anchorfold.documents.pdf_reader:PdfReader", **_IMAGES, **_CONVERTED},
)


def extensions() -> tuple[str, ...]:
    """Return the file extensions with their dots that can be read on this machine, sorted."""
    return tuple(f".{name}" for name in FORMATS.names() if missing_converter(name) is None)


def is_supported(path: str | Path) -> bool:
    """Return whether the file extension of a path is supported."""
    extension = Path(path).suffix.lower().removeprefix(".")
    return extension in _names() and missing_converter(extension) is None


@cache
def _names() -> frozenset[str]:
    return frozenset(FORMATS.names())


def load_document(path: str | Path, pixels: int = RENDER_PIXELS) -> DocumentReader:
    """Open a document; the caller closes it.

    Raises:
        UnreadableDocumentError: the file is unreadable or has no pages; the message is the reason.
    """
    data, identity = read_file(path)
    if not data:
        raise UnreadableDocumentError("empty file")
    reader = FORMATS[Path(path).suffix.lower().removeprefix(".")](data, identity, pixels)
    if len(reader) == 0:
        reader.close()
        raise UnreadableDocumentError("no pages")
    return reader


@contextmanager
def open_document(path: str | Path, pixels: int = RENDER_PIXELS) -> Iterator[DocumentReader]:
    """Open a document as a context manager; arguments and errors are those of `load_document`."""
    reader = load_document(path, pixels)
    try:
        yield reader
    finally:
        reader.close()


def read_file(path: str | Path) -> tuple[bytes, FileIdentity]:
    """Read a file and compute the identity of exactly these bytes.

    The file is read completely before it is parsed. A library that reads from a path or a memory map would observe
    concurrent writes, and its pages would not match the digest. PDFium and Pillow use these bytes without a copy.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would block.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb", buffering=0) as file:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise UnreadableDocumentError("not a regular file")
            data = file.readall()
            after = os.fstat(descriptor)
    except OSError as error:
        raise UnreadableDocumentError(os_reason(error)) from error
    if (before.st_size, before.st_mtime_ns) != (len(data), after.st_mtime_ns):
        raise UnreadableDocumentError(CHANGED)
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return data, FileIdentity(digest, len(data), after.st_mtime_ns)


@contextmanager
def damage_as(reason: str) -> Iterator[None]:
    """Convert any exception of a parser to `UnreadableDocumentError(reason)` and suppress warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (MemoryError, UnreadableDocumentError):
        raise
    except Exception as error:
        raise UnreadableDocumentError(reason) from error
