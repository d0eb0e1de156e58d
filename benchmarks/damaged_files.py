"""Small valid PDFs and images, and damaged variants of them; deterministic for a seed."""

from __future__ import annotations

import io
import random
import re
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw

from anchorfold.documents.conversion import OFFICE


def picture(mode: str = "RGB", size: tuple[int, int] = (60, 80), number: int = 0) -> Image.Image:
    image = Image.new("RGB", size, (250, 250, 240))
    pen = ImageDraw.Draw(image)
    pen.text((5, 5), f"page {number}", fill=(0, 0, 90))
    pen.ellipse((10, 25, 50, 65), fill=(200, 40 * number % 255, 30))
    return (
        image.convert("L").convert("I").point(lambda v: v * 256).convert("I;16")
        if mode == "I;16"
        else image.convert(mode)
    )


def saved(kind: str, mode: str = "RGB", pages: int = 1, **options: object) -> bytes:
    buffer = io.BytesIO()
    images = [picture(mode, number=n) for n in range(pages)]
    if kind == "PDF":
        options |= {"creationDate": time.gmtime(0), "modDate": time.gmtime(0)}  # deterministic
    several = {"save_all": True, "append_images": images[1:]} if pages > 1 else {}
    images[0].save(buffer, kind, **several, **options)
    return buffer.getvalue()


def drawn_pdf(pages: int, compressed: bool = True, first: bytes = b"", tile: int = 9, step: float = 9.0) -> bytes:
    """Return a PDF with text, paths, a shading, a pattern, a form XObject and an image with a mask.

    `first` is drawn before them on every page but the first; `tile` is the size of the pattern tiles, `step` their
    distance.
    """

    def stream(entries: bytes, data: bytes) -> bytes:
        if not compressed:
            return b"<<%b/Length %d>>stream\n%b\nendstream" % (entries, len(data), data)
        packed = zlib.compress(data)
        return b"<<%b/Filter/FlateDecode/Length %d>>stream\n%b\nendstream" % (entries, len(packed), packed)

    kids = b" ".join(b"%d 0 R" % (9 + 2 * n) for n in range(pages))
    image = b"/Type/XObject/Subtype/Image/Width 8/Height 8/BitsPerComponent 8"
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[%b]/Count %d/MediaBox[0 0 200 260]>>" % (kids, pages),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        b"<</ShadingType 2/ColorSpace/DeviceRGB/Coords[0 0 200 0]/Function"
        b"<</FunctionType 2/Domain[0 1]/C0[1 0 0]/C1[0 0 1]/N 1>>>>",
        stream(b"/Type/XObject/Subtype/Form/BBox[0 0 50 50]/Group<</S/Transparency>>", b"0 1 0 rg 5 5 40 40 re f"),
        stream(image + b"/ColorSpace/DeviceRGB/SMask 7 0 R", bytes(range(192))),
        stream(image + b"/ColorSpace/DeviceGray", bytes(range(64))),
        stream(
            b"/Type/Pattern/PatternType 1/PaintType 1/TilingType 1/BBox[0 0 %d %d]/XStep %f/YStep %f/Resources<<>>"
            % (tile, tile, step, step),
            b"1 0 1 rg 0 0 4 4 re f",
        ),
    ]
    resources = b"/Font<</F 3 0 R>>/Shading<</S 4 0 R>>/XObject<</X 5 0 R/I 6 0 R>>/Pattern<</P 8 0 R>>"
    for n in range(pages):
        content = first * (n > 0) + (
            b"BT /F 18 Tf 20 220 Td (Page %d) Tj ET q 20 120 60 60 re W n /S sh Q q 1 0 0 1 100 120 cm /X Do Q "
            b"q 50 0 0 50 20 50 cm /I Do Q /Pattern cs /P scn 100 50 m 150 50 150 100 100 100 c f" % n
        )
        objects.append(
            b"<</Type/Page/Parent 2 0 R/Contents %d 0 R/Rotate %d/Resources<<%b>>>>"
            % (10 + 2 * n, n % 2 * 90, resources)
        )
        objects.append(stream(b"", content))
    out, offsets = b"%PDF-1.5\n", []
    for number, entry in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, entry)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    return out + b"xref\n0 %d\n0000000000 65535 f \n%btrailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (
        size, table, size, len(out)
    )  # fmt: skip


TURNED = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"


