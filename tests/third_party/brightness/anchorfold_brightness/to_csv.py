"""An export target of another package."""

import csv

from anchorfold.exporters import Exporter


def write(snapshot, target, progress=lambda pages: None):
    """A line for each page: its document, its number, its vectors as numbers."""
    pages = 0
    with open(target, "w", newline="") as file:
        lines = csv.writer(file)
        for page in snapshot.pages():
            lines.writerow([page.document, page.page, *page.vectors.flatten().tolist()])
            pages += 1
            progress(pages)
    return pages


EXPORTER = Exporter("csv", write)
