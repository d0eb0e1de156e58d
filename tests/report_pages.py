"""A report of two pages, as small as a document can be that answers a question."""

from pathlib import Path

from anchorfold.demo.sample_documents import new_document, paragraph


def write_report(folder: Path) -> None:
    """`reports/annual.pdf` below a folder; its second page is on net revenue by region."""
    document = new_document()
    for title in ("Letter to our shareholders", "Net revenue by region"):
        document.add_page()
        paragraph(document, title, 28)
    (folder / "reports").mkdir()
    document.output(str(folder / "reports" / "annual.pdf"))
