"""Losses of the page encoder: predict the word of a patch, localise words, and select anchors.

Shapes: p patches of a batch, w distinct words, n patches of one page, H heads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfold.core.fold import Projection, fold_onto, top_tokens

TEMPERATURE = 0.06
NEAR_BEST = 0.93  # share of the best gain from which patches count as equally good
SELECTION_SCALE = 0.3  # temperature of the selection loss, in units of log centrality
ABSENT_SIMILARITY = 0.4  # cosine that is allowed for words unlike any word on the page
HARD_WORDS = 400  # absent words per page that contribute: those with the highest scores
REPEAT_SIMILARITY = 0.8  # cosine from which a patch counts as a repetition of an anchor


def reading_loss(
    vectors: Tensor, words: Tensor, pairs: Tensor, shares: Tensor, squared: bool = True
) -> tuple[Tensor, Tensor]:
    """Classify patches by word.

    Args:
        vectors: `(p, 128)` unit vectors of patches.
        words: `(w, 128)` unit vectors of candidate words.
        pairs: `(k, 2)` patch and word numbers of the labels.
        shares: `(k,)` share of the patch that the word covers; the shares of a patch sum to 1.
        squared: Square the shares, so that the patch prefers the larger of two words of similar size.

    Returns:
        The cross-entropy plus a cosine distance, and the accuracy.
    """
    patches, row = pairs[:, 0].unique(return_inverse=True)
    target = torch.zeros(len(patches), len(words))
    target.index_put_((row, pairs[:, 1]), shares, accumulate=True)
    if squared:
        target = target.square() / target.square().sum(-1, keepdim=True)
    similarity = vectors[patches] @ words.T
    cross_entropy = -(target * (similarity / TEMPERATURE).log_softmax(-1)).sum(-1).mean()
    # The cosine distance provides a gradient at the start of training, when all logits are similar.
    distance = (target * (1 - similarity)).sum(-1).mean()
    correct = similarity.argmax(-1) == target.argmax(-1)
    return cross_entropy + 3 * distance, correct.float().mean()


def localization_loss(vectors: Tensor, words: Tensor, pairs: Tensor, shares: Tensor) -> Tensor:
    """Contrast the patches of each word with all other patches of the batch, including blank ones."""
    printed, column = pairs[:, 1].unique(return_inverse=True)
    log_shares = torch.full((len(printed), len(vectors)), float("-inf"))
    log_shares.index_put_((column, pairs[:, 0]), shares.clamp(min=1e-3).log())
    logits = words[printed] @ vectors.T / TEMPERATURE
    return (logits.logsumexp(-1) - (logits + log_shares).logsumexp(-1)).mean()


def absent_word_loss(vectors: Tensor, words: Tensor, present: Tensor) -> Tensor:
    """Penalise patches that match words which are not on the page.

    The best score of an absent word should not exceed its similarity to the nearest printed word, or
    `ABSENT_SIMILARITY` if that is larger. The highest-scoring absent words contribute.

    Args:
        vectors: `(n, 128)` unit vectors of all patches of a page, including background and graphics.
        words: `(w, 128)` unit vectors of printed and absent words.
        present: `(w,)` mask of printed words.
    """
    absent = words[~present]
    allowed = (absent @ words[present].T).amax(1).clamp(min=ABSENT_SIMILARITY)
    excess = ((absent @ vectors.T).amax(1) - allowed) / TEMPERATURE
    return F.softplus(excess).topk(min(HARD_WORDS, len(excess))).values.mean()


def background_loss(vectors: Tensor, words: Tensor) -> Tensor:
    """Penalise background patches `(n, 128)` that match any of the `words (w, 128)`."""
    if not len(vectors):
        return vectors.sum()
    return F.softplus(((vectors @ words.T).amax(1) - ABSENT_SIMILARITY) / TEMPERATURE).mean()


def compute_attention(query: Tensor, key: Tensor) -> Tensor:
    """Compute attention weights `(H, q, t)` of one page from `query (H, q, d)` and `key (H, t, d)`."""
    query, key = query.float(), key.float()
    return (query @ key.transpose(1, 2) * query.shape[-1] ** -0.5).softmax(-1)


def universal_saliency(query: Tensor, key: Tensor, patches: int) -> Tensor:
    """Compute the attention `(n,)` that patches receive from AGC's universal tokens.

    Args:
        query: `(H, u, d)` queries of the universal tokens.
        key: `(H, t, d)` keys of all tokens, patches last.
        patches: Number of patches n.
    """
    return compute_attention(query, key).mean((0, 1))[-patches:]


def select_anchors(vectors: Tensor, words: Tensor, values: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Select the anchors that cover the words of a page best, as the target of attention.

    Greedy selection: each patch is chosen for what it adds to the best matches of the words. Among patches with
    nearly the same gain, the first in reading order is chosen, because small differences between occurrences of a word
    are noise, while their order is visible to the model.

    Args:
        vectors: `(n, 128)` unit vectors of the printed patches in reading order.
        words: `(w, 128)` unit vectors of the distinct words.
        values: `(w,)` how likely a query contains each word.
        limit: Maximum number of anchors.

    Returns:
        `(k,)` anchors in the order of selection, k <= limit, and `(k,)` their gains.
    """
    similarity = (words @ vectors.T).clamp(min=0)
    best = torch.zeros(len(words))
    gain = values @ similarity
    anchors, gains = [], []
    for _ in range(min(limit, len(vectors))):
        patch = int((gain >= NEAR_BEST * gain.max()).int().argmax())
        if gain[patch] <= 1e-4:
            break
        anchors.append(patch)
        gains.append(float(gain[patch]))
        # Only words whose best match improves change the gains of other patches.
        raised = (similarity[:, patch] > best).nonzero().flatten()
        shown, level = similarity[raised], similarity[raised, patch]
        lost = (shown - best[raised, None]).clamp(min=0) - (shown - level[:, None]).clamp(min=0)
        gain -= values[raised] @ lost
        gain[patch] = 0
        best[raised] = level
    return torch.tensor(anchors, dtype=torch.long), torch.tensor(gains)


