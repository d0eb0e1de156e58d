"""Sample documents: a report with tables and a chart, slides, forms, infographics, a handbook and scans."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pypdfium2 as pdfium
from PIL import Image, ImageFilter

from anchorfold.demo import content
from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    from fpdf import FPDF

NAVY, TEAL, SAND, GREY = (24, 48, 84), (18, 122, 128), (236, 226, 205), (90, 90, 90)


def write_corpus(folder: str | Path) -> Path:
    """Write the sample documents; their content is deterministic."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    makers = {
        "annual-report.pdf": report, "wifi-slides.pdf": slides, "forms.pdf": forms,
        "infographics.pdf": infographics, "handbook.pdf": handbook,
    }  # fmt: skip
    for name, make in makers.items():
        make().output(str(folder / name))
    scans(folder / "scans.tiff")
    return folder


def write_evaluation(folder: str | Path) -> Path:
    """Write the sample documents and queries as an evaluation corpus: `pdfs/` and `queries.jsonl`."""
    folder = Path(folder)
    write_corpus(folder / "pdfs")
    lines = [
        json.dumps({"id": f"q{i}", "text": text, "relevant": [[name, page - 1]]})
        for i, (text, name, page) in enumerate(content.QUERIES)
    ]
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def new_document(orientation: str = "portrait", size: str | tuple[float, float] = "A4") -> FPDF:
    """Return an empty PDF without automatic page breaks."""
    try:
        from fpdf import FPDF
    except ImportError as error:
        raise AnchorFoldError("the sample documents require fpdf2: pip install 'anchorfold[demo]'.") from error
    pdf = FPDF(orientation=orientation, format=size, unit="mm")
    pdf.set_creation_date(datetime(2025, 3, 1, tzinfo=UTC))  # deterministic
    pdf.set_auto_page_break(False)
    pdf.set_margin(20)
    return pdf


def paragraph(pdf: FPDF, text: str, size: float, style: str = "", colour: tuple[int, int, int] = (0, 0, 0), family: str = "helvetica", gap: float = 4) -> None:  # fmt: skip  # noqa: E501
    """Write a paragraph at the cursor."""
    pdf.set_font(family, style, size)
    pdf.set_text_color(*colour)
    pdf.multi_cell(0, size * 0.5, text, align="L", new_x="LMARGIN", new_y="NEXT")
    pdf.ln(gap)


def report() -> FPDF:
    """Return an annual report: serif text, tables, a bar chart."""
    pdf = new_document()
    for number, (title, paragraphs, rows) in enumerate(content.REPORT, 1):
        pdf.add_page()
        paragraph(pdf, title, 30 if number == 1 else 20, "B", NAVY, gap=6)
        for body in paragraphs:
            paragraph(pdf, body, 12, family="times")
        if rows:
            ruled_table(pdf, rows)
        if "month" in title:
            bar_chart(pdf)
        pdf.set_y(-18)
        paragraph(pdf, f"Halden Ferries    {number}", 8, colour=GREY, gap=0)
    return pdf


def ruled_table(pdf: FPDF, rows: content.Table) -> None:
    """Draw a table with a dark header."""
    from fpdf.fonts import FontFace

    pdf.set_font("helvetica", size=11)
    pdf.set_text_color(0, 0, 0)
    head = FontFace(emphasis="BOLD", color=(255, 255, 255), fill_color=NAVY)
    with pdf.table(headings_style=head, line_height=8, cell_fill_color=(240, 243, 247), cell_fill_mode="ROWS") as table:
        for cells in rows:
            table.row(cells)


def bar_chart(pdf: FPDF) -> None:
    """Draw one bar per month."""
    values = (210, 222, 280, 331, 402, 540, 611, 588, 430, 322, 241, 260)
    months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    for i, (value, month) in enumerate(zip(values, months, strict=True)):
        x, height = 24 + i * 13.5, value / 6
        pdf.set_fill_color(*(TEAL if value > 500 else NAVY))
        pdf.rect(x, 190 - height, 9, height, "F")
        pdf.set_font("helvetica", "", 9)
        pdf.text(x + 1, 196, month)
        pdf.text(x + 1, 188 - height, str(value))


