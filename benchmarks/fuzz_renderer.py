"""Thousands of damaged files through the renderer: it must lose pages, one plain line each, and nothing else.

    nice python -m benchmarks.fuzz_renderer                  # 10,000 files, a few minutes
    python -m benchmarks.fuzz_renderer --files 500 --seed 7
    python -m benchmarks.fuzz_renderer --write 4711 out      # file 4711 alone, to look at

Small valid PDFs, PNGs, JPEGs, WebPs and TIFFs are made here, and damaged by flipped bits, cuts, splices, edited
lengths and numbers, deleted and doubled parts. The same seed makes the same files. It fails if the renderer's parent
raises anything, if its process ends with a traceback, if something is printed, if a page or document is lost without
a line, if a line is not plain, if a page has the digest of another file, or if a process needs more than its memory.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import random
import re
import resource
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, ImageDraw

from anchorfold.documents import Document, DocumentFinished, PageFailed, PageRendered, Renderer
from anchorfold.documents.rendering import Event, Request

MEGABYTE = 10**6
PIXELS = 100_000  # of a page: small, so that damage and not drawing takes the time
BATCH = 250  # files on the disk at once
PARENT_MEMORY = 400  # megabytes; the renderer's is an option
UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


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
        options |= {"creationDate": time.gmtime(0), "modDate": time.gmtime(0)}  # the same in every run
    several = {"save_all": True, "append_images": images[1:]} if pages > 1 else {}
    images[0].save(buffer, kind, **several, **options)
    return buffer.getvalue()


def drawn_pdf(pages: int, compressed: bool = True, first: bytes = b"", tile: int = 9, step: float = 9.0) -> bytes:
    """Text, paths, a shading, a pattern, a form that a page draws and an image with a mask.

    `first` is drawn before them on every page but the first; `tile` is the size of the pattern's tiles, `step`
    their distance.
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
    """Small valid files: (suffix, content)."""
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
    """File `number` of a run: (suffix, content). One in fifty is left whole, and one in a thousand means harm."""
    rng = random.Random(f"{seed} {number}")
    if number % 1000 == 999:
        return "pdf", drawn_pdf(3, first=b"q " * 4_000_000)  # graphics states without end: gigabytes
    if number % 2500 == 2499:
        return "pdf", drawn_pdf(1, tile=9999, step=0.01)  # a million million tiles: hours
    suffix, content = originals[number % len(originals)]
    data = bytearray(content)
    if rng.randrange(50):
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            if data:
                rng.choice(DAMAGES)(data, rng, rng.choice(originals)[1])
    if suffix == "png" and rng.randrange(2):
        mend_checksums(data)  # or nothing behind them would ever be met
    return suffix, bytes(data)


def mend_checksums(data: bytearray) -> None:
    at = 8
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end + 4 > len(data):
            return
        data[end : end + 4] = zlib.crc32(data[at + 4 : end]).to_bytes(4, "big")
        at = end + 4


@dataclass
class FuzzReport:
    """What became of all pages; `violations` must be empty. Memory in bytes."""

    files: int = 0
    rendered: int = 0
    lost_pages: Counter[str] = field(default_factory=Counter)
    lost_documents: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    parent_memory: int = 0
    child_memory: int = 0
    seconds: float = 0.0


@contextmanager
def captured_output() -> Iterator[io.BufferedRandom]:
    """What this process and its children print meanwhile."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        before = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, old in zip((1, 2), before, strict=True):
                os.dup2(old, descriptor)
                os.close(old)


def fuzz(files: int, seed: int, memory: int, seconds: float) -> FuzzReport:
    """Render so many damaged files, and check everything that can be checked of the events."""
    report, began, originals = FuzzReport(files), time.monotonic(), seeds()
    for first in range(0, files, BATCH):
        with tempfile.TemporaryDirectory() as folder, captured_output() as printed:
            documents, digests = {}, []
            for number in range(first, min(first + BATCH, files)):
                suffix, content = damaged(number, seed, originals)
                path = Path(folder) / f"{number}.{suffix}"
                path.write_bytes(content)
                documents[Document(path.name, path, len(content), path.stat().st_mtime_ns)] = number
                digests.append(hashlib.blake2b(content, digest_size=16).hexdigest())
            events: dict[Document, list[Event]] = {document: [] for document in documents}
            try:
                with Renderer(map(Request, documents), PIXELS, memory=memory, seconds=seconds) as renderer:
                    for event in renderer:
                        events[event.document].append(event)
            except Exception as error:
                report.violations.append(f"files from {first} on: the parent failed with {error!r}")
            for (document, document_events), digest in zip(events.items(), digests, strict=True):
                check(report, document.name, document_events, digest)
            printed.seek(0)
            if output := printed.read(2000):
                report.violations.append(f"files from {first} on: it printed {output!r}")
        if sys.stderr.isatty():
            print(f"\r{min(first + BATCH, files)} of {files}", end="", file=sys.stderr)
    report.seconds = time.monotonic() - began
    report.parent_memory = own_peak()
    report.child_memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * UNIT
    return report


def own_peak() -> int:
    """Bytes. Linux's usual answer is not ours: a process starts with the peak of the one that started it."""
    try:
        return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


def check(report: FuzzReport, name: str, events: list[Event], digest: str) -> None:
    """Count the events of one document, and note what must not be."""

    def wrong(what: str) -> None:
        report.violations.append(f"{name}: {what}")

    if not events or not isinstance(end := events[-1], DocumentFinished):
        return wrong("it has no last event")
    pages = [event for event in events if isinstance(event, PageRendered | PageFailed)]
    numbers = [page.number for page in pages]
    total = max((page.total for page in pages), default=0)
    complete = numbers == list(range(total)) if end.problem is None else numbers == sorted(set(numbers))
    if not complete or len(pages) != len(events) - 1 or not (pages or end.problem):
        wrong(f"of {total} pages {numbers} came, and {end.problem} was said")
    if {event.identity.digest for event in (*pages, end) if event.identity} - {digest}:
        wrong("a page was rendered from other bytes")
    report.rendered += sum(isinstance(page, PageRendered) for page in pages)
    for counter, reasons in (
        (report.lost_pages, [page.problem for page in pages if isinstance(page, PageFailed)]),
        (report.lost_documents, [end.problem] if end.problem else []),
    ):
        for reason in reasons:
            counter[reason] += 1
            if not plain(reason):
                wrong(f"its reason is {reason!r}")


def plain(reason: str) -> bool:
    """One printable line without names of exceptions; a Python traceback ends the process with exit code 1."""
    odd = re.search(r"Error|Exception|Traceback|Warning|0x|<|\(exit |garbled", reason)
    return 0 < len(reason) <= 120 and reason.isprintable() and not odd


def main() -> int:
    """Run, print, and say by the exit code whether all went well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", type=int, default=512, help="megabytes for the renderer's process")
    parser.add_argument("--seconds", type=float, default=10.0, help="for a page")
    parser.add_argument("--write", nargs=2, metavar=("NUMBER", "FOLDER"), help="write one file and end")
    options = parser.parse_args()
    if options.write:
        number, folder = int(options.write[0]), Path(options.write[1])
        suffix, content = damaged(number, options.seed, seeds())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.{suffix}").write_bytes(content)
        return 0
    report = fuzz(options.files, options.seed, options.memory * MEGABYTE, options.seconds)
    print(f"\n{report.files} files in {report.seconds:.0f} s: {report.rendered} pages rendered")
    for title, lost in (("pages lost", report.lost_pages), ("documents lost", report.lost_documents)):
        print(f"{lost.total()} {title}")
        for reason, times in lost.most_common():
            print(f"  {times:6} {reason}")
    child, parent = report.child_memory / MEGABYTE, report.parent_memory / MEGABYTE
    print(f"peak memory: renderer {child:.0f} MB, parent {parent:.0f} MB")
    if child > 1.5 * options.memory or parent > PARENT_MEMORY:
        report.violations.append(f"a process used too much memory: {options.memory} and {PARENT_MEMORY} MB are allowed")
    print(f"{len(report.violations)} violations")
    for violation in report.violations[:50]:
        print(f"  {violation}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
