"""Messages between the renderer process and its parent: a JSON header followed by bytes.

The renderer reads untrusted files and may be compromised by one. Its messages are data, never code, and the parent
validates every field here.
"""

from __future__ import annotations

import json
import os
import re
import select
import struct
import time
from typing import Any

from PIL import Image

from anchorfold.documents.files import Document
from anchorfold.documents.formats import MAX_BOXES, MAX_SIDE, Box, FileIdentity
from anchorfold.documents.render_events import DocumentFinished, DocumentOpened, PageFailed, PageRendered

LENGTHS = struct.Struct("<IQ")  # bytes of the header and of the body
MAX_HEADER = 65_536  # bytes
MAX_THUMBNAIL = 1_000_000  # bytes
MAX_TEXT = 200_000  # characters per page
MAX_REASON = 300  # characters
MAX_PAGES = 2**20  # above the limit of PDFium
FILE_METADATA = ("title", "author", "language")


class InvalidMessageError(Exception):
    """The renderer sent a message that violates the protocol."""


def max_pixels(pixels: int) -> int:
    """Return the maximum size of a page rendered for `pixels`: sides are rounded up and at least one pixel."""
    return pixels + 2 * MAX_SIDE


def send(descriptor: int, header: dict[str, Any], *parts: bytes, seconds: float | None = None) -> None:
    """Write one message; raises TimeoutError if it is not accepted within `seconds`."""
    head = json.dumps(header).encode("ascii")  # escapes names that are not Unicode
    lengths = LENGTHS.pack(len(head), sum(map(len, parts)))
    deadline = None if seconds is None else time.monotonic() + seconds
    for part in (lengths + head, *parts):
        rest = memoryview(part)
        while rest:
            _poll(descriptor, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:
                continue


def receive_request(descriptor: int) -> dict[str, Any]:
    """Read one message of the parent, which is trusted; raises EOFError if the parent ended."""
    length, _ = LENGTHS.unpack(_read(descriptor, LENGTHS.size, None))
    request: dict[str, Any] = json.loads(_read(descriptor, length, None))
    return request


def receive_message(descriptor: int, pixels: int, seconds: float) -> tuple[dict[str, Any], bytearray]:
    """Read the header and body of one message of the renderer; the fields are not validated.

    Args:
        descriptor: file descriptor to read from.
        pixels: maximum number of pixels that was requested per page.
        seconds: time limit of the whole message.

    Raises:
        EOFError: the renderer ended.
        TimeoutError: the message is not complete within `seconds`.
        InvalidMessageError: the message is too long or has no JSON header.
    """
    deadline = time.monotonic() + seconds
    head_length, body_length = LENGTHS.unpack(_read(descriptor, LENGTHS.size, deadline))
    if head_length > MAX_HEADER or body_length > 3 * max_pixels(pixels) + MAX_THUMBNAIL + 4 * MAX_TEXT:
        raise InvalidMessageError
    head = _read(descriptor, head_length, deadline)
    body = _read(descriptor, body_length, deadline)
    try:
        header = json.loads(head.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise InvalidMessageError from error
    if not isinstance(header, dict):
        raise InvalidMessageError
    return header, body


def receive_opened(
    descriptor: int, document: Document, pixels: int, seconds: float
) -> DocumentOpened | DocumentFinished:
    """Read the first event of a document; arguments and errors are those of `receive_message`."""
    header, body = receive_message(descriptor, pixels, seconds)
    if body or header.get("kind") not in ("opened", "document_failed"):
        raise InvalidMessageError
    if header["kind"] == "document_failed":
        return DocumentFinished(document, None, _line(header.get("reason")))
    return DocumentOpened(document, _identity(header), _integer(header.get("pages"), 1, MAX_PAGES))


def receive_page(descriptor: int, opened: DocumentOpened, pixels: int, seconds: float) -> PageRendered | PageFailed:
    """Read the event of a page; arguments and errors are those of `receive_message`."""
    header, body = receive_message(descriptor, pixels, seconds)
    page = opened.document, opened.identity, _integer(header.get("page")), opened.total
    if header.get("kind") == "page":
        return PageRendered(*page, *_content(header, body, pixels), _boxes(header.get("boxes")))
    if header.get("kind") == "page_failed" and not body:
        return PageFailed(*page, _line(header.get("reason")))
    raise InvalidMessageError


def _identity(header: dict[str, Any]) -> FileIdentity:
    digest, metadata = header.get("digest"), header.get("metadata", {})
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{32}", digest):
        raise InvalidMessageError
    if not isinstance(metadata, dict) or not metadata.keys() <= {*FILE_METADATA}:
        raise InvalidMessageError
    size, modified = _integer(header.get("size"), 0, 2**63), _integer(header.get("modified"), -(2**63), 2**63)
    return FileIdentity(digest, size, modified, {name: _line(text) for name, text in metadata.items()})


def _content(header: dict[str, Any], body: bytearray, pixels: int) -> tuple[Image.Image, bytes, str]:
    width, height, thumbnail_bytes = (_integer(header.get(name)) for name in ("width", "height", "thumbnail"))
    length = 3 * width * height
    if not 0 < width * height <= max_pixels(pixels) or len(body) < length + thumbnail_bytes:
        raise InvalidMessageError
    thumbnail = bytes(body[length : length + thumbnail_bytes])
    if thumbnail and (thumbnail[:4] + thumbnail[8:12] != b"RIFFWEBP" or len(thumbnail) > MAX_THUMBNAIL):
        raise InvalidMessageError
    try:
        text = body[length + thumbnail_bytes :].decode()
    except UnicodeDecodeError as error:
        raise InvalidMessageError from error
    if len(text) > MAX_TEXT:
        raise InvalidMessageError
    return Image.frombytes("RGB", (width, height), memoryview(body)[:length]), thumbnail, text


def _boxes(value: object) -> list[Box]:
    if not isinstance(value, list) or len(value) > MAX_BOXES:
        raise InvalidMessageError
    for box in value:
        if not isinstance(box, list) or len(box) != 4 or not all(type(v) is float and 0 <= v <= 1 for v in box):
            raise InvalidMessageError
    return [(left, top, right, bottom) for left, top, right, bottom in value]


def _integer(value: object, minimum: int = 0, below: int = 2**31) -> int:
    if type(value) is not int or not minimum <= value < below:  # bool is a subclass of int
        raise InvalidMessageError
    return value


def _line(value: object) -> str:
    # Printed on terminals: one line without control characters.
    if not isinstance(value, str) or not 0 < len(value) <= MAX_REASON or not value.isprintable():
        raise InvalidMessageError
    return value


def _read(descriptor: int, length: int, deadline: float | None) -> bytearray:
    data = bytearray(length)
    view, position = memoryview(data), 0
    while position < length:
        _poll(descriptor, select.POLLIN, deadline)  # before every read: the sender may stop within a message
        try:
            count = os.readv(descriptor, [view[position:]])
        except BlockingIOError:
            continue
        if not count:
            raise EOFError
        position += count
    return data


def _poll(descriptor: int, event: int, deadline: float | None) -> None:
    if deadline is None:
        return
    poll = select.poll()  # unlike select, supports descriptors above 1023, which servers may have
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError
