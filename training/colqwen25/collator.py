"""Convert rows to model inputs in the worker processes of the data loader."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from anchorfold.backbones.base import PromptedEncoder
from training.colqwen25.pairs import Row, digest, open_page, training_row

NO_PAGE = -1


class _Weightless(nn.Module):
    """Placeholder for the model on the CPU, in its precision, that is cheap to send to a worker process."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros((), dtype=dtype))
        self.dtype = dtype


class PairCollator:
    """Converts rows to `{queries, query_mask, pages, visual, keys, relevant}`, see `__call__`."""

    def __init__(self, retriever: PromptedEncoder) -> None:
        self.retriever = copy.copy(retriever)
        self.retriever.model = _Weightless(retriever.dtype)

    def __call__(self, rows: list[Row]) -> dict[str, Any]:
        """Prepare the model inputs of B queries and B pages.

        Returns:
            `queries` and `pages`: keyword arguments of the model; `query_mask (B, Q)`: query tokens that are scored;
            `visual (B, T)`: visual tokens; `keys (B,)`: identifiers of the pages; `relevant (B, R)`: keys of all
            relevant pages of each query, padded.
        """
        rows = [training_row(row) for row in rows]
        queries, query_mask = self.retriever.prepare_queries([row["query"] for row in rows])
        pages = self.retriever.prepare_pages([open_page(row["image"]) for row in rows])
        return {
            "queries": queries,
            "query_mask": query_mask.bool(),
            "pages": pages.inputs,
            "visual": pages.visual,
            "keys": torch.tensor([digest(row["page"]) for row in rows]),
            "relevant": _padded([[digest(page) for page in row["relevant"]] for row in rows]),
        }


def _padded(lists: list[list[int]]) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(keys) for keys in lists], batch_first=True, padding_value=NO_PAGE)
