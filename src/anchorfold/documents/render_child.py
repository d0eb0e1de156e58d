"""The renderer's process: requests on standard input, answers on standard output, until its parent ends."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from typing import Any

from PIL import Image

from anchorfold.documents.kinds import Pages
from anchorfold.documents.limits import MEMORY_EXIT, limit_memory, limit_time
from anchorfold.documents.messages import INFORMATION, MAX_REASON, MAX_TEXT, pages_to_render, receive_request, send
from anchorfold.documents.pages import count_pages, load_pages
from anchorfold.errors import UnreadableDocumentError

THUMBNAIL = 360  # pixels of the longer side


def main() -> None:
    """Serve requests until there are no more; the only argument is the memory to use at most, in bytes."""
    # Whatever a library prints must not mix with the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    limit_memory(int(sys.argv[1]))
    child = RenderChild(answers)
    try:
        child.answer("ready")
        while True:
            request = receive_request(0)
            (child.render if request.pop("kind") == "render" else child.count)(**request)
    except (EOFError, BrokenPipeError):
        os._exit(0)
    except MemoryError:
        os._exit(MEMORY_EXIT)


class RenderChild:
    """Answers requests. The last document stays open: a server is asked for its pages one by one."""

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.pages: Pages | None = None
        self.version: object = None  # of the document that is open

    def answer(self, kind: str, *parts: bytes, **values: Any) -> None:
        """Send one message."""
        send(self.answers, {"kind": kind, **values}, *parts)

    def count(self, paths: list[str], seconds: float) -> None:
        """Say how many pages documents have, for some seconds."""
        began = time.monotonic()
        for number, path in enumerate(paths):
            left = seconds - (time.monotonic() - began)
            if left <= 0:
                break
            try:
                with limit_time(left):
                    pages = count_pages(path)
            except MemoryError:
                raise
            except Exception:  # rendering it will say what is wrong
                continue
            self.answer("counted", number=number, pages=pages)
        self.answer("done")

    def render(
        self,
        path: str,
        wanted: list[int] | None,
        stored: dict[str, list[int]],
        pixels: int,
        thumbnails: bool,
        texts: bool,
        seconds: float,
    ) -> None:
        """Send the pages of a document, or what is wrong with it; `seconds` are for each page."""
        try:
            with limit_time(seconds):
                pages = self.open(path)
                known = information(pages)
        except UnreadableDocumentError as problem:
            self.answer("document problem", reason=printable(problem))
        else:
            pages.pixels = pixels
            identity = pages.identity
            self.answer("opened", pages=len(pages), **{**vars(identity), "information": known})
            for number in pages_to_render(len(pages), identity.digest, wanted, stored):
                self.answer("started", page=number)
                self.send_page(pages, number, thumbnails, texts, seconds)
        self.answer("done")

    def send_page(self, pages: Pages, number: int, with_thumbnail: bool, with_text: bool, seconds: float) -> None:
        """Send one page, or what is wrong with it."""
        try:
            with limit_time(seconds):
                image = pages.image(number)
                small = thumbnail(image) if with_thumbnail else b""
                text = pages.text(number)[:MAX_TEXT].encode("utf-8", "replace") if with_text else b""
        except UnreadableDocumentError as problem:
            self.answer("page problem", page=number, reason=printable(problem))
        else:
            size = {"width": image.width, "height": image.height, "thumbnail": len(small)}
            self.answer("picture", image.tobytes(), small, text, page=number, **size)

    def open(self, path: str) -> Pages:
        """The document's pages, from memory if it is the last one and was not changed."""
        version = file_version(path)
        if self.pages is None or version != self.version:
            if self.pages is not None:
                self.pages.close()
                self.pages = None  # its memory is free before the next is read
            self.pages = load_pages(path)
            self.version = version
        return self.pages


def file_version(path: str) -> object:
    """Differs after every change of the file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def information(pages: Pages) -> dict[str, str]:
    """What a document says of itself, each on one line; nothing if that is broken."""
    try:
        known = pages.information()
    except MemoryError:
        raise
    except Exception:  # its pages may be whole
        return {}
    lines = {name: one_line(str(known.get(name, ""))) for name in INFORMATION}
    return {name: line for name, line in lines.items() if line}


def one_line(text: str) -> str:
    """A text as the parent takes it."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:MAX_REASON].rstrip()


def printable(problem: Exception) -> str:
    """A reason that the parent takes."""
    return "".join(c if c.isprintable() else "?" for c in str(problem))[:MAX_REASON]


def thumbnail(image: Image.Image) -> bytes:
    """A small WebP of a page."""
    small = image.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX, reducing_gap=2.0)
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=50, method=4)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