def centrality_loss(score: Tensor, anchors: Tensor, gains: Tensor) -> Tensor:
    """Compute the cross-entropy between the target anchors and the centrality `score (n,)`, which has mean 1.

    The weight of an anchor is the square root of its gain, so that anchors selected late still contribute.
    """
    target = gains.sqrt() / gains.sqrt().sum().clamp(min=1e-9)
    return -(target * (score[anchors] / len(score)).clamp(min=1e-9).log()).sum()


def selection_loss(score: Tensor, anchors: Tensor, sizes: list[int]) -> Tensor:
    """Compare the m most central patches with the first m anchors, for each m of `sizes`.

    Anchors should score above the m-th centrality and other patches below; both sides have the same weight.

    Args:
        score: `(n,)` centrality.
        anchors: `(k,)` target anchors in the order of selection.
        sizes: Numbers of anchors.
    """
    level = score.clamp(min=1e-9).log()
    losses = []
    for m in {min(m, len(anchors)) for m in sizes} - {0, len(score)}:
        selected = torch.zeros(len(score), dtype=torch.bool)
        selected[anchors[:m]] = True
        margin = (level - level.detach().topk(m).values[-1]) / SELECTION_SCALE
        losses.append(F.softplus(-margin[selected]).mean() + F.softplus(margin[~selected]).mean())
    return torch.stack(losses).mean() if losses else score.sum() * 0


def repeat_loss(graph: Tensor, vectors: Tensor, printed: Tensor, anchors: Tensor, gains: Tensor) -> Tensor:
    """Train patches that repeat an anchor to attend to it, so that centrality propagates to the anchor.

    Without this term all occurrences of a word are equally central, and a third of the anchors are repetitions.

    Args:
        graph: `(H, n, n)` attention among the patches, averaged over heads.
        vectors: `(n, 128)` unit vectors without gradient.
        printed: `(m,)` patches that show words.
        anchors: `(k,)` anchors as positions in `printed`.
        gains: `(k,)` their gains.
    """
    if not len(anchors):
        return graph.sum() * 0
    similarity, anchor = (vectors[printed] @ vectors[printed[anchors]].T).max(1)
    similarity[anchors] = 0
    rows = (similarity >= REPEAT_SIMILARITY).nonzero().flatten()
    if not len(rows):
        return graph.sum() * 0
    attended = graph[:, printed[rows], printed[anchors[anchor[rows]]]].mean(0)
    weight = gains.sqrt()[anchor[rows]]
    return -(weight * attended.clamp(min=1e-9).log()).sum() / weight.sum()


def fold_page(hidden: Tensor, score: Tensor, ratio: float, projection: Projection) -> Tensor:
    """Compress a page with AnchorFold to `(m, 128)`, differentiable in hidden states and fold weights."""
    vectors = F.normalize(projection(hidden), dim=-1)
    m = max(1, int(ratio * len(hidden)))
    return fold_onto(hidden, vectors, top_tokens(score.detach(), m), score, projection).vectors


def word_page_loss(pages: list[Tensor], words: Tensor, present: Tensor, weights: Tensor) -> Tensor:
    """Classify by MaxSim whether a page contains a word.

    Args:
        pages: `(m_i, 128)` unit vectors of each page.
        words: `(w, 128)` unit vectors.
        present: `(w, pages)` whether the word is on the page.
        weights: `(w, pages)` importance of the word on the page.
    """
    scores = torch.stack([(words @ page.T).amax(1) for page in pages], 1)
    logits = (scores - 0.45) / TEMPERATURE * 0.5
    loss = F.binary_cross_entropy_with_logits(logits, present.float(), reduction="none")
    # Real crops may have no word that a query contains: then the weights are all zero.
    return (loss * torch.where(present, weights, 0.15)).sum() / weights.sum().clamp(min=1)


def retention_loss(full: list[Tensor], small: list[Tensor], words: Tensor, present: Tensor, weights: Tensor) -> Tensor:
    """Compute the share of each word's best match that folding loses, weighted by `weights (w, pages)`."""
    losses = []
    for page, (before, after) in enumerate(zip(full, small, strict=True)):
        here = present[:, page]
        best = (words[here] @ before.T).amax(1).detach().clamp(min=0.3)
        share = (words[here] @ after.T).amax(1) / best
        value = weights[here, page]
        losses.append((value * (1 - share)).sum() / value.sum().clamp(min=1e-6))
    return torch.stack(losses).mean()
