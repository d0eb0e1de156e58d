"""Index a folder of documents, search it, and see how small the index is.

python examples/search_a_folder.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

from anchorfold import AnchorFold, Index
from anchorfold.demo.sample_documents import slides


def sample_documents(folder: Path) -> Path:
    """A deck of slides; give a folder of yours instead."""
    folder.mkdir()
    slides().output(str(folder / "wifi-slides.pdf"))
    return folder


def main() -> None:
    with tempfile.TemporaryDirectory() as work:
        documents = Path(sys.argv[1]) if len(sys.argv) > 1 else sample_documents(Path(work) / "documents")
        index = Index.create(Path(work) / "my.index", compressor=AnchorFold(ratio=0.1))
        report = index.add(documents)
        print(f"{report.pages} pages, {report.full_vectors:,} vectors became {report.vectors:,}")

        for question in ("vendors for satellite and coastal 5G", "project budget"):
            hit = index.search(question, top_k=1)[0]
            print(f"{question!r}: {Path(hit.document).name}, page {hit.page}, score {hit.score:.3f}")

        # Only some documents: names, folders or patterns.
        print(f"{len(index.search('budget', documents='*.pdf'))} pages of PDFs match")
        info = index.info()
        print(f"{info.full_vectors / info.vectors:.1f} times fewer vectors than the full index, {info.bytes:,} bytes")


if __name__ == "__main__":
    main()