def slides() -> FPDF:
    """Return landscape slides; every other slide is white on dark."""
    pdf = new_document("landscape", (190.5, 338.7))
    for number, (title, points) in enumerate(content.SLIDES, 1):
        pdf.add_page()
        dark = number % 2 == 1
        if dark:
            pdf.set_fill_color(*NAVY)
            pdf.rect(0, 0, pdf.w, pdf.h, "F")
        pdf.set_y(28)
        paragraph(pdf, title, 34, "B", (255, 255, 255) if dark else TEAL, gap=10)
        for point in points:
            paragraph(pdf, f"-  {point}", 22, "", SAND if dark else (40, 40, 40), gap=5)
    return pdf


def forms() -> FPDF:
    """Return forms with labels and empty boxes."""
    pdf = new_document()
    for title, fields in content.FORMS:
        pdf.add_page()
        paragraph(pdf, title, 18, "B", gap=2)
        paragraph(pdf, "Please write in block letters and hand in at the crewing office.", 9, "I", GREY, gap=6)
        for field in fields:
            pdf.set_font("helvetica", "", 10)
            pdf.cell(60, 12, field)
            pdf.rect(pdf.get_x(), pdf.get_y() + 1, 105, 9)
            pdf.ln(15)
    return pdf


def infographics() -> FPDF:
    """Return infographics with large numbers in colored discs."""
    pdf = new_document()
    for title, facts in content.FACTS:
        pdf.add_page()
        pdf.set_fill_color(*SAND)
        pdf.rect(0, 0, pdf.w, pdf.h, "F")
        paragraph(pdf, title, 28, "B", NAVY, gap=8)
        for i, (number, label) in enumerate(facts):
            x, y = 28 + 85 * (i % 2), 60 + 105 * (i // 2)
            pdf.set_fill_color(*(TEAL if i % 3 == 0 else NAVY))
            pdf.ellipse(x, y, 70, 70, "F")
            pdf.set_text_color(255, 255, 255)
            pdf.set_font("helvetica", "B", 30 if len(number) < 7 else 22)
            pdf.set_xy(x, y + 20)
            pdf.cell(70, 16, number, align="C")
            pdf.set_font("helvetica", "", 12)
            pdf.set_xy(x, y + 38)
            pdf.cell(70, 8, label, align="C")
    return pdf


def handbook() -> FPDF:
    """Return a handbook with a narrow text column."""
    pdf = new_document(size=(148.0, 210.0))
    for number, (title, paragraphs) in enumerate(content.HANDBOOK, 1):
        pdf.add_page()
        paragraph(pdf, f"{number}. {title}", 15, "B", gap=4)
        for body in paragraphs:
            paragraph(pdf, body, 11, family="times")
    return pdf


def scans(path: Path) -> None:
    """Write typewritten pages as a multi-page TIFF: slightly rotated, blurred and noisy, as from a scanner."""
    pdf = new_document()
    for title, paragraphs in content.SCANS:
        pdf.add_page()
        paragraph(pdf, title.upper(), 16, "B", family="courier")
        for body in paragraphs:
            paragraph(pdf, body, 12, family="courier")
    noise, rng = np.random.default_rng(7), random.Random(7)
    frames = []
    with pdfium.PdfDocument(bytes(pdf.output())) as rendered:
        for page in rendered:
            image = page.render(scale=1.8, grayscale=True).to_pil()
            angle = rng.uniform(-0.8, 0.8)
            image = image.rotate(angle, Image.Resampling.BICUBIC, fillcolor=245).filter(ImageFilter.GaussianBlur(0.6))
            pixels = np.asarray(image, np.float32) * 0.93 + noise.normal(0, 6, (image.height, image.width))
            frames.append(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)))
    frames[0].save(path, save_all=True, append_images=frames[1:], compression="tiff_adobe_deflate")
