"""What the page reader is asked: name your word, be found by it, and know which words matter.

Shapes: P patches of a batch, W distinct words, N patches of one page, H heads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfold.fold import Projection, fold_onto, top_tokens

TEMPERATURE = 0.06
NEARLY = 0.93  # patches that add this share of the most are as good as the best one
LEVEL_SCALE = 0.3  # of the logarithm of centrality: how sharply the selected part from the others
ABSENT_LEVEL = 0.4  # cosine that a word may reach on a page that does not print it, nor anything like it
HARDEST = 400  # absent words of a page that count: those that pretend most
ALIKE = 0.8  # cosine from which a patch repeats an anchor


def reading_loss(vectors: Tensor, words: Tensor, pairs: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Which word is this patch? Cross-entropy over all words given, and the share of right first answers.

    Args:
        vectors: `(P, 128)` unit vectors of patches.
        words: `(W, 128)` unit vectors of candidate words.
        pairs: `(k, 2)` patch and word numbers that belong together.
        shares: `(k,)` how much of the patch the word claims; a patch's shares sum to 1.
    """
    patches, row = pairs[:, 0].unique(return_inverse=True)
    target = torch.zeros(len(patches), len(words))
    target.index_put_((row, pairs[:, 1]), shares, accumulate=True)
    # Two words of nearly the same share would be nearly the same answer: squares make the patch decide for the larger.
    target = target.square() / target.square().sum(-1, keepdim=True)
    similarity = vectors[patches] @ words.T
    named = -(target * (similarity / TEMPERATURE).log_softmax(-1)).sum(-1).mean()
    # Plain closeness to the words' vectors gets learning off the ground, where all logits are still alike.
    close = (target * (1 - similarity)).sum(-1).mean()
    right = similarity.argmax(-1) == target.argmax(-1)
    return named + 3 * close, right.float().mean()


def finding_loss(vectors: Tensor, words: Tensor, pairs: Tensor, shares: Tensor) -> Tensor:
    """Where is this word? Its patches against all others of the batch, blank ones included."""
    printed, column = pairs[:, 1].unique(return_inverse=True)
    belongs = torch.full((len(printed), len(vectors)), float("-inf"))
    belongs.index_put_((column, pairs[:, 0]), shares.clamp(min=1e-3).log())
    logits = words[printed] @ vectors.T / TEMPERATURE
    # Patches that hold a little of the word are neither asked for nor held against it.
    return (logits.logsumexp(-1) - (logits + belongs).logsumexp(-1)).mean()


def pretence_loss(vectors: Tensor, words: Tensor, present: Tensor) -> Tensor:
    """Does a word that is not on the page find a patch that looks more like it than anything printed there does?

    A perfect reader's best score for an absent word is its likeness to the nearest printed one; a patch that scores
    more, and more than any patch should for a word that it does not show, pretends. The hardest words count.

    Args:
        vectors: `(N, 128)` unit vectors of all patches of a page, paper and ornament included.
        words: `(W, 128)` unit vectors of printed and absent words.
        present: `(W,)` which of them are printed.
    """
    absent = words[~present]
    allowed = (absent @ words[present].T).amax(1).clamp(min=ABSENT_LEVEL)
    beyond = ((absent @ vectors.T).amax(1) - allowed) / TEMPERATURE
    return F.softplus(beyond).topk(min(HARDEST, len(beyond))).values.mean()


def paper_loss(vectors: Tensor, words: Tensor) -> Tensor:
    """Do patches that show no word, `vectors (n, 128)`, stay away from all `words (W, 128)`?"""
    if not len(vectors):
        return vectors.sum()
    return F.softplus(((vectors @ words.T).amax(1) - ABSENT_LEVEL) / TEMPERATURE).mean()


def attention(query: Tensor, key: Tensor) -> Tensor:
    """Differentiable attention `(H, Q, T)` of one page in one layer, from `query (H, Q, d)` and `key (H, T, d)`."""
    query, key = query.float(), key.float()
    return (query @ key.transpose(1, 2) * query.shape[-1] ** -0.5).softmax(-1)


def universal_saliency(query: Tensor, key: Tensor, patches: int) -> Tensor:
    """Differentiable attention `(N,)` from AGC's tokens: `query (H, u, d)` theirs, `key (H, T, d)`, patches last."""
    return attention(query, key).mean((0, 1))[-patches:]


