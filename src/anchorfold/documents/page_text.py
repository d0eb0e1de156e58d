"""The text layer of one page, read in a process of its own with limits: the file may be hostile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache

from anchorfold.documents.content import CHANGED
from anchorfold.documents.limits import MEMORY_EXIT, default_memory, limit_memory
from anchorfold.documents.pages import PdfPages, load_pages
from anchorfold.errors import UnreadableDocumentError

# -P: a file in the current folder that is called like a library is none.
COMMAND = [sys.executable, "-P", "-m", "anchorfold.documents.page_text"]
SECONDS = 30.0
MOST_CHARACTERS = 200_000


@lru_cache(maxsize=256)
def page_text(path: str, digest: str, number: int) -> str:
    """The text of page `number`, from 0, of the file with this digest; empty if it has no text layer.

    Raises:
        UnreadableDocumentError: the reason why it cannot be read.
    """
    command = [*COMMAND, str(default_memory()), path, str(number)]
    try:
        completed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise UnreadableDocumentError(f"its text took more than {SECONDS:.0f} s") from None
    if completed.returncode == MEMORY_EXIT:
        raise UnreadableDocumentError("its text needs too much memory")
    try:
        answer = json.loads(completed.stdout)
        problem, identity, text = str(answer["problem"]), str(answer["digest"]), str(answer["text"])
    except (ValueError, KeyError, TypeError):
        raise UnreadableDocumentError("it ended the process that read its text") from None
    if problem:
        raise UnreadableDocumentError(problem)
    if identity != digest:
        raise UnreadableDocumentError(CHANGED)
    return text


def read_text(path: str, number: int) -> dict[str, str]:
    """What the process answers: the file's digest, the page's text, and the problem if there is one."""
    try:
        pages = load_pages(path)
        text = ""
        if isinstance(pages, PdfPages):
            text = pages.pdf[number].get_textpage().get_text_bounded()
    except UnreadableDocumentError as problem:
        return {"problem": str(problem), "digest": "", "text": ""}
    except MemoryError:
        raise
    except Exception:  # whatever the library raises for a broken file
        return {"problem": "a damaged page", "digest": "", "text": ""}
    return {"problem": "", "digest": pages.identity.digest, "text": text[:MOST_CHARACTERS]}


def main() -> None:
    """Print the answer as JSON; the arguments are the memory to use at most, in bytes, the path and the page."""
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not mix with the answer
    limit_memory(int(sys.argv[1]))
    try:
        answer = read_text(sys.argv[2], int(sys.argv[3]))
    except MemoryError:
        os._exit(MEMORY_EXIT)
    with open(answers, "w", encoding="utf-8") as file:
        json.dump(answer, file)  # escapes lone surrogates


if __name__ == "__main__":
    main()
