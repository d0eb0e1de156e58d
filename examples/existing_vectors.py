"""Vectors from elsewhere, made smaller without encoding a page again.

python examples/existing_vectors.py

The same on the command line: anchorfold compress ./vectors -o small.index --ratio 0.1
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

from anchorfold import Index, SemanticClustering, compress_vectors
from anchorfold.vectors import compress_source, open_source


def main() -> None:
    generator = np.random.default_rng(0)
    # One file per page, as written on a rented GPU. Patches of a page are similar.
    words = generator.normal(size=(4, 64, 128)).repeat(16, axis=1)
    pages = list(words + 0.3 * generator.normal(size=(4, 1024, 128)))

    # In memory.
    small = compress_vectors(pages, SemanticClustering(ratio=0.1))
    print("in memory:", [f"{page.full} -> {len(page)}" for page in small])

    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "vectors" / "report.pdf"
        folder.mkdir(parents=True)
        for number, vectors in enumerate(pages, 1):
            np.save(folder / f"{number}.npy", vectors.astype("float16"))

        # From disk into an index: page by page, and where it stopped if it is interrupted.
        report = compress_source(open_source(str(folder.parent)), Path(work) / "small.index", SemanticClustering(0.1))
        index = Index.open(Path(work) / "small.index")
        print(f"in an index: {report.pages} pages, {report.full_vectors:,} vectors became {report.vectors:,}")
        query = torch.from_numpy(pages[2][:8]).float()
        hit = index.search_vectors([query], top_k=1)[0][0]
        print(f"eight vectors of page 3 find {hit.document}, page {hit.page}")


if __name__ == "__main__":
    main()
