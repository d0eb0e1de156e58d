"""An export target of another package."""

import csv
from itertools import pairwise

from anchorfold.index.store.schema import all_vectors_of

from anchorfold.index.export import Exporter


def write(table, target, progress=lambda pages: None):
    """A line for each page: its document, its number, its vectors as numbers."""
    pages = 0
    with open(target, "w", newline="") as file:
        lines = csv.writer(file)
        for batch in table.encoded_pages(["document", "page", "vectors", "scales"]):
            vectors, offsets = all_vectors_of(batch)
            for row, (start, end) in zip(
                batch.select(["document", "page"]).to_pylist(), pairwise(offsets), strict=True
            ):
                lines.writerow([row["document"], row["page"], *vectors[start:end].flatten().tolist()])
            pages += batch.num_rows
            progress(pages)
    return pages


EXPORTER = Exporter("csv", write)
