"""All queries of a corpus on the model's device: a page is scored against them the moment that it is compressed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

# Of one product: a processor's cache holds little, a GPU wants large ones.
PRODUCT_BYTES = {"cpu": 32 * 2**20}
LARGE_PRODUCT_BYTES = 512 * 2**20


class QueryScores:
    """MaxSim of fixed queries against any pages.

    Queries of one data set share words, and some models give a word one vector: each distinct one is multiplied once.

    Args:
        queries: one `(q_i, d)` tensor a query; a query without vectors scores 0.
        device: where pages will be.

    >>> scores = QueryScores([torch.eye(2), torch.ones(1, 2)])
    >>> scores([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5], [0.0, 1.0]])])
    tensor([[1.0000, 1.0000],
            [1.5000, 1.0000]])
    """

    def __init__(self, queries: Sequence[Tensor], device: torch.device | str = "cpu") -> None:
        lengths = torch.tensor([len(q) for q in queries])
        distinct, number = torch.cat(list(queries)).float().unique(dim=0, return_inverse=True)
        self.distinct = distinct.to(device)
        self.number = number.to(device)
        self.starts = (lengths.cumsum(0) - lengths).to(device)

    def __len__(self) -> int:
        return len(self.starts)

    @torch.no_grad()
    def __call__(self, pages: Sequence[Tensor]) -> Tensor:
        """`(pages, queries)` scores of pages `(m_i, d)`; minus infinity for a page without vectors.

        Vectors count as float16, which is what an index stores of them.
        """
        lengths = [len(p) for p in pages]
        vectors = torch.cat(list(pages)).half().float()
        best = vectors.new_full((len(self.distinct), len(pages)), -torch.inf)
        budget = PRODUCT_BYTES.get(vectors.device.type, LARGE_PRODUCT_BYTES)
        rows = max(1, budget // (4 * max(len(vectors), 1)))
        for start in range(0, len(self.distinct), rows):
            product = self.distinct[start : start + rows] @ vectors.T
            for page, part in enumerate(product.split(lengths, 1)):
                if part.shape[1]:
                    best[start : start + rows, page] = part.amax(1)
        return F.embedding_bag(self.number, best, self.starts, mode="sum").T
