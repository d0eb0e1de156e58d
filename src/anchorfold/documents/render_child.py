"""The renderer's process: requests on standard input, pages on standard output, until its parent ends."""

from __future__ import annotations

import io
import os
import sys
import time
from typing import Any

from PIL import Image

from anchorfold.documents.pages import open_pages
from anchorfold.documents.rendering import receive, send
from anchorfold.errors import UnreadableDocumentError

THUMBNAIL = 360  # pixels of the longer side


def main() -> None:
    """Serve requests until there are no more."""
    requests = sys.stdin.buffer
    # Whatever a library prints must not mix with the messages.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        while True:
            kind, *arguments = receive(requests)
            (render if kind == "render" else count)(answers, *arguments)
    except (EOFError, BrokenPipeError, ConnectionError):
        os._exit(0)


def count(answers: Any, paths: list[str], seconds: float) -> None:
    """Send `(place in the list, pages)` of documents that open, for some seconds."""
    began = time.monotonic()
    for number, path in enumerate(paths):
        if time.monotonic() - began > seconds:
            break
        try:
            with open_pages(path) as pages:
                send(answers, (number, len(pages)))
        except Exception:  # rendering it will say what is wrong
            continue
    send(answers, ("done",))


def render(answers: Any, path: str, wanted: list[int] | None, pixels: int) -> None:
    """Send the pages of a document, or what is wrong with it."""
    try:
        with open_pages(path, pixels) as pages:
            send(answers, ("open", len(pages), pages.identity))
            for number in range(len(pages)) if wanted is None else wanted:
                if number >= len(pages):
                    continue
                send(answers, ("start", number))
                try:
                    image = pages.image(number)
                    send(answers, ("page", number, image.size, image.tobytes(), thumbnail(image)))
                except UnreadableDocumentError as problem:
                    send(answers, ("bad page", number, str(problem)))
    except UnreadableDocumentError as problem:
        send(answers, ("bad document", str(problem)))
    except BrokenPipeError:
        raise
    except Exception as error:
        # An unforeseen failure of a reading library is that document's problem alone.
        send(answers, ("bad document", f"cannot be read ({type(error).__name__}: {error})".splitlines()[0]))
    send(answers, ("done",))


def thumbnail(image: Image.Image) -> bytes:
    """A small JPEG of a page."""
    small = image.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX, reducing_gap=2.0)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=70, optimize=True)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
