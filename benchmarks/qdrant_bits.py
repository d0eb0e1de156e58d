"""Agreement of the first ten pages of quantized search with an exact one on Qdrant's engine, by bits and oversampling.

python -m benchmarks.qdrant_bits
"""

import warnings
from dataclasses import replace

import numpy as np
import torch

from anchorfold.databases import qdrant_search
from anchorfold.databases.qdrant_store import QdrantStore
from anchorfold.page import EncodedPage
from anchorfold.storage.hits import SearchRequest
from anchorfold.testing.store_contract import STORE_SETTINGS, A, page_keys, store_row
from tests.databases.qdrant_server import running
from tests.databases.test_qdrant_store import random_pages

PAGES, DIM, VECTORS, QUERIES = 600, 64, 12, 30


def main() -> None:
    warnings.simplefilter("ignore")
    pages, whole = random_pages(PAGES, DIM), torch.arange(VECTORS)
    for bits in (8, 4, 2, 1):
        with running() as (server, url):
            store = QdrantStore.create(url, replace(STORE_SETTINGS, dim=DIM, bits=bits, text=False))
            rows = []
            with store.writing():
                for number, vectors in enumerate(pages, 1):
                    page = EncodedPage(torch.from_numpy(vectors), whole, whole, torch.ones(VECTORS), None)
                    rows.append(replace(store_row(A, number, PAGES), encoded=page))
                store.append(rows)
            for shard in server.shards.values():
                shard.optimize()
            for factor in dict.fromkeys((1.0, qdrant_search.OVERSAMPLING[bits])):
                qdrant_search.OVERSAMPLING[bits] = factor
                print(f"{bits} bits, {factor:g}x: {agreement(store, pages):.1%}", flush=True)


def agreement(store: QdrantStore, pages: list[np.ndarray]) -> float:
    generator, shares = np.random.default_rng(1), []
    for number in range(QUERIES):
        query = pages[number * 7][:6] + 0.1 * generator.standard_normal((6, DIM)).astype(np.float32)
        exact, found = (
            set(page_keys(store.search_visual(SearchRequest(vectors=[query], exact=exact))[0]))
            for exact in (True, False)
        )
        shares.append(len(exact & found) / len(exact))
    return float(np.mean(shares))


if __name__ == "__main__":
    main()
