"""Count queries that are reported as weak matches: with an answer, invented words, and questions about other subjects.

    python -m benchmarks.match_strength my.index --queries dev_azure/queries.jsonl --unrelated dev_debian/queries.jsonl

Queries are JSON lines with `text` and `relevant`; those whose documents are not in the index are left out. Unrelated
ones are questions to another corpus.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anchorfold import Index
from anchorfold.retrieval.match_strength import is_weak_match

INVENTED = (
    "xqzv blorf wibble", "asdf jkl qwer", "zzzzz", "lorem dolor flumph", "qwertyuiop", "blah blah blah",
    "foo bar baz quux", "hjkl vbnm", "aaaa bbbb cccc", "glorp snazzle frimp", "sdkfjh skdjfh", "xyzzy plugh",
    "1q2w3e4r", "mxyzptlk", "tralala hoppsasa",
)  # fmt: skip
UNRELATED = (
    "apple pie recipe with cinnamon and raisins", "who won the football world cup in 1998", "how do volcanoes form",
    "orbital period of jupiter moons", "best hiking boots for winter", "symptoms of measles in toddlers",
    "capital of Mongolia", "how to prune rose bushes", "Mozart piano sonata analysis",
    "photosynthesis in desert plants", "medieval castle architecture", "how to knit a sweater",
    "price of gold in 1980", "elephant migration routes", "quantum entanglement explained",
    "chess opening sicilian defence", "tattoo removal cost", "dinosaur fossils in Montana", "how to tune a guitar",
    "wedding dress alterations", "sushi rice vinegar ratio", "solar eclipse 2026 path", "bicycle tyre puncture repair",
    "kangaroo diet", "ancient Egyptian pharaohs", "yoga poses for back pain", "Shakespeare sonnet 18 meaning",
    "how deep is the Mariana trench", "vaccination schedule for puppies", "wine regions of Portugal",
)  # fmt: skip
SEED = 0


def read_queries(path: Path, count: int) -> list[dict[str, Any]]:
    """Return a random sample of queries in the language of the pages."""
    queries = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    queries = [query for query in queries if query.get("kind") != "crosslingual"]
    return random.Random(SEED).sample(queries, min(count, len(queries)))


def count_weak(index: Index, texts: Sequence[str]) -> str:
    """Return how many queries are weak matches, as `weak/all`."""
    vectors = index.encode_queries(texts)
    results = zip(texts, vectors, index.search(list(texts), 24), strict=True)
    return f"{sum(bool(is_weak_match(index.store, *result)) for result in results)}/{len(texts)}"


def main() -> None:
    """Print one line per kind of query."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("index", type=Path)
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument("--unrelated", type=Path, required=True)
    parser.add_argument("--count", type=int, default=400, help="Maximum number of queries of each kind.")
    options = parser.parse_args()
    index = Index.open(options.index)
    names = {os.path.basename(name) for name in index}
    answered = [
        query["text"]
        for query in read_queries(options.queries, 10**9)
        if names & {os.path.basename(file) for file, _ in query["relevant"]}
    ][: options.count]
    foreign = [query["text"] for query in read_queries(options.unrelated, options.count)]
    print(f"with an answer      {count_weak(index, answered)}")
    print(f"invented words      {count_weak(index, INVENTED)}")
    print(f"other subjects      {count_weak(index, UNRELATED)}")
    print(f"of another corpus   {count_weak(index, foreign)}")


if __name__ == "__main__":
    main()
