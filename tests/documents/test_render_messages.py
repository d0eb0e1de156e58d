"""Validation of the messages of the renderer process."""

import json
import os
import pickle
import threading
from pathlib import Path

import pytest
from PIL import Image

from anchorfold.documents import Document, FileIdentity, PageRendered
from anchorfold.documents import render_messages as messages
from anchorfold.documents.render_events import DocumentOpened
from anchorfold.documents.render_messages import (
    InvalidMessageError,
    max_pixels,
    receive_message,
    receive_opened,
    receive_page,
    receive_request,
    send,
)

PIXELS = 10_000
DOCUMENT = Document("a.pdf", Path("/a.pdf"), 10, 5)
WEBP = b"RIFF\0\0\0\0WEBP small"


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def receive(pipe, data: bytes, seconds: float = 5.0, page: bool = True):
    writer = threading.Thread(target=os.write, args=(pipe[1], data))
    writer.start()
    try:
        if page:
            return receive_page(pipe[0], DocumentOpened(DOCUMENT, FileIdentity("0a" * 16, 10, 5), 2), PIXELS, seconds)
        return receive_opened(pipe[0], DOCUMENT, PIXELS, seconds)
    finally:
        writer.join()


def framed(header: object, body: bytes = b"") -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return messages.LENGTHS.pack(len(head), len(body)) + head + body


OPENED = {"kind": "opened", "pages": 2, "digest": "0a" * 16, "size": 10, "modified": 5}
PAGE = {"kind": "page", "page": 0, "width": 10, "height": 10, "thumbnail": 0, "boxes": []}
SMALL = {**PAGE, "thumbnail": len(WEBP)}


def test_page(pipe):
    image = Image.effect_noise((90, 100), 50).convert("RGB")
    box = (0.1, 0.2, 0.3, 0.4)
    header = {**PAGE, "page": 3, "width": 90, "height": 100, "thumbnail": len(WEBP), "boxes": [box]}
    event = receive(pipe, framed(header, image.tobytes() + WEBP + "Erlös".encode()))
    assert isinstance(event, PageRendered)
    assert (event.number, event.total, event.thumbnail, event.image.tobytes()) == (3, 2, WEBP, image.tobytes())
    assert (event.text, event.boxes) == ("Erlös", [box])


def test_non_unicode_path(pipe):
    name = os.fsdecode(b"/caf\xe9 \xf0\x9f\x93\x84.pdf")
    send(pipe[1], {"path": name})
    assert receive_request(pipe[0])["path"] == name


