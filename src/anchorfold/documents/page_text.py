"""The text layer of one page and where its words stand, read in a process of its own with limits.

The file may be hostile.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any

import pypdfium2 as pdfium
from pypdfium2 import raw

from anchorfold.documents.content import CHANGED
from anchorfold.documents.limits import MEMORY_EXIT, default_memory, limit_memory
from anchorfold.documents.messages import MAX_TEXT
from anchorfold.documents.pages import PdfPages, load_pages
from anchorfold.errors import UnreadableDocumentError

# -P: a file in the current folder that is called like a library is none.
COMMAND = [sys.executable, "-P", "-m", "anchorfold.documents.page_text"]
SECONDS = 30.0
TURN_SECONDS = 10.0  # to wait for others' pages
PROCESSES = 2  # at once
_turns = threading.BoundedSemaphore(PROCESSES)
GARBLED = "it ended the process that read its text"
MOST_BOXES = 1000
Box = tuple[float, float, float, float]  # left, top, right, bottom as shares of the page


@lru_cache(maxsize=256)
def page_text(path: str, digest: str, number: int) -> str:
    """The text of page `number`, from 0, of the file with this digest; empty if it has no text layer.

    Raises:
        UnreadableDocumentError: the reason why it cannot be read.
    """
    return str(_answer(path, digest, number, ())["text"])


@lru_cache(maxsize=256)
def word_boxes(path: str, digest: str, number: int, words: tuple[str, ...]) -> list[Box]:
    """Where some words stand on page `number`, from 0, of the file with this digest; none without a text layer.

    Raises:
        UnreadableDocumentError: the reason why it cannot be read.
    """
    boxes = _answer(path, digest, number, words)["boxes"]
    try:
        checked = [(float(left), float(top), float(right), float(bottom)) for left, top, right, bottom in boxes]
    except (ValueError, TypeError):
        raise UnreadableDocumentError(GARBLED) from None
    return [box for box in checked if all(0 <= share <= 1 for share in box)]


def _answer(path: str, digest: str, number: int, words: Sequence[str]) -> dict[str, Any]:
    """What the process says, which is believed in nothing but its form."""
    command = [*COMMAND, str(default_memory()), path, str(number)]
    asked = json.dumps(list(words)).encode()
    if not _turns.acquire(timeout=TURN_SECONDS):
        raise UnreadableDocumentError("others are being read: try again in a moment")
    try:
        completed = subprocess.run(command, input=asked, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise UnreadableDocumentError(f"its text took more than {SECONDS:.0f} s") from None
    finally:
        _turns.release()
    if completed.returncode == MEMORY_EXIT:
        raise UnreadableDocumentError("its text needs too much memory")
    try:
        answer: dict[str, Any] = json.loads(completed.stdout)
        problem, identity, _, _ = str(answer["problem"]), str(answer["digest"]), answer["text"], answer["boxes"]
    except (ValueError, KeyError, TypeError):
        raise UnreadableDocumentError(GARBLED) from None
    if problem:
        raise UnreadableDocumentError(problem)
    if identity != digest:
        raise UnreadableDocumentError(CHANGED)
    return answer


def read_text(path: str, number: int, words: Sequence[str] = ()) -> dict[str, Any]:
    """What the process answers: the file's digest, the page's text, boxes of words, and the problem if there is one."""
    nothing = {"digest": "", "text": "", "boxes": []}
    try:
        pages = load_pages(path)
        text, boxes = "", list[Box]()
        if isinstance(pages, PdfPages):
            text, boxes = pages.pdf[number].get_textpage().get_text_bounded(), boxes_of(pages.pdf[number], words)
    except UnreadableDocumentError as problem:
        return {**nothing, "problem": str(problem)}
    except MemoryError:
        raise
    except Exception:  # whatever the library raises for a broken file
        return {**nothing, "problem": "a damaged page"}
    return {"problem": "", "digest": pages.identity.digest, "text": text[:MAX_TEXT], "boxes": boxes}


def boxes_of(page: pdfium.PdfPage, words: Sequence[str]) -> list[Box]:
    """Where words stand on a page, whole words and written alike, as shares of it as it is drawn."""
    boxes: list[Box] = []
    with closing(page.get_textpage()) as layer:
        for word in words:
            whole = word.isascii()  # scripts without spaces have no borders of words
            with closing(layer.search(word, match_case=True, match_whole_word=whole)) as places:
                while (place := places.get_next()) is not None and len(boxes) < MOST_BOXES:
                    for number in range(layer.count_rects(*place)):
                        boxes.append(_share(page, layer.get_rect(number)))
    return boxes


def _share(page: pdfium.PdfPage, rectangle: tuple[float, float, float, float]) -> Box:
    """A rectangle in the page's own coordinates as shares of its picture, which may be cropped and turned."""
    left, bottom, right, top = rectangle
    size, corners = 10_000, []
    for x, y in ((left, top), (right, bottom)):
        across, down = ctypes.c_int(), ctypes.c_int()
        raw.FPDF_PageToDevice(page, 0, 0, size, size, 0, x, y, across, down)
        corners.append((min(max(across.value / size, 0.0), 1.0), min(max(down.value / size, 0.0), 1.0)))
    (x0, y0), (x1, y1) = corners
    return min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)


def main() -> None:
    """Print the answer as JSON.

    The arguments are the memory to use at most, in bytes, the path and the page; words to look for are JSON on standard
    input.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not mix with the answer
    limit_memory(int(sys.argv[1]))
    try:
        answer = read_text(sys.argv[2], int(sys.argv[3]), json.load(sys.stdin))
    except MemoryError:
        os._exit(MEMORY_EXIT)
    with open(answers, "w", encoding="utf-8") as file:
        json.dump(answer, file)  # escapes lone surrogates


if __name__ == "__main__":
    main()
