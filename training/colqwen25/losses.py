"""Contrastive losses on MaxSim scores: each query against the pages of the batch.

Shapes: B queries of at most Q vectors, C >= B pages of at most P vectors, d dimensions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from training.colqwen25.recipe import LossRecipe


def batch_scores(queries: Tensor, query_mask: Tensor, pages: Tensor, page_mask: Tensor) -> Tensor:
    """Compute MaxSim `(B, C)` of `queries (B, Q, d)` and `pages (C, P, d)` with masks of valid vectors."""
    similarity = torch.einsum("bqd,cpd->bcqp", queries, pages)
    best = similarity.masked_fill(~page_mask[None, :, None, :], float("-inf")).amax(-1)
    return (best * query_mask[:, None, :]).sum(-1)


def contrastive_loss(
    scores: Tensor, lengths: Tensor, answers: Tensor, known: Tensor | None, recipe: LossRecipe
) -> Tensor:
    """Compute the mean contrastive loss over queries.

    Args:
        scores: `(B, C)` MaxSim.
        lengths: `(B,)` number of vectors of each query.
        answers: `(B,)` index of the relevant page of each query.
        known: `(B, C)` further relevant pages, which are not used as negatives; None if unknown.
        recipe: Settings of the loss.
    """
    is_answer = F.one_hot(answers, scores.shape[1]).bool()
    if known is not None:
        scores = scores.masked_fill(known & ~is_answer, float("-inf"))
    if recipe.kind == "cross-entropy":
        return F.cross_entropy(scores / lengths[:, None] / recipe.temperature, answers)
    hardest = scores.masked_fill(is_answer, float("-inf")).amax(1)
    return F.softplus(hardest - scores[is_answer]).mean()
