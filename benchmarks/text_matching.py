"""NDCG@5 of BM25 over text layers with and without a stemmer and stop words.

python -m benchmarks.text_matching ../shared/data/dev_debian ../shared/data/dev_azure
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pypdfium2 as pdfium

from anchorfold.storage.text_search import STOP_WORDS, cleaned

WORD = re.compile(r"[^\W_]+")
QUESTION_WORDS = {"can", "could", "do", "does", "how", "i", "my", "what", "when", "where", "which", "who", "why", "you"}
TOKENIZERS = {"Porter stemmer": "porter unicode61 remove_diacritics 2", "no stemmer": "unicode61 remove_diacritics 2"}
STOPS: dict[str, frozenset[str]] = {
    "all words": frozenset(),
    "stop words": STOP_WORDS,
    "and question words": STOP_WORDS | QUESTION_WORDS,
}


def read_corpus(folder: Path) -> tuple[list[tuple[str, int]], list[str], list[dict[str, Any]]]:
    """Return pages as (file, number from 0), their texts, and the queries of a corpus."""
    excluded = folder / "exclude_pages.json"
    left_out = json.loads(excluded.read_text()) if excluded.exists() else {}
    pages, texts = [], []
    for path in sorted((folder / "pdfs").glob("*.pdf")):
        for number, page in enumerate(pdfium.PdfDocument(path)):
            if number not in left_out.get(path.name, ()):
                pages.append((path.name, number))
                texts.append(cleaned(page.get_textpage().get_text_bounded()))
    return pages, texts, [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]


def ndcg(ranking: Sequence[tuple[str, int]], relevant: set[tuple[str, int]]) -> float:
    """Return NDCG@5 with binary relevance."""
    gain = sum(1 / math.log2(i + 2) for i, page in enumerate(ranking[:5]) if page in relevant)
    return gain / sum(1 / math.log2(i + 2) for i in range(min(5, len(relevant))))


def mean_ndcg(
    pages: Sequence[tuple[str, int]],
    queries: Sequence[dict[str, Any]],
    database: sqlite3.Connection,
    words: Callable[[str], list[str]],
) -> float:
    """Return the mean NDCG@5 in percent."""
    total = 0.0
    for query in queries:
        expression = " OR ".join(f'"{word}"' for word in words(query["text"]))
        rows = database.execute("SELECT rowid FROM t WHERE t MATCH ? ORDER BY bm25(t) LIMIT 5", (expression,))
        total += ndcg([pages[i] for (i,) in rows], {(file, page) for file, page in query["relevant"]})
    return 100 * total / len(queries)


def main() -> None:
    """Print one line per corpus, tokenizer and list of stop words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path, nargs="+")
    for folder in parser.parse_args().corpora:
        pages, texts, queries = read_corpus(folder)
        for title, tokenizer in TOKENIZERS.items():
            database = sqlite3.connect(":memory:")
            database.execute(f"CREATE VIRTUAL TABLE t USING fts5 (text, tokenize='{tokenizer}')")
            database.executemany("INSERT INTO t (rowid, text) VALUES (?, ?)", enumerate(texts))
            for name, stop in STOPS.items():

                def words(text: str, stop: frozenset[str] = stop) -> list[str]:
                    found = list(dict.fromkeys(word.lower() for word in WORD.findall(text)))
                    return [word for word in found if word not in stop] or found

                print(f"{folder.name}, {title}, {name}: {mean_ndcg(pages, queries, database, words):.1f}", flush=True)


if __name__ == "__main__":
    main()