def seeds() -> list[tuple[str, bytes]]:
    """Return small valid files as (suffix, content)."""
    return [
        ("pdf", drawn_pdf(1)),
        ("pdf", drawn_pdf(3)),
        ("pdf", drawn_pdf(6)),
        ("pdf", drawn_pdf(1, compressed=False)),
        ("pdf", drawn_pdf(4, compressed=False)),
        ("pdf", saved("PDF")),
        ("pdf", saved("PDF", pages=4)),
        ("png", saved("PNG")),
        ("png", saved("PNG", "P", transparency=0)),
        ("png", saved("PNG", "I;16")),
        ("png", saved("PNG", "RGBA")),
        ("jpg", saved("JPEG")),
        ("jpg", saved("JPEG", "CMYK")),
        ("jpg", saved("JPEG", progressive=True, exif=TURNED)),
        ("webp", saved("WEBP")),
        ("webp", saved("WEBP", "RGBA", lossless=True)),
        ("webp", saved("WEBP", pages=3)),
        ("tiff", saved("TIFF")),
        ("tiff", saved("TIFF", pages=3)),
        ("tiff", saved("TIFF", compression="tiff_lzw", pages=2)),
        ("tiff", saved("TIFF", compression="jpeg")),
        ("tiff", saved("TIFF", "1", compression="group4")),
    ]  # fmt: skip


def office_seeds(address: str) -> list[tuple[str, bytes]]:
    """Return small valid office, HTML and mail files as (suffix, content); requires LibreOffice.

    Half of the office files refer to pictures, sections and formulas at `address`; one has an endless macro.
    """
    from tests.documents.hostile_office import endless_macro, references
    from tests.documents.office_files import mail, office_file

    with tempfile.TemporaryDirectory() as folder:
        files = [(suffix, office_file(suffix, "quarterly revenue", Path(folder))) for suffix in OFFICE]
        files += [(name.rpartition(".")[2], content) for name, content in references(address, Path(folder)).items()]
    page = f"<h1>Title</h1><table><tr><td>1<td>2</table><p style='float:left'>text<img src='{address}/a.png'>".encode()
    markup = [("html", page), ("md", b"# Title\n\n* a\n* b\n"), ("eml", mail("text", {"page.html": page}))]
    return [*files, ("odt", endless_macro()), *markup]


def damage_part(data: bytes, damage: Callable[[bytearray], None], rng: random.Random) -> bytes:
    """Damage one part of a zip archive and pack it again, so that the checksums are right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice([name for name in parts if parts[name]])
    part = bytearray(parts[name])
    damage(part)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for other, content in parts.items():
            archive.writestr(other, bytes(part) if other == name else content)
    return buffer.getvalue()


NUMBERS = (0, 1, 2, 7, 127, 128, 255, 256, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63, 2**64 - 1)


def flip_bits(data: bytearray, rng: random.Random, _: bytes) -> None:
    for _flip in range(rng.choice((1, 1, 2, 8, 40))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(data: bytearray, rng: random.Random, _: bytes) -> None:
    del data[rng.randrange(1, len(data) + 1) :]


def splice(data: bytearray, rng: random.Random, other: bytes) -> None:
    at, start = rng.randrange(len(data)), rng.randrange(len(other))
    data[at : at + rng.randrange(200)] = other[start : start + rng.randrange(1, 400)]


def edit_length(data: bytearray, rng: random.Random, _: bytes) -> None:
    width = rng.choice((1, 2, 4, 8))
    at = rng.randrange(len(data))
    value = rng.choice(NUMBERS) % 256**width
    data[at : at + width] = value.to_bytes(width, rng.choice(("little", "big")))


def edit_number(data: bytearray, rng: random.Random, _: bytes) -> None:
    numbers = list(re.finditer(rb"\d+", data))
    if numbers:
        start, end = rng.choice(numbers).span()
        data[start:end] = b"%d" % rng.choice((*NUMBERS, -1, 3, 10, 99_999, 10**6))


def delete(data: bytearray, rng: random.Random, _: bytes) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 2, 4, 16, 100))]


def double(data: bytearray, rng: random.Random, _: bytes) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.choice((1, 4, 30, 300))] * rng.choice((1, 1, 2, 50))


DAMAGES = (flip_bits, flip_bits, cut, splice, edit_length, edit_length, edit_number, edit_number, delete, double)


def damaged(number: int, seed: int, originals: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    """Return file `number` of a run as (suffix, content): 1 in 50 is intact, 1 in 1,000 is malicious."""
    rng = random.Random(f"{seed} {number}")
    if number % 1000 == 999:
        return "pdf", drawn_pdf(3, first=b"q " * 4_000_000)  # unbalanced graphics states: gigabytes of memory
    if number % 2500 == 2499:
        return "pdf", drawn_pdf(1, tile=9999, step=0.01)  # 10^12 tiles: hours of rendering
    suffix, content = originals[number % len(originals)]

    def damage(data: bytearray) -> None:
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            if data:
                rng.choice(DAMAGES)(data, rng, rng.choice(originals)[1])

    data = bytearray(content)
    if rng.randrange(50):
        if content.startswith(b"PK") and rng.randrange(4):  # else the damage is found before LibreOffice starts
            data = bytearray(damage_part(content, damage, rng))
        else:
            damage(data)
    if suffix == "png" and rng.randrange(2):
        mend_checksums(data)  # otherwise decoders stop at the checksum
    return suffix, bytes(data)


def mend_checksums(data: bytearray) -> None:
    at = 8
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end + 4 > len(data):
            return
        data[end : end + 4] = zlib.crc32(data[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
