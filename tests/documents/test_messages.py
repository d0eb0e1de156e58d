"""The parent believes nothing that the renderer says before it was checked."""

import json
import os
import pickle
import threading

import pytest
from PIL import Image

from anchorfold.documents import messages
from anchorfold.documents.messages import GarbledMessageError, Opened, Picture, receive_answer, receive_request, send
from anchorfold.documents.pages import most_pixels

PIXELS = 10_000
WEBP = b"RIFF\0\0\0\0WEBP small"


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def answer_to(pipe, data: bytes, seconds: float = 5.0):
    writer = threading.Thread(target=os.write, args=(pipe[1], data))
    writer.start()
    try:
        return receive_answer(pipe[0], PIXELS, seconds)
    finally:
        writer.join()


def framed(header: object, body: bytes = b"") -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return messages.LENGTHS.pack(len(head), len(body)) + head + body


def test_a_page_goes_through_unchanged(pipe):
    image = Image.effect_noise((90, 100), 50).convert("RGB")
    header = {"kind": "picture", "page": 3, "width": 90, "height": 100, "thumbnail": len(WEBP)}
    answer = answer_to(pipe, framed(header, image.tobytes() + WEBP + "Erlös".encode()))
    assert isinstance(answer, Picture)
    assert (answer.page, answer.thumbnail, answer.image.tobytes()) == (3, WEBP, image.tobytes())
    assert answer.text == "Erlös"


def test_names_that_are_no_unicode_go_through_unchanged(pipe):
    name = os.fsdecode(b"/caf\xe9 \xf0\x9f\x93\x84.pdf")
    send(pipe[1], {"kind": "render", "path": name})
    assert receive_request(pipe[0])["path"] == name


def test_an_identity_goes_through_unchanged(pipe):
    header = {"kind": "opened", "pages": 2, "digest": "0a" * 16, "size": 2**40, "modified": -5}
    answer = answer_to(pipe, framed(header))
    assert isinstance(answer, Opened)
    assert (answer.identity.size, answer.identity.modified) == (2**40, -5)
    answer = answer_to(pipe, framed({**header, "information": {"title": "Jahresbericht \u00d6"}}))
    assert isinstance(answer, Opened)
    assert answer.identity.information == {"title": "Jahresbericht Ö"}


OPENED = {"kind": "opened", "pages": 2, "digest": "0a" * 16, "size": 10, "modified": 5}
PICTURE = {"kind": "picture", "page": 0, "width": 10, "height": 10, "thumbnail": 0}
SMALL = {**PICTURE, "thumbnail": len(WEBP)}


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
        ({"kind": "started"}, b""),
        ({"kind": "started", "page": -1}, b""),
        ({"kind": "started", "page": 1.0}, b""),
        ({"kind": "started", "page": True}, b""),
        ({"kind": "started", "page": 10**30}, b""),
        ({"kind": "counted", "number": 0, "pages": "1"}, b""),
        ({**OPENED, "pages": 2**21}, b""),
        ({**OPENED, "digest": "0A" * 16}, b""),
        ({**OPENED, "digest": "0a" * 15 + "\n\n"}, b""),
        ({**OPENED, "size": -1}, b""),
        ({**OPENED, "modified": 2**63}, b""),
        ({**OPENED, "information": []}, b""),
        ({**OPENED, "information": {"password": "x"}}, b""),
        ({**OPENED, "information": {"title": 5}}, b""),
        ({**OPENED, "information": {"title": "two\nlines"}}, b""),
        ({**OPENED, "information": {"author": "x" * 301}}, b""),
        ({"kind": "page problem", "page": 0, "reason": ""}, b""),
        ({"kind": "page problem", "page": 0, "reason": "two\nlines"}, b""),
        ({"kind": "page problem", "page": 0, "reason": "\x1b[2J"}, b""),
        ({"kind": "document problem", "reason": "x" * 301}, b""),
        ({"kind": "document problem", "reason": "\udce9"}, b""),
        ({"kind": "document problem", "reason": 5}, b""),
        (PICTURE, b""),
        (PICTURE, bytes(299)),
        ({**PICTURE, "thumbnail": 6}, bytes(300) + b"GIF89a"),
        ({**PICTURE, "thumbnail": 12}, bytes(300) + b"RIFF\0\0\0\0WAVE"),
        ({**PICTURE, "thumbnail": 1}, bytes(300)),
        ({**PICTURE, "thumbnail": None}, bytes(300)),
        (PICTURE, bytes(300) + b"caf\xe9"),
        (PICTURE, bytes(300) + b"x" * 200_001),
        ({**SMALL, "width": 0}, WEBP),
        ({**SMALL, "width": -10, "height": -10}, bytes(300) + WEBP),
        ({**SMALL, "width": 2**20, "height": 2**20}, bytes(300) + WEBP),
        ({**SMALL, "width": "10"}, bytes(300) + WEBP),
        (pickle.dumps(("done",), protocol=5), b""),
    ],
)
def test_what_a_renderer_never_says_is_refused(pipe, header, body):
    with pytest.raises(GarbledMessageError):
        answer_to(pipe, framed(header, body))


@pytest.mark.parametrize("lengths", [(2**32 - 1, 0), (65_537, 0), (2, 2**62), (2, 3 * most_pixels(PIXELS) + 2 * 10**6)])
def test_lengths_are_checked_before_anything_is_kept_for_them(pipe, lengths):
    with pytest.raises(GarbledMessageError):
        answer_to(pipe, messages.LENGTHS.pack(*lengths))


def test_silence_in_the_middle_of_a_message_is_not_waited_for(pipe):
    with pytest.raises(TimeoutError):
        answer_to(pipe, messages.LENGTHS.pack(1000, 0) + b"half of it", 0.2)


def test_a_message_that_trickles_in_is_not_waited_for(pipe):
    stop = threading.Event()

    def trickle():
        os.write(pipe[1], messages.LENGTHS.pack(60_000, 0))
        while not stop.wait(0.05):
            os.write(pipe[1], b" ")

    writer = threading.Thread(target=trickle)
    writer.start()
    try:
        with pytest.raises(TimeoutError):
            receive_answer(pipe[0], PIXELS, 0.5)
    finally:
        stop.set()
        writer.join()


def test_nobody_who_reads_is_not_waited_for(pipe):
    os.set_blocking(pipe[1], False)
    with pytest.raises(TimeoutError):
        send(pipe[1], {"paths": ["x" * 1000] * 1000}, seconds=0.2)


def test_the_end_of_the_other_side():
    ours, theirs = os.pipe()
    os.close(theirs)
    with pytest.raises(EOFError):
        receive_answer(ours, PIXELS, 5.0)
    os.close(ours)
