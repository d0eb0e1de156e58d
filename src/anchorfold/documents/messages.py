"""What the renderer's process and its parent tell each other: a JSON header, and bytes after it.

The process reads files that strangers made, and may be taken over by one: what comes from it is data, never code, and
the parent believes nothing of it that was not checked here.
"""

from __future__ import annotations

import json
import os
import re
import select
import struct
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from anchorfold.documents.content import FileIdentity
from anchorfold.documents.pages import most_pixels

LENGTHS = struct.Struct("<IQ")  # of the header and of the bytes after it
MAX_HEADER = 65_536
MAX_THUMBNAIL = 1_000_000
MAX_TEXT = 200_000  # characters of a page that are read
MAX_REASON = 300
INFORMATION = ("title", "author", "language")  # what a document says of itself
MAX_PAGES = 2**20  # more than the PDF library counts


class GarbledMessageError(Exception):
    """The renderer said something that it never says."""


@dataclass(frozen=True)
class Ready:
    """The process has started."""


@dataclass(frozen=True)
class Counted:
    """Document `number` of a census, from 0, has so many pages."""

    number: int
    pages: int


@dataclass(frozen=True)
class Opened:
    """A document has so many pages, and was read from these bytes."""

    pages: int
    identity: FileIdentity


@dataclass(frozen=True)
class Started:
    """A page, from 0, is being rendered."""

    page: int


@dataclass(frozen=True)
class Picture:
    """A rendered page, and a small WebP and the text of it if these were wanted."""

    page: int
    image: Image.Image
    thumbnail: bytes
    text: str = ""


@dataclass(frozen=True)
class PageProblem:
    """Why a page could not be rendered."""

    page: int
    reason: str


@dataclass(frozen=True)
class DocumentProblem:
    """Why a document could not be opened."""

    reason: str


@dataclass(frozen=True)
class Done:
    """The request was answered."""


Answer = Ready | Counted | Opened | Started | Picture | PageProblem | DocumentProblem | Done


def pages_to_render(
    total: int, digest: str, wanted: Sequence[int] | None, stored: Mapping[str, Collection[int]]
) -> list[int]:
    """Which pages, from 0, of a document with so many are rendered: both sides count on the same.

    Args:
        total: pages of the document.
        digest: of its bytes.
        wanted: pages that were asked for; None for all that are not stored.
        stored: for each digest the pages of that version that nobody needs any more.
    """
    if wanted is not None:
        return [page for page in wanted if page < total]
    done = set(stored.get(digest, ()))
    return [page for page in range(total) if page not in done]


def send(descriptor: int, header: dict[str, Any], *parts: bytes, seconds: float | None = None) -> None:
    """Write one message; TimeoutError if nobody takes it for so long."""
    head = json.dumps(header).encode("ascii")  # names that are no Unicode become escapes
    lengths = LENGTHS.pack(len(head), sum(map(len, parts)))
    deadline = None if seconds is None else time.monotonic() + seconds
    for part in (lengths + head, *parts):
        left = memoryview(part)
        while left:
            _wait(descriptor, select.POLLOUT, deadline)
            try:
                left = left[os.write(descriptor, left) :]
            except BlockingIOError:
                continue


def receive_request(descriptor: int) -> dict[str, Any]:
    """Read one message of the parent, who is believed; EOFError if it is gone."""
    length, _ = LENGTHS.unpack(_exactly(descriptor, LENGTHS.size, None))
    request: dict[str, Any] = json.loads(_exactly(descriptor, length, None))
    return request


