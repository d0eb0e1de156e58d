import os
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import pypdfium2 as pdfium
import pytest
from fpdf import FPDF
from PIL import Image

from anchorfold.documents.formats import open_document
from anchorfold.documents.render_messages import max_pixels
from anchorfold.errors import UnreadableDocumentError
from tests.documents.malicious_files import raw_pdf
from tests.number_reader import page_image, read_number, write_pdf


def numbers(path):
    with open_document(path) as pages:
        return [read_number(pages.image(i)) for i in range(len(pages))]


def problem(path):
    with pytest.raises(UnreadableDocumentError) as caught, open_document(path) as pages:
        pages.image(0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_pdf_pages(tmp_path):
    assert numbers(write_pdf(tmp_path / "a.pdf", [12, 345, 999])) == [12, 345, 999]


@pytest.mark.parametrize("kind", ["png", "webp", "tiff", "jpg"])
def test_image_formats(tmp_path, kind):
    page_image(407).save(tmp_path / f"a.{kind}")
    assert numbers(tmp_path / f"a.{kind}") == [407]


def test_multi_page_tiff(tmp_path):
    page_image(1).save(tmp_path / "a.tiff", save_all=True, append_images=[page_image(22), page_image(333)])
    assert numbers(tmp_path / "a.tiff") == [1, 22, 333]


def write_encrypted(path, owner="owner", user="secret"):
    pdf = FPDF(unit="pt", format=(60, 60))
    pdf.add_page()
    pdf.image(page_image(407), 0, 0, 60, 60)
    pdf.set_encryption(owner_password=owner, user_password=user)
    pdf.output(str(path))
    return path


def test_encrypted_pdf_password_from_environment(tmp_path, monkeypatch):
    locked = write_encrypted(tmp_path / "locked.pdf")
    assert problem(locked) == "encrypted: set its password with --password or ANCHORFOLD_PDF_PASSWORD"
    monkeypatch.setenv("ANCHORFOLD_PDF_PASSWORD", "wrong")
    assert problem(locked) == "encrypted: wrong password"
    assert numbers(write_encrypted(tmp_path / "open.pdf", user="")) == [407]  # opens without a password
    monkeypatch.setenv("ANCHORFOLD_PDF_PASSWORD", "secret")
    assert numbers(locked) == [407]
    assert numbers(write_pdf(tmp_path / "plain.pdf", [12])) == [12]


def test_aspect_ratio_and_pixel_limit(tmp_path):
    Image.new("RGB", (4000, 1000)).save(tmp_path / "wide.png")
    with open_document(tmp_path / "wide.png", pixels=100_000) as pages:
        width, height = pages.image(0).size
    assert 95_000 <= width * height <= 101_000
    assert width / height == pytest.approx(4, rel=0.02)


def test_transparency_16_bit_and_exif_orientation(tmp_path):
    Image.new("RGBA", (40, 40), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    Image.fromarray(np.full((40, 40), 65535, np.uint16)).save(tmp_path / "deep.png")
    turned = Image.new("RGB", (60, 20), "white")
    turned.save(
        tmp_path / "turned.jpg",
        exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00",
    )
    for name in ("clear.png", "deep.png"):
        with open_document(tmp_path / name) as pages:
            assert pages.image(0).getpixel((5, 5)) == (255, 255, 255), name
    with open_document(tmp_path / "turned.jpg") as pages:
        assert pages.image(0).size == (20, 60)


def test_unreadable_files_have_short_reasons(tmp_path):
    good = write_pdf(tmp_path / "good.pdf", [1]).read_bytes()
    (tmp_path / "empty.pdf").write_bytes(b"")
    (tmp_path / "text.pdf").write_text("these are words")
    (tmp_path / "cut.pdf").write_bytes(good[:200])
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 40)
    (tmp_path / "text.jpg").write_text("no image")
    page_image(3).save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:90])
    locked = FPDF()
    locked.add_page()
    locked.set_encryption(owner_password="secret", user_password="secret")
    locked.output(str(tmp_path / "locked.pdf"))
    pdfium.PdfDocument.new().save(tmp_path / "nopages.pdf")
    assert problem(tmp_path / "empty.pdf") == "empty file"
    assert "not a PDF" in problem(tmp_path / "text.pdf")
    assert "damaged" in problem(tmp_path / "cut.pdf")
    assert "encrypted" in problem(tmp_path / "locked.pdf")
    assert problem(tmp_path / "nopages.pdf") == "no pages"
    assert "image" in problem(tmp_path / "broken.png")
    assert "not a supported image" in problem(tmp_path / "text.jpg")
    assert "damaged" in problem(tmp_path / "half.png")
    assert problem(tmp_path / "missing.pdf") == "no such file or directory"