def test_identity(pipe):
    header = {**OPENED, "size": 2**40, "modified": -5}
    event = receive(pipe, framed(header), page=False)
    assert isinstance(event, DocumentOpened)
    assert (event.total, event.identity.size, event.identity.modified) == (2, 2**40, -5)
    event = receive(pipe, framed({**header, "metadata": {"title": "Jahresbericht \u00d6"}}), page=False)
    assert isinstance(event, DocumentOpened)
    assert event.identity.metadata == {"title": "Jahresbericht Ö"}


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"", b""),
        (b"[" * 60_000, b""),
        (b"\xff\xfe{}", b""),
        (b"NaN", b""),
        ([], b""),
        ("done", b""),
        ({}, b""),
        ({"kind": "run", "code": "1"}, b""),
        ({"kind": ["done"]}, b""),
        ({"kind": "done"}, b"more"),
        ({"kind": "page_failed", "reason": "x"}, b""),
        ({"kind": "page_failed", "reason": "x", "page": -1}, b""),
        ({"kind": "page_failed", "reason": "x", "page": 1.0}, b""),
        ({"kind": "page_failed", "reason": "x", "page": True}, b""),
        ({"kind": "page_failed", "reason": "x", "page": 10**30}, b""),
        ({"kind": "page_failed", "page": 0, "reason": "x"}, b"more"),
        (OPENED, b"more"),
        ({**OPENED, "pages": 2**21}, b""),
        ({**OPENED, "digest": "0A" * 16}, b""),
        ({**OPENED, "digest": "0a" * 15 + "\n\n"}, b""),
        ({**OPENED, "size": -1}, b""),
        ({**OPENED, "modified": 2**63}, b""),
        ({**OPENED, "metadata": []}, b""),
        ({**OPENED, "metadata": {"password": "x"}}, b""),
        ({**OPENED, "metadata": {"title": 5}}, b""),
        ({**OPENED, "metadata": {"title": "two\nlines"}}, b""),
        ({**OPENED, "metadata": {"author": "x" * 301}}, b""),
        ({"kind": "page_failed", "page": 0, "reason": ""}, b""),
        ({"kind": "page_failed", "page": 0, "reason": "two\nlines"}, b""),
        ({"kind": "page_failed", "page": 0, "reason": "\x1b[2J"}, b""),
        ({"kind": "document_failed", "reason": "x" * 301}, b""),
        ({"kind": "document_failed", "reason": "\udce9"}, b""),
        ({"kind": "document_failed", "reason": 5}, b""),
        (PAGE, b""),
        (PAGE, bytes(299)),
        ({**PAGE, "boxes": None}, bytes(300)),
        ({**PAGE, "boxes": [[0.1, 0.2, 0.3]]}, bytes(300)),
        ({**PAGE, "boxes": [[0.1, 0.2, 0.3, 1.5]]}, bytes(300)),
        ({**PAGE, "boxes": [[0.1, 0.2, 0.3, "x"]]}, bytes(300)),
        ({**PAGE, "boxes": [[0.1, 0.2, 0.3, float("nan")]]}, bytes(300)),
        ({**PAGE, "boxes": [[0.1, 0.2, 0.3, 0.4]] * 1001}, bytes(300)),
        ({**PAGE, "thumbnail": 6}, bytes(300) + b"GIF89a"),
        ({**PAGE, "thumbnail": 12}, bytes(300) + b"RIFF\0\0\0\0WAVE"),
        ({**PAGE, "thumbnail": 1}, bytes(300)),
        ({**PAGE, "thumbnail": None}, bytes(300)),
        (PAGE, bytes(300) + b"caf\xe9"),
        (PAGE, bytes(300) + b"x" * 200_001),
        ({**SMALL, "width": 0}, WEBP),
        ({**SMALL, "width": -10, "height": -10}, bytes(300) + WEBP),
        ({**SMALL, "width": 2**20, "height": 2**20}, bytes(300) + WEBP),
        ({**SMALL, "width": "10"}, bytes(300) + WEBP),
        (pickle.dumps(("done",), protocol=5), b""),
    ],
)
@pytest.mark.parametrize("page", [False, True])
def test_invalid_messages(pipe, header, body, page):
    with pytest.raises(InvalidMessageError):
        receive(pipe, framed(header, body), page=page)


def test_events_in_the_wrong_order(pipe):
    with pytest.raises(InvalidMessageError):
        receive(pipe, framed(OPENED))
    with pytest.raises(InvalidMessageError):
        receive(pipe, framed(PAGE, bytes(300)), page=False)


@pytest.mark.parametrize("lengths", [(2**32 - 1, 0), (65_537, 0), (2, 2**62), (2, 3 * max_pixels(PIXELS) + 2 * 10**6)])
def test_lengths_are_validated_before_allocation(pipe, lengths):
    with pytest.raises(InvalidMessageError):
        receive(pipe, messages.LENGTHS.pack(*lengths))


def test_timeout_within_a_message(pipe):
    with pytest.raises(TimeoutError):
        receive(pipe, messages.LENGTHS.pack(1000, 0) + b"half of it", 0.2)


def test_timeout_of_a_slow_message(pipe):
    stop = threading.Event()

    def trickle():
        os.write(pipe[1], messages.LENGTHS.pack(60_000, 0))
        while not stop.wait(0.05):
            os.write(pipe[1], b" ")

    writer = threading.Thread(target=trickle)
    writer.start()
    try:
        with pytest.raises(TimeoutError):
            receive_message(pipe[0], PIXELS, 0.5)
    finally:
        stop.set()
        writer.join()


def test_timeout_of_sending(pipe):
    os.set_blocking(pipe[1], False)
    with pytest.raises(TimeoutError):
        send(pipe[1], {"paths": ["x" * 1000] * 1000}, seconds=0.2)


def test_closed_pipe():
    ours, theirs = os.pipe()
    os.close(theirs)
    with pytest.raises(EOFError):
        receive_message(ours, PIXELS, 5.0)
    os.close(ours)
