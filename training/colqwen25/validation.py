"""Validation: NDCG@5 on held-out pages, encoded, compressed and scored as in an index."""

from __future__ import annotations

from statistics import mean

import torch.distributed as dist
from torch import Tensor

from anchorfold.backbones.base import BackboneEncoder
from anchorfold.compressors import Compressor
from anchorfold.core.scoring import maxsim
from anchorfold.evaluation.metrics import ndcg_by_query
from training.colqwen25.pairs import Validation, open_page


def ndcg_at_5(
    retriever: BackboneEncoder, validation: Validation, compressor: Compressor | None, batch_size: int
) -> float:
    """Compute NDCG@5 from 0 to 1. Pages are divided among processes, and all processes return the result."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    names = list(validation.pages)
    share = names[rank::world]
    images = (open_page(validation.pages[name]) for name in share)
    vectors = dict(
        zip(
            share,
            (page.vectors for page in retriever.encode_documents(images, compressor, batch_size=batch_size)),
            strict=True,
        )
    )
    if world > 1:
        shares: list[dict[str, Tensor]] = [{} for _ in range(world)]
        dist.all_gather_object(shares, vectors)
        vectors = {name: page for part in shares for name, page in part.items()}
    queries = retriever.encode_queries([query.text for query in validation.queries], batch_size=batch_size)
    scores = maxsim(queries, [vectors[name] for name in names]).tolist()
    rankings = {
        query.id: dict(zip(names, row, strict=True)) for query, row in zip(validation.queries, scores, strict=True)
    }
    return mean(ndcg_by_query(rankings, validation.queries).values()) / 100
