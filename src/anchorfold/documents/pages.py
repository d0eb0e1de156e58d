"""Pages of one document as images: PDF by pypdfium2, images by Pillow."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pypdfium2 as pdfium
from PIL import Image, ImageOps, UnidentifiedImageError

from anchorfold.documents.content import FileIdentity, read_file
from anchorfold.documents.files import PDF
from anchorfold.errors import UnreadableDocumentError

# Backbones say what they want; this is enough for all (Nemotron's eight tiles of 512 x 512).
RENDER_PIXELS = 2_000_000
MAX_SCALE = 4.0  # 288 dots per inch: small cards and slides gain nothing from more
MAX_IMAGE_PIXELS = 200_000_000

_PDF_REASONS = {
    4: "encrypted: save a copy without a password",
    3: "not a PDF, or damaged",
    2: "cannot be opened",
    5: "protected by an unsupported security scheme",
}


class Pages(Protocol):
    """An open document."""

    identity: FileIdentity

    def __len__(self) -> int: ...

    def image(self, number: int) -> Image.Image:
        """Page `number`, from 0, in RGB."""
        ...


class PdfPages:
    """A PDF."""

    def __init__(self, pdf: pdfium.PdfDocument, identity: FileIdentity, pixels: int) -> None:
        self.pdf, self.identity, self.pixels = pdf, identity, pixels

    def __len__(self) -> int:
        return len(self.pdf)

    def image(self, number: int) -> Image.Image:
        """The rendered page, at most `pixels` large, its aspect ratio kept."""
        try:
            page = self.pdf[number]
            width, height = page.get_size()
            if not (width > 0 and height > 0):
                raise UnreadableDocumentError("a page without a size")
            scale = min(MAX_SCALE, (self.pixels / (width * height)) ** 0.5)
            image = page.render(scale=scale, may_draw_forms=True).to_pil().convert("RGB")
            page.close()
        except (pdfium.PdfiumError, ValueError, MemoryError) as error:
            raise UnreadableDocumentError(f"damaged ({error})") from error
        return image


class ImagePages:
    """An image file; TIFF may hold several pages."""

    def __init__(self, image: Image.Image, identity: FileIdentity, pixels: int) -> None:
        self.file, self.identity, self.pixels = image, identity, pixels

    def __len__(self) -> int:
        return getattr(self.file, "n_frames", 1)

    def image(self, number: int) -> Image.Image:
        """The frame the right way up, transparent parts white, at most `pixels` large."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.file.seek(number)
                _refuse_bombs(self.file)
                frame = ImageOps.exif_transpose(self.file)
                if frame.mode in ("RGBA", "LA", "PA") or "transparency" in frame.info:
                    frame = frame.convert("RGBA")
                    frame = Image.alpha_composite(Image.new("RGBA", frame.size, "white"), frame)
                if frame.mode.startswith("I;16") or frame.mode == "I":
                    frame = frame.point(lambda v: v / 256).convert("L")
                frame = frame.convert("RGB")
        except (OSError, ValueError, SyntaxError, EOFError, MemoryError) as error:
            raise UnreadableDocumentError(f"damaged image ({str(error) or type(error).__name__})") from error
        width, height = frame.size
        scale = (self.pixels / (width * height)) ** 0.5
        if scale < 1:
            size = (max(1, round(width * scale)), max(1, round(height * scale)))
            frame = frame.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
        return frame


def _refuse_bombs(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_IMAGE_PIXELS:
        raise UnreadableDocumentError(
            f"{width} x {height} pixels, more than {MAX_IMAGE_PIXELS // 10**6} million: make it smaller"
        )


@contextmanager
def open_pages(path: str | Path, pixels: int = RENDER_PIXELS) -> Iterator[Pages]:
    """A document's pages; raises UnreadableDocumentError with the reason if it has none."""
    data, identity = read_file(path)
    if not data:
        raise UnreadableDocumentError("empty file")
    pages: PdfPages | ImagePages
    if Path(path).suffix.lower() in PDF:
        pages = PdfPages(_open_pdf(data), identity, pixels)
    else:
        pages = ImagePages(_open_image(data), identity, pixels)
    try:
        if len(pages) == 0:
            raise UnreadableDocumentError("no pages")
        yield pages
    finally:
        (pages.pdf if isinstance(pages, PdfPages) else pages.file).close()


def _open_pdf(data: bytes) -> pdfium.PdfDocument:
    if data.find(b"%PDF-", 0, 1024) < 0:
        raise UnreadableDocumentError("not a PDF, whatever its name says")
    try:
        pdf = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        raise UnreadableDocumentError(_pdf_problem(data, getattr(error, "err_code", 0) or 0)) from error
    pdf.init_forms()
    return pdf


def _pdf_problem(data: bytes, code: int) -> str:
    if re.search(rb"/Count\s+0\b", data) and not re.search(rb"/Type\s*/Page\b", data):
        return "no pages"
    # The library may still report the error of the document before.
    if code == 4 and b"/Encrypt" not in data:
        code = 0
    return _PDF_REASONS.get(code, "damaged: it cannot be opened")


def _open_image(data: bytes) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            image = Image.open(io.BytesIO(data))
        except Image.DecompressionBombError as error:
            raise UnreadableDocumentError(f"too many pixels to be opened safely ({error})") from error
        except UnidentifiedImageError as error:
            raise UnreadableDocumentError("not an image that can be read") from error
        except (OSError, ValueError, SyntaxError) as error:
            raise UnreadableDocumentError(f"damaged image ({error})") from error
    _refuse_bombs(image)
    return image
