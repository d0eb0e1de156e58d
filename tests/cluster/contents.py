"""What an index holds, for comparing two."""

from anchorfold.index.store.checking import check
from anchorfold.index.store.table import PageTable


def contents(index) -> dict:
    """Each live page by document and number: its bytes, and where they come from."""
    assert check(index.path) == []
    pages = {}
    for page in PageTable.open(index.path).pages():
        key = (page.document, page.page)
        assert key not in pages, f"{key} is stored twice"
        made_of = page.provenance if page.kept else {}
        arrays = {name: value if name == "grid" else value.tolist() for name, value in made_of.items()}
        details = page.details()
        pages[key] = (page.vectors.tobytes() if page.kept else b"", arrays, details)
    return pages
