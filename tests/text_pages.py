"""PDFs for the number reader with an invisible text layer."""

from pathlib import Path

from fpdf.enums import TextMode

from anchorfold.demo.sample_documents import new_document
from tests.number_reader import page_image


def write_text_pdf(path: Path, pages: list[tuple[int, str]]) -> Path:
    """A page for each number and text."""
    pdf = new_document(size=(60, 60))
    pdf.set_font("helvetica", size=6)
    for number, text in pages:
        pdf.add_page()
        pdf.image(page_image(number), 0, 0, 60, 60)
        with pdf.local_context(text_mode=TextMode.INVISIBLE):
            pdf.set_xy(4, 10)
            pdf.multi_cell(50, 4, text)
    path.parent.mkdir(parents=True, exist_ok=True)
    pdf.output(str(path))
    return path
