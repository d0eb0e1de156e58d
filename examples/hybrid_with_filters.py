"""Set metadata of documents, and search them with filters in visual, text and hybrid mode.

python examples/hybrid_with_filters.py
"""

import tempfile
from pathlib import Path

from anchorfold import AnchorFold, Index
from anchorfold.demo.sample_documents import forms, slides

ABOUT = """path,department,year,public
documents,people,2024,false
wifi-slides.pdf,network,2025,true
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "documents"
        folder.mkdir()
        slides().output(str(folder / "wifi-slides.pdf"))
        forms().output(str(folder / "forms.pdf"))
        (Path(work) / "about.csv").write_text(ABOUT)

        index = Index.create(Path(work) / "my.index", compressor=AnchorFold(ratio=0.1))
        index.add(folder, metadata=Path(work) / "about.csv")
        for where in (None, "year >= 2025 and public", "department = 'people' and page <= 2"):
            hit = index.search("project budget", top_k=1, where=where)[0]
            known = ", ".join(f"{name} {hit.metadata[name]}" for name in ("department", "year", "public"))
            print(f"{where or 'all pages'}: {Path(hit.document).name}, page {hit.page} ({known})")

        # Hybrid search, the default, reports the visual and the text score of each page.
        hit = index.search("Telenor masts", top_k=1, where="year >= 2025")[0]
        print(f"hybrid: {Path(hit.document).name}, page {hit.page}, visual {hit.visual:.2f}, text {hit.text:.2f}")
        print(f"snippet: {hit.snippet}")

        # Nothing is encoded again for this.
        print(f"Updated metadata of {index.set_metadata({'year': 2026}, documents='*forms.pdf').documents} document")
        for facet in index.facets():
            print(f"{facet.column} ({facet.type}):", ", ".join(f"{value} {n}" for value, n in facet.values.items()))


if __name__ == "__main__":
    main()
