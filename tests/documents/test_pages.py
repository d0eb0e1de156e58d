import numpy as np
import pypdfium2 as pdfium
import pytest
from fpdf import FPDF
from PIL import Image

from anchorfold.documents.pages import open_pages
from anchorfold.errors import UnreadableDocumentError
from tests.number_reader import page_image, read_number, write_pdf


def numbers(path):
    with open_pages(path) as pages:
        return [read_number(pages.image(i)) for i in range(len(pages))]


def problem(path):
    with pytest.raises(UnreadableDocumentError) as caught, open_pages(path) as pages:
        pages.image(0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_pdf(tmp_path):
    assert numbers(write_pdf(tmp_path / "a.pdf", [12, 345, 999])) == [12, 345, 999]


@pytest.mark.parametrize("kind", ["png", "webp", "tiff", "jpg"])
def test_images(tmp_path, kind):
    page_image(407).save(tmp_path / f"a.{kind}")
    assert numbers(tmp_path / f"a.{kind}") == [407]


def test_tiff_of_several_pages(tmp_path):
    page_image(1).save(tmp_path / "a.tiff", save_all=True, append_images=[page_image(22), page_image(333)])
    assert numbers(tmp_path / "a.tiff") == [1, 22, 333]


def test_pages_keep_their_shape_and_a_limit(tmp_path):
    Image.new("RGB", (4000, 1000)).save(tmp_path / "wide.png")
    with open_pages(tmp_path / "wide.png", pixels=100_000) as pages:
        width, height = pages.image(0).size
    assert width * height <= 101_000
    assert width / height == pytest.approx(4, rel=0.02)


def test_transparent_deep_and_turned_images(tmp_path):
    Image.new("RGBA", (40, 40), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    Image.fromarray(np.full((40, 40), 65535, np.uint16)).save(tmp_path / "deep.png")
    turned = Image.new("RGB", (60, 20), "white")
    turned.save(
        tmp_path / "turned.jpg",
        exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00",
    )
    for name in ("clear.png", "deep.png"):
        with open_pages(tmp_path / name) as pages:
            assert pages.image(0).getpixel((5, 5)) == (255, 255, 255), name
    with open_pages(tmp_path / "turned.jpg") as pages:
        assert pages.image(0).size == (20, 60)


def test_bad_files_are_one_line(tmp_path):
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
    assert "not an image" in problem(tmp_path / "text.jpg")
    assert "damaged" in problem(tmp_path / "half.png")
    assert problem(tmp_path / "missing.pdf") == "no such file or directory"


def test_a_decompression_bomb_is_refused_before_it_opens(tmp_path):
    Image.new("1", (30_000, 30_000)).save(tmp_path / "bomb.png")
    assert "pixels" in problem(tmp_path / "bomb.png")
    assert (tmp_path / "bomb.png").stat().st_size < 1_000_000
