import os

import pytest
from PIL import Image

from anchorfold import AnchorFold, Index
from anchorfold.demo.corpus import new_document, text


@pytest.fixture(scope="session")
def report_index(tmp_path_factory):
    """An index of a report of two pages, and of a picture without text."""
    folder = tmp_path_factory.mktemp("integrations")
    document = new_document()
    for title in ("Letter to our shareholders", "Net revenue by region"):
        document.add_page()
        text(document, title, 28)
    document.output(str(folder / "annual.pdf"))
    Image.new("RGB", (300, 400), "white").save(folder / "scan.png")
    before = os.getcwd()
    os.chdir(folder)
    try:
        index = Index.create(folder / "my.index", compressor=AnchorFold(ratio=0.2))
        index.add(["annual.pdf", "scan.png"])
    finally:
        os.chdir(before)
    return index