def receive_answer(descriptor: int, pixels: int, seconds: float) -> Answer:
    """Read one message of the renderer, whose pages are made for `pixels`.

    Raises EOFError if it is gone, TimeoutError if the whole message is not there within so many seconds, and
    GarbledMessageError if it is none that a renderer sends.
    """
    deadline = time.monotonic() + seconds
    head_length, body_length = LENGTHS.unpack(_exactly(descriptor, LENGTHS.size, deadline))
    if head_length > MAX_HEADER or body_length > 3 * most_pixels(pixels) + MAX_THUMBNAIL + 4 * MAX_TEXT:
        raise GarbledMessageError
    head = _exactly(descriptor, head_length, deadline)
    body = _exactly(descriptor, body_length, deadline)
    try:
        header = json.loads(head.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise GarbledMessageError from error
    if not isinstance(header, dict):
        raise GarbledMessageError
    if header.get("kind") == "picture":
        return _picture(header, body, pixels)
    if body:
        raise GarbledMessageError
    return _plain_answer(header)


def _picture(header: dict[str, Any], body: bytearray, pixels: int) -> Picture:
    page, width, height, small = (_whole(header.get(name)) for name in ("page", "width", "height", "thumbnail"))
    length = 3 * width * height
    thumbnail = bytes(body[length : length + small])
    if not 0 < width * height <= most_pixels(pixels) or len(body) < length + small:
        raise GarbledMessageError
    try:
        text = body[length + small :].decode()
    except UnicodeDecodeError as error:
        raise GarbledMessageError from error
    if len(text) > MAX_TEXT:
        raise GarbledMessageError
    if thumbnail and (thumbnail[:4] + thumbnail[8:12] != b"RIFFWEBP" or len(thumbnail) > MAX_THUMBNAIL):
        raise GarbledMessageError
    return Picture(page, Image.frombytes("RGB", (width, height), memoryview(body)[:length]), thumbnail, text)


def _plain_answer(header: dict[str, Any]) -> Answer:
    match header:
        case {"kind": "ready"}:
            return Ready()
        case {"kind": "done"}:
            return Done()
        case {"kind": "counted", "number": number, "pages": pages}:
            return Counted(_whole(number), _whole(pages, below=MAX_PAGES))
        case {"kind": "opened", "pages": pages, "digest": str(digest), "size": size, "modified": modified}:
            if not re.fullmatch("[0-9a-f]{32}", digest):
                raise GarbledMessageError
            information = _information(header.get("information", {}))
            identity = FileIdentity(digest, _whole(size, below=2**63), _whole(modified, -(2**63), 2**63), information)
            return Opened(_whole(pages, 1, MAX_PAGES), identity)
        case {"kind": "started", "page": page}:
            return Started(_whole(page))
        case {"kind": "page problem", "page": page, "reason": reason}:
            return PageProblem(_whole(page), _reason(reason))
        case {"kind": "document problem", "reason": reason}:
            return DocumentProblem(_reason(reason))
    raise GarbledMessageError


def _whole(value: object, least: int = 0, below: int = 2**31) -> int:
    if type(value) is not int or not least <= value < below:  # a bool is an int, and no number
        raise GarbledMessageError
    return value


def _reason(value: object) -> str:
    # It is shown on terminals: one line, and nothing that moves the cursor.
    if not isinstance(value, str) or not 0 < len(value) <= MAX_REASON or not value.isprintable():
        raise GarbledMessageError
    return value


def _information(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not value.keys() <= {*INFORMATION}:
        raise GarbledMessageError
    return {name: _reason(text) for name, text in value.items()}


def _exactly(descriptor: int, length: int, deadline: float | None) -> bytearray:
    data = bytearray(length)
    view, have = memoryview(data), 0
    while have < length:
        # Before every read: the other side may fall silent in the middle of a message.
        _wait(descriptor, select.POLLIN, deadline)
        try:
            more = os.readv(descriptor, [view[have:]])
        except BlockingIOError:
            continue
        if not more:
            raise EOFError
        have += more
    return data


def _wait(descriptor: int, event: int, deadline: float | None) -> None:
    if deadline is None:
        return
    poll = select.poll()  # unlike select, it knows descriptors above 1023: a server may have many
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError
