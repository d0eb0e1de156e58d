"""Pages of one document as images: PDF by pypdfium2, images by Pillow."""

from __future__ import annotations

import ctypes
import io
import math
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c
from PIL import Image, ImageOps, UnidentifiedImageError

from anchorfold.documents.content import FileIdentity, read_file
from anchorfold.documents.kinds import Pages, kind_of
from anchorfold.errors import UnreadableDocumentError

# Backbones say what they want; this is enough for all (Nemotron's eight tiles of 512 x 512).
RENDER_PIXELS = 2_000_000
MAX_SCALE = 4.0  # 288 dots per inch: small cards and slides gain nothing from more
MAX_SIDE = 20_000  # pixels of a rendered page, for one that is a thin strip
MAX_IMAGE_PIXELS = 175_000_000  # a little less than what Pillow refuses by itself
# What the names of images promise, and what often hides behind them. Pillow knows dozens of formats more, and starts
# other programs for some.
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP")
DAMAGED_IMAGE = "a damaged image"
# The renderer and the text reader are child processes and inherit it. It is not an argument, which `ps` would show.
PASSWORD_VARIABLE = "ANCHORFOLD_PDF_PASSWORD"

_ENCRYPTED = 4
_PDF_REASONS = {
    3: "not a PDF, or damaged",
    2: "cannot be opened",
    5: "protected by an unsupported security scheme",
}


class PdfPages(Pages):
    """A PDF."""

    def __init__(self, data: bytes, identity: FileIdentity, pixels: int) -> None:
        super().__init__(data, identity, pixels)
        if data.find(b"%PDF-", 0, 1024) < 0:
            raise UnreadableDocumentError("not a PDF, whatever its name says")
        self._open: tuple[int, pdfium.PdfPage] | None = None
        try:
            self.pdf = _open_pdf(data)
        except pdfium.PdfiumError as error:
            raise UnreadableDocumentError(_pdf_problem(data, getattr(error, "err_code", 0) or 0)) from error
        with suppress(pdfium.PdfiumError):  # a broken form is not drawn
            self.pdf.init_forms()
        if (claimed := len(self.pdf)) > len(data):
            self.pdf.close()
            raise UnreadableDocumentError(f"damaged: it claims {claimed:,} pages in {len(data):,} bytes")

    @classmethod
    def count(cls, path: str | Path) -> int:
        """Pages of a file."""
        with _open_pdf(path) as pdf:
            return len(pdf)

    def __len__(self) -> int:
        return len(self.pdf)

    def image(self, number: int) -> Image.Image:
        """The rendered page, at most `pixels` large, its aspect ratio kept."""
        with _plain_reasons("a damaged page"):
            page = self._page(number)
            width, height = page.get_size()
            if not (0 < width < math.inf and 0 < height < math.inf):
                raise UnreadableDocumentError("a page without a size")
            scale = min(MAX_SCALE, (self.pixels / (width * height)) ** 0.5, MAX_SIDE / max(width, height))
            image: Image.Image = page.render(scale=scale, may_draw_forms=True).to_pil().convert("RGB")
        return image

    def text(self, number: int) -> str:
        """The text layer of a page; empty if there is none, or none that can be read."""
        try:
            with closing(self._page(number).get_textpage()) as layer:
                return str(layer.get_text_bounded())
        except MemoryError:
            raise
        except Exception:  # whatever the library raises: the picture of the page is worth more than its text
            return ""

    def _page(self, number: int) -> pdfium.PdfPage:
        """A page, which stays open until another is wanted: its picture and its text are asked for one by one."""
        if self._open is None or self._open[0] != number:
            self._close_page()
            self._open = (number, self.pdf[number])
        return self._open[1]

    def _close_page(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def information(self) -> dict[str, str]:
        """From the information dictionary, and the language of the catalogue."""
        keys = {"title": "Title", "author": "Author"}
        return {name: self.pdf.get_metadata_value(key) for name, key in keys.items()} | {"language": self._language()}

    def _language(self) -> str:
        length = pdfium_c.FPDFCatalog_GetLanguage(self.pdf, None, 0)
        buffer = (ctypes.c_ushort * (length // 2))()
        pdfium_c.FPDFCatalog_GetLanguage(self.pdf, buffer, length)
        return bytes(buffer).decode("utf-16-le", "replace").rstrip("\0")

    def close(self) -> None:
        """Let go of the file's bytes."""
        self._close_page()
        self.pdf.close()


class ImagePages(Pages):
    """An image file; TIFF may hold several pages."""

    def __init__(self, data: bytes, identity: FileIdentity, pixels: int) -> None:
        super().__init__(data, identity, pixels)
        with _plain_reasons(DAMAGED_IMAGE):
            self.file = Image.open(io.BytesIO(data), formats=IMAGE_FORMATS)
            self.frames = _frames(self.file)

    @classmethod
    def count(cls, path: str | Path) -> int:
        """Pages of a file."""
        with Image.open(path, formats=IMAGE_FORMATS) as image:
            return _frames(image)

    def __len__(self) -> int:
        return self.frames

    def image(self, number: int) -> Image.Image:
        """The frame the right way up, transparent parts white, at most `pixels` large."""
        with _plain_reasons(DAMAGED_IMAGE):
            self.file.seek(number)
            if self.file.width * self.file.height > MAX_IMAGE_PIXELS:
                raise Image.DecompressionBombError
            self.file.load()
            frame = _upright(self.file)
            if frame.mode in ("RGBA", "LA", "PA") or "transparency" in frame.info:
                frame = frame.convert("RGBA")
                frame = Image.alpha_composite(Image.new("RGBA", frame.size, "white"), frame)
            if frame.mode.startswith("I;16") or frame.mode == "I":
                frame = frame.point(lambda v: v / 256).convert("L")
            frame = frame.convert("RGB")
            width, height = frame.size
            scale = min((self.pixels / (width * height)) ** 0.5, MAX_SIDE / max(width, height))
            if scale < 1:
                size = (max(1, round(width * scale)), max(1, round(height * scale)))
                frame = frame.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
        return frame

    def close(self) -> None:
        """Let go of the file's bytes."""
        self.file.close()


def most_pixels(pixels: int) -> int:
    """Of any page that is rendered for `pixels`: sides are rounded up, and a thin strip is at least one pixel wide."""
    return pixels + 2 * MAX_SIDE


@contextmanager
def open_pages(path: str | Path, pixels: int = RENDER_PIXELS) -> Iterator[Pages]:
    """A document's pages; raises UnreadableDocumentError with the reason if it has none."""
    pages = load_pages(path, pixels)
    try:
        yield pages
    finally:
        pages.close()


def load_pages(path: str | Path, pixels: int = RENDER_PIXELS) -> Pages:
    """A document's pages, to be closed; raises UnreadableDocumentError with the reason if it has none."""
    data, identity = read_file(path)
    if not data:
        raise UnreadableDocumentError("empty file")
    pages = kind_of(path)(data, identity, pixels)
    if len(pages) == 0:
        pages.close()
        raise UnreadableDocumentError("no pages")
    return pages


def count_pages(path: str | Path) -> int:
    """How many pages a document has; reads no more of the file than that takes. Raises anything."""
    return kind_of(path).count(path)


def _open_pdf(source: bytes | str | Path) -> pdfium.PdfDocument:
    """Open a PDF, with the password of the environment only if it does not open without.

    PDFium refuses a wrong password even for files whose password is empty.
    """
    try:
        return pdfium.PdfDocument(source)
    except pdfium.PdfiumError as error:
        password = os.environ.get(PASSWORD_VARIABLE)
        if not password or getattr(error, "err_code", 0) != _ENCRYPTED:
            raise
    return pdfium.PdfDocument(source, password=password)


def _pdf_problem(data: bytes, code: int) -> str:
    if re.search(rb"/Count\s+0\b", data) and not re.search(rb"/Type\s*/Page\b", data):
        return "no pages"
    # The library may still report the error of the document before.
    if code == _ENCRYPTED and b"/Encrypt" not in data:
        code = 0
    if code == _ENCRYPTED:
        if os.environ.get(PASSWORD_VARIABLE):
            return "encrypted: the given password is wrong"
        return f"encrypted: give its password with --password or {PASSWORD_VARIABLE}"
    return _PDF_REASONS.get(code, "damaged: it cannot be opened")


@contextmanager
def _plain_reasons(otherwise: str) -> Iterator[None]:
    """Whatever a library raises for a broken file, which can be anything, becomes one plain reason; no warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (MemoryError, UnreadableDocumentError):
        raise
    except Image.DecompressionBombError as error:
        most = MAX_IMAGE_PIXELS // 10**6
        raise UnreadableDocumentError(f"more than {most} million pixels: make it smaller") from error
    except UnidentifiedImageError as error:
        raise UnreadableDocumentError("not an image that can be read") from error
    except Exception as error:
        raise UnreadableDocumentError(otherwise) from error


def _frames(image: Image.Image) -> int:
    """Pages of a TIFF, the last of which may be damaged; frames of other kinds are animations or a camera's copies."""
    if image.format != "TIFF":
        return 1
    for number in count():
        try:
            image.seek(number)
        except EOFError:
            return number
        except MemoryError:
            raise
        except Exception:
            return number + 1
    raise AssertionError


def _upright(image: Image.Image) -> Image.Image:
    """Turned as the camera was held; broken notes on that do not spoil the picture."""
    try:
        return ImageOps.exif_transpose(image)
    except MemoryError:
        raise
    except Exception:
        return image