def cover_words(vectors: Tensor, words: Tensor, values: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The anchors that cover a page's words best: where attention should gather.

    Patches are chosen one by one, each for what it adds to the words' best matches so far. Of patches that add
    nearly as much the first in reading order is chosen: which of a word's mentions shows it best by a hair is
    noise, which one comes first can be seen.

    Args:
        vectors: `(N, 128)` unit vectors of the page's printed patches, in reading order.
        words: `(W, 128)` unit vectors of its distinct words.
        values: `(W,)` how much each word is likely to be asked for.
        most: how many anchors.

    Returns:
        `(k,)` anchors in the order they were chosen, k <= most, and `(k,)` what each added.
    """
    similarity = (words @ vectors.T).clamp(min=0)
    best = torch.zeros(len(words))
    gain = values @ similarity
    anchors, added = [], []
    for _ in range(min(most, len(vectors))):
        patch = int((gain >= NEARLY * gain.max()).int().argmax())
        if gain[patch] <= 1e-4:
            break
        anchors.append(patch)
        added.append(float(gain[patch]))
        # Only words that this patch shows better than those before change what the others would add.
        raised = (similarity[:, patch] > best).nonzero().flatten()
        shown, level = similarity[raised], similarity[raised, patch]
        lost = (shown - best[raised, None]).clamp(min=0) - (shown - level[:, None]).clamp(min=0)
        gain -= values[raised] @ lost
        gain[patch] = 0
        best[raised] = level
    return torch.tensor(anchors, dtype=torch.long), torch.tensor(added)


def centrality_loss(score: Tensor, anchors: Tensor, added: Tensor) -> Tensor:
    """Cross-entropy between where attention should gather and where it does, `score (N,)` with mean 1.

    An anchor `(k,)` counts by the square root of what it `added (k,)`: one that was chosen late still matters.
    """
    target = added.sqrt() / added.sqrt().sum().clamp(min=1e-9)
    return -(target * (score[anchors] / len(score)).clamp(min=1e-9).log()).sum()


def selection_loss(score: Tensor, anchors: Tensor, sizes: list[int]) -> Tensor:
    """Are the m most central patches `score (N,)` the first m `anchors (k,)`, for each of the `sizes`?

    Anchors should lie above the m-th score and the others below it; both sides count alike.
    """
    level = score.clamp(min=1e-9).log()
    losses = []
    for m in {min(m, len(anchors)) for m in sizes} - {0, len(score)}:
        above = torch.zeros(len(score), dtype=torch.bool)
        above[anchors[:m]] = True
        beyond = (level - level.detach().topk(m).values[-1]) / LEVEL_SCALE
        losses.append(F.softplus(-beyond[above]).mean() + F.softplus(beyond[~above]).mean())
    return torch.stack(losses).mean() if losses else score.sum() * 0


def repeat_loss(graph: Tensor, vectors: Tensor, printed: Tensor, anchors: Tensor, added: Tensor) -> Tensor:
    """Does a patch that repeats an anchor look at that anchor, so that centrality flows from the one to the other?

    Which mention of a word is to stand for all of them cannot be told from the word: unless the others are asked to
    point at it, all are equally central, and a third of the anchors are spent on repeats.

    Args:
        graph: `(H, N, N)` attention among the patches; some heads may do it.
        vectors: `(N, 128)` unit vectors, not to be moved by this.
        printed: `(n,)` the patches that show words.
        anchors, added: `(k,)` the anchors as positions in `printed`, and what each adds.
    """
    if not len(anchors):
        return graph.sum() * 0
    near, anchor = (vectors[printed] @ vectors[printed[anchors]].T).max(1)
    near[anchors] = 0
    rows = (near >= ALIKE).nonzero().flatten()
    if not len(rows):
        return graph.sum() * 0
    attended = graph[:, printed[rows], printed[anchors[anchor[rows]]]].mean(0)
    weight = added.sqrt()[anchor[rows]]
    return -(weight * attended.clamp(min=1e-9).log()).sum() / weight.sum()


def folded(hidden: Tensor, score: Tensor, ratio: float, projection: Projection) -> Tensor:
    """`(m, 128)` the page after focus and fold, differentiable in hidden states and weights."""
    vectors = F.normalize(projection(hidden), dim=-1)
    m = max(1, int(ratio * len(hidden)))
    return fold_onto(hidden, vectors, top_tokens(score.detach(), m), score, projection).vectors


def word_page_loss(pages: list[Tensor], words: Tensor, present: Tensor, weights: Tensor) -> Tensor:
    """Which page holds this word? For each word the pages that do against those that do not, on MaxSim.

    Args:
        pages: `(m_i, 128)` unit vectors of each page.
        words: `(W, 128)` unit vectors.
        present: `(W, pages)` whether the word is on the page.
        weights: `(W, pages)` how much the word matters there.
    """
    scores = torch.stack([(words @ page.T).amax(1) for page in pages], 1)
    logits = (scores - 0.45) / TEMPERATURE * 0.5
    loss = F.binary_cross_entropy_with_logits(logits, present.float(), reduction="none")
    return (loss * torch.where(present, weights, 0.15)).sum() / weights.sum().clamp(min=1e-6)


def retention_loss(full: list[Tensor], small: list[Tensor], words: Tensor, present: Tensor, weights: Tensor) -> Tensor:
    """How much of each word's best match is lost by folding, the words of each page weighed by `weights (W, pages)`."""
    losses = []
    for page, (before, after) in enumerate(zip(full, small, strict=True)):
        here = present[:, page]
        best = (words[here] @ before.T).amax(1).detach().clamp(min=0.3)
        share = (words[here] @ after.T).amax(1) / best
        value = weights[here, page]
        losses.append((value * (1 - share)).sum() / value.sum().clamp(min=1e-6))
    return torch.stack(losses).mean()