def test_decompression_bomb(tmp_path):
    header = struct.pack(">IIBBBBB", 30_000, 30_000, 1, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(30_000 * 3_751), 1)), (b"IEND", b"")]
    data = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + data)
    assert problem(tmp_path / "bomb.png") == "more than 175 million pixels: reduce the image"
    assert (tmp_path / "bomb.png").stat().st_size < 1_000_000


REASONS = {
    "damaged image",
    "damaged page",
    "damaged: cannot be opened",
    "empty file",
    "no pages",
    "not a PDF, or damaged",
    "not a PDF, despite its extension",
    "not a supported image",
}


@pytest.mark.parametrize("kind", ["pdf", "png", "webp", "tiff", "jpg", "lzw.tiff"])
def test_truncated_files(tmp_path, kind):
    path = tmp_path / f"whole.{kind}"
    several: dict[str, Any] = {"save_all": True, "append_images": [page_image(22)]} if kind in ("pdf", "tiff") else {}
    page_image(7).save(path, **several, **({"compression": "tiff_lzw"} if kind == "lzw.tiff" else {}))
    whole, cut = path.read_bytes(), tmp_path / f"cut.{kind}"
    reasons = set()
    with warnings.catch_warnings(action="error"):
        for length in range(0, len(whole), max(1, len(whole) // 150)):
            cut.write_bytes(whole[:length])
            try:
                with open_document(cut) as pages:
                    for number in range(len(pages)):
                        assert pages.image(number).mode == "RGB"
            except UnreadableDocumentError as error:
                reasons.add(str(error))
    assert reasons <= REASONS
    assert len(reasons) > 1


def test_intact_pages_of_a_truncated_tiff(tmp_path):
    page_image(1).save(tmp_path / "a.tiff", save_all=True, append_images=[page_image(22), page_image(333)])
    whole = (tmp_path / "a.tiff").read_bytes()
    (tmp_path / "a.tiff").write_bytes(whole[: len(whole) * 5 // 6])
    with open_document(tmp_path / "a.tiff") as pages:
        assert [read_number(pages.image(n)) for n in range(2)] == [1, 22]
        assert len(pages) == 3
        with pytest.raises(UnreadableDocumentError, match="damaged image"):
            pages.image(2)


def test_pdf_claiming_more_pages_than_bytes(tmp_path):
    kids = b"<</Type/Pages/Kids[3 0 R]/Count 1000000>>"
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 60 60]>>"
    (tmp_path / "a.pdf").write_bytes(raw_pdf([b"<</Type/Catalog/Pages 2 0 R>>", kids, page]))
    assert "claims 1,000,000 pages" in problem(tmp_path / "a.pdf")


def page_of_shape(path, box):
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[%b]>>" % box.encode()
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>", page]
    path.write_bytes(raw_pdf(objects))
    with open_document(path, 40_000) as pages:
        return pages.image(0).size


@pytest.mark.parametrize("box", ["0 0 .001 1000000000", "0 0 1000000 .01", "0 0 3 4000", "0 0 0 0", "5 5 4 4"])
def test_extreme_page_shapes(tmp_path, box):
    width, height = page_of_shape(tmp_path / "a.pdf", box)
    assert width * height <= max_pixels(40_000)


def test_thin_image(tmp_path):
    Image.new("L", (1, 3_000_000)).save(tmp_path / "strip.png")
    with open_document(tmp_path / "strip.png", 40_000) as pages:
        assert pages.image(0).size == (1, 20_000)


def test_animation_is_one_page(tmp_path):
    page_image(12).save(tmp_path / "a.webp", save_all=True, append_images=[page_image(13), page_image(14)])
    assert numbers(tmp_path / "a.webp") == [12]


def test_other_pillow_formats_are_refused(tmp_path):
    page_image(1).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")  # Pillow would start Ghostscript
    assert problem(tmp_path / "a.png") == "not a supported image"


def test_damaged_exif(tmp_path):
    page_image(55).save(tmp_path / "a.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x09" + b"\xff" * 20)
    assert numbers(tmp_path / "a.jpg") == [55]


def test_named_pipes_and_folders(tmp_path):
    os.mkfifo(tmp_path / "a.pdf")
    (tmp_path / "b.pdf").mkdir()
    assert problem(tmp_path / "a.pdf") == "not a regular file"
    assert problem(tmp_path / "b.pdf") == "is a directory"
