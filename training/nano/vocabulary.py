"""Count the words of the training pages, most frequent first.

    python -m training.nano.vocabulary DATA_FOLDER

Writes `vocabulary.tsv` (word, number of pages) to the data folder.
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path

from training.nano.corpus import load_page
from training.nano.labels import group_words


def count_pages(folder: Path) -> tuple[collections.Counter[str], collections.Counter[str], int]:
    """Count pages and documents per word, and pages in total."""
    pages: collections.Counter[str] = collections.Counter()
    documents: dict[str, set[str]] = collections.defaultdict(set)
    total = 0
    for path in sorted(folder.glob("*.npz")):
        _, symbols, boxes = load_page(path)
        words = sorted(set(group_words(symbols, boxes).texts))  # the order of ties does not change between processes
        pages.update(words)
        package = path.name.split("@")[0].rsplit("-", 1)[0]
        for word in words:
            documents[word].add(package)
        total += 1
    return pages, collections.Counter({w: len(d) for w, d in documents.items()}), total


def main() -> None:
    """Run the command line."""
    data = Path(sys.argv[1])
    pages, documents, total = count_pages(data / "pages" / "train")
    frequent = [(w, n) for w, n in pages.most_common() if documents[w] >= 3 and len(w) > 1 and not w.isdigit()]
    with open(data / "vocabulary.tsv", "w") as out:
        out.write(f"\t{total}\n")
        out.writelines(f"{w}\t{n}\n" for w, n in frequent)
    print(f"{total} pages, {len(frequent)} words")


def load_vocabulary(data: Path) -> tuple[list[str], list[int], int]:
    """Load words with their page counts, most frequent first, and the number of pages."""
    head, *lines = (data / "vocabulary.tsv").read_text().splitlines()
    words, counts = zip(*(line.split("\t") for line in lines), strict=True)
    return list(words), [int(c) for c in counts], int(head.strip())


if __name__ == "__main__":
    main()
