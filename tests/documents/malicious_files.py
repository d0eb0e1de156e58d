"""Files that mean harm, made byte by byte and the same in every run."""

import struct
import zlib
from pathlib import Path


def raw_pdf(objects: list[bytes]) -> bytes:
    """A PDF of these objects, numbered from 1; the first is its catalogue."""
    out, offsets = b"%PDF-1.7\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    count = len(objects) + 1
    return (
        out
        + b"xref\n0 %d\n0000000000 65535 f \n%b" % (count, table)
        + b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (count, len(out))
    )


def stream(data: bytes, rounds: int = 1) -> bytes:
    """Compressed so many times."""
    for _ in range(rounds):
        data = zlib.compress(data, 9)
    return b"<</Filter[%b]/Length %d>>stream\n%b\nendstream" % (b"/FlateDecode" * rounds, len(data), data)


def number_content(number: int) -> bytes:
    """Draws what `tests.number_reader.read_number` reads."""
    bands = [(10 + 25 * int(digit)) / 255 for digit in f"{number:03}"]
    return stream(b"".join(b"%.4f g 0 %02d 60 20 re f " % (grey, 40 - 20 * i) for i, grey in enumerate(bands)), 0)


# Every q opens a graphics state that is never closed: eight million bytes in a few hundred, and gigabytes in memory.
HUNGRY = stream(b"q " * 4_000_000, rounds=2)
# A pattern of a million million tiles: it takes no memory, and no end.
ENDLESS = stream(b"/Pattern cs /P scn 0 0 60 60 re f")
TILE = b"<</Type/Pattern/PatternType 1/PaintType 1/TilingType 1/BBox[0 0 10000 10000]/XStep .01/YStep .01/Resources<<>>/Length 23>>stream\n1 0 0 rg 0 0 1 1 re f   \nendstream"  # noqa: E501


def write_pages(path: Path, contents: list[bytes]) -> Path:
    """A PDF whose pages have these contents."""
    pages = [
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 60 60]/Resources<</Pattern<</P 3 0 R>>>>/Contents %d 0 R>>"
        % (5 + 2 * i)
        for i in range(len(contents))
    ]
    kids = b" ".join(b"%d 0 R" % (4 + 2 * i) for i in range(len(contents)))
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[%b]/Count %d>>" % (kids, len(contents)), TILE]
    for page, content in zip(pages, contents, strict=True):
        objects += [page, content]
    path.write_bytes(raw_pdf(objects))
    return path


def truncated_tiff() -> bytes:
    """A TIFF whose only directory ends in the middle of its third entry."""
    entries = [(256, 3, 1, 40), (257, 3, 1, 40), (258, 3, 1, 8)]
    directory = struct.pack("<H", 12) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<I", 8) + directory[:-5]
