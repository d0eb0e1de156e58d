"""The renderer process: reads requests from standard input and writes messages to standard output."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import Any

from PIL import Image

from anchorfold.documents.formats import DocumentReader, load_document
from anchorfold.documents.limits import MEMORY_EXIT, limit_memory, limit_time
from anchorfold.documents.render_events import select_pages
from anchorfold.documents.render_messages import FILE_METADATA, MAX_REASON, MAX_TEXT, receive_request, send
from anchorfold.errors import UnreadableDocumentError

THUMBNAIL_SIDE = 360  # pixels of the longer side


def main() -> None:
    """Handle requests until the parent ends; the only argument is the memory limit in bytes."""
    output = os.dup(1)
    os.dup2(2, 1)  # output of libraries must not mix with the messages
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    limit_memory(int(sys.argv[1]))
    child = RenderChild(output)
    try:
        child.send("ready")
        while True:
            child.render(**receive_request(0))
    except (EOFError, BrokenPipeError):
        os._exit(0)
    except MemoryError:
        os._exit(MEMORY_EXIT)


class RenderChild:
    """Handler of requests. The last document stays open: a server requests its pages one by one."""

    def __init__(self, output: int) -> None:
        self.output = output
        self.reader: DocumentReader | None = None
        self.version: object = None  # of the open document

    def send(self, kind: str, *parts: bytes, **values: Any) -> None:
        """Send one message."""
        send(self.output, {"kind": kind, **values}, *parts)

    def render(
        self,
        path: str,
        pages: list[int] | None,
        stored: dict[str, list[int]],
        limit: int | None,
        pixels: int,
        with_image: bool,
        with_text: bool,
        words: list[str],
        seconds: float,
    ) -> None:
        """Send the pages of a document; `seconds` is the time limit per page."""
        reader = self.open(path, seconds)
        if reader is None:
            return
        reader.pixels = pixels
        for number in select_pages(len(reader), reader.identity.digest, pages, stored)[:limit]:
            try:
                with limit_time(seconds):
                    image = reader.image(number) if with_image else Image.new("RGB", (1, 1))
                    small = thumbnail(image) if with_image else b""
                    text = reader.text(number)[:MAX_TEXT].encode("utf-8", "replace") if with_text else b""
                    boxes = reader.word_boxes(number, words) if words else []
            except UnreadableDocumentError as error:
                self.send("page_failed", page=number, reason=one_line(str(error)))
            else:
                size = {"width": image.width, "height": image.height, "thumbnail": len(small)}
                self.send("page", image.tobytes(), small, text, page=number, boxes=boxes, **size)

    def open(self, path: str, seconds: float) -> DocumentReader | None:
        """Open a document, unless it is still open and unchanged, and send the result; None if that fails."""
        try:
            with limit_time(seconds):
                version = file_version(path)
                if self.reader is None or version != self.version:
                    if self.reader is not None:
                        self.reader.close()
                        self.reader = None  # frees its memory before the next document is read
                    self.reader, self.version = load_document(path), version
                metadata = file_metadata(self.reader)
        except UnreadableDocumentError as error:
            self.send("document_failed", reason=one_line(str(error)))
            return None
        identity = self.reader.identity
        self.send(
            "opened", pages=len(self.reader), digest=identity.digest, size=identity.size, modified=identity.modified,
            metadata=metadata,
        )  # fmt: skip
        return self.reader


def file_version(path: str) -> object:
    """Return a value that differs after every change of a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def file_metadata(reader: DocumentReader) -> dict[str, str]:
    """Return the metadata of a document, each value on one line; empty if the metadata is damaged."""
    try:
        metadata = reader.metadata()
    except MemoryError:
        raise
    except Exception:  # the pages may be intact
        return {}
    lines = {name: one_line(str(metadata.get(name, ""))) for name in FILE_METADATA}
    return {name: line for name, line in lines.items() if line}


def one_line(text: str) -> str:
    """Reduce a text to one printable line, as the parent requires."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:MAX_REASON].rstrip()


def thumbnail(image: Image.Image) -> bytes:
    """Create a WebP thumbnail of a page."""
    small = image.copy()
    small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BOX, reducing_gap=2.0)
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=50, method=4)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
