"""PDF files, rendered by PDFium (pypdfium2)."""

from __future__ import annotations

import ctypes
import math
import os
import re
from collections.abc import Sequence
from contextlib import closing, suppress

import pypdfium2 as pdfium
from PIL import Image
from pypdfium2 import raw

from anchorfold.documents.formats import MAX_BOXES, MAX_SIDE, Box, DocumentReader, FileIdentity, damage_as
from anchorfold.errors import UnreadableDocumentError

MAX_SCALE = 4.0  # 288 dpi; small pages gain nothing from more
# An environment variable is inherited by the renderer process, and `ps` does not show it.
PASSWORD_VARIABLE = "ANCHORFOLD_PDF_PASSWORD"

_ENCRYPTED = 4
_REASONS = {
    2: "cannot be opened",
    3: "not a PDF, or damaged",
    5: "protected by an unsupported security scheme",
}


class PdfReader(DocumentReader):
    """Reader of PDF files."""

    def __init__(self, data: bytes, identity: FileIdentity, pixels: int) -> None:
        super().__init__(data, identity, pixels)
        if data.find(b"%PDF-", 0, 1024) < 0:
            raise UnreadableDocumentError("not a PDF, despite its extension")
        self._open_page: tuple[int, pdfium.PdfPage] | None = None
        try:
            self.pdf = _open_pdf(data)
        except pdfium.PdfiumError as error:
            raise UnreadableDocumentError(_reason(data, getattr(error, "err_code", 0) or 0)) from error
        with suppress(pdfium.PdfiumError):  # a damaged form is not drawn
            self.pdf.init_forms()
        if (claimed := len(self.pdf)) > len(data):
            self.pdf.close()
            raise UnreadableDocumentError(f"damaged: claims {claimed:,} pages in {len(data):,} bytes")

    def __len__(self) -> int:
        return len(self.pdf)

    def image(self, number: int) -> Image.Image:
        """Render a page with at most `pixels` pixels and its aspect ratio."""
        with damage_as("damaged page"):
            page = self._page(number)
            width, height = page.get_size()
            if not (0 < width < math.inf and 0 < height < math.inf):
                raise UnreadableDocumentError("page without a size")
            scale = min(MAX_SCALE, (self.pixels / (width * height)) ** 0.5, MAX_SIDE / max(width, height))
            image: Image.Image = page.render(scale=scale, may_draw_forms=True).to_pil().convert("RGB")
        return image

    def text(self, number: int) -> str:
        """Return the text layer of a page; empty if there is none or it is damaged."""
        try:
            with closing(self._page(number).get_textpage()) as layer:
                return str(layer.get_text_bounded())
        except MemoryError:
            raise
        except Exception:  # a page without text is better than no page
            return ""

    def word_boxes(self, number: int, words: Sequence[str]) -> list[Box]:
        """Return the positions of whole words, case-sensitive."""
        boxes: list[Box] = []
        with damage_as("damaged page"), closing(self._page(number).get_textpage()) as layer:
            for word in words:
                whole = word.isascii()  # scripts without spaces have no word boundaries
                with closing(layer.search(word, match_case=True, match_whole_word=whole)) as matches:
                    while (match := matches.get_next()) is not None and len(boxes) < MAX_BOXES:
                        for rectangle in range(layer.count_rects(*match)):
                            boxes.append(_page_fractions(self._page(number), layer.get_rect(rectangle)))
        return boxes[:MAX_BOXES]

    def metadata(self) -> dict[str, str]:
        """Return title and author of the information dictionary and the language of the catalogue."""
        length = raw.FPDFCatalog_GetLanguage(self.pdf, None, 0)
        buffer = (ctypes.c_ushort * (length // 2))()
        raw.FPDFCatalog_GetLanguage(self.pdf, buffer, length)
        language = bytes(buffer).decode("utf-16-le", "replace").rstrip("\0")
        value = self.pdf.get_metadata_value
        return {"title": value("Title"), "author": value("Author"), "language": language}

    def close(self) -> None:
        """Release the content of the file."""
        self._close_page()
        self.pdf.close()

    def _page(self, number: int) -> pdfium.PdfPage:
        """Load a page; it stays open for its text until another page is requested."""
        if self._open_page is None or self._open_page[0] != number:
            self._close_page()
            self._open_page = (number, self.pdf[number])
        return self._open_page[1]

    def _close_page(self) -> None:
        if self._open_page is not None:
            self._open_page[1].close()
            self._open_page = None


def _open_pdf(data: bytes) -> pdfium.PdfDocument:
    """Open a PDF; the password of the environment is used only if the file does not open without one.

    PDFium refuses a wrong password even for files whose password is empty.
    """
    try:
        return pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        password = os.environ.get(PASSWORD_VARIABLE)
        if not password or getattr(error, "err_code", 0) != _ENCRYPTED:
            raise
    return pdfium.PdfDocument(data, password=password)


def _reason(data: bytes, code: int) -> str:
    if re.search(rb"/Count\s+0\b", data) and not re.search(rb"/Type\s*/Page\b", data):
        return "no pages"
    if code != _ENCRYPTED or b"/Encrypt" not in data:  # PDFium may still report the error of the previous document
        return _REASONS.get(code, "damaged: cannot be opened")
    if os.environ.get(PASSWORD_VARIABLE):
        return "encrypted: wrong password"
    return f"encrypted: set its password with --password or {PASSWORD_VARIABLE}"


def _page_fractions(page: pdfium.PdfPage, rectangle: tuple[float, float, float, float]) -> Box:
    """Convert page coordinates to fractions of the rendered page, which may be cropped and rotated."""
    left, bottom, right, top = rectangle
    size, corners = 10_000, []
    for x, y in ((left, top), (right, bottom)):
        column, row = ctypes.c_int(), ctypes.c_int()
        raw.FPDF_PageToDevice(page, 0, 0, size, size, 0, x, y, column, row)
        corners.append((min(max(column.value / size, 0.0), 1.0), min(max(row.value / size, 0.0), 1.0)))
    (x0, y0), (x1, y1) = corners
    return min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)
