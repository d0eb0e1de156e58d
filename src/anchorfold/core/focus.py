"""Attention centrality of visual tokens: Recursive Attention Propagation over the visual attention graphs.

Shapes: H heads, T tokens in the sequence, N of them visual.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from anchorfold.core.numerics import require_finite, upcast


def visual_graph(attention: Tensor, visual: Tensor | Sequence[int]) -> Tensor:
    """Restrict attention to the visual tokens and normalise its rows.

    Args:
        attention: `(H, T, T)` post-softmax self-attention of one layer.
        visual: positions `(N,)` of the visual tokens, or a mask `(T,)`.

    Returns:
        `(H, N, N)` row-stochastic. A row without weight on any visual token becomes uniform.

    Examples:
        >>> attention = torch.tensor([[[0.2, 0.2, 0.6], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]])
        >>> visual_graph(attention, [0, 1])  # the third token is text
        tensor([[[0.5000, 0.5000],
                 [0.0000, 1.0000]]])
    """
    if attention.ndim != 3 or attention.shape[1] != attention.shape[2]:
        raise ValueError(f"attention must have the shape (heads, tokens, tokens), got {tuple(attention.shape)}.")
    require_finite("attention", attention)
    visual = torch.as_tensor(visual, device=attention.device)
    if visual.dtype == torch.bool:
        if visual.shape != attention.shape[1:2]:
            raise ValueError(f"the visual mask has {visual.numel()} entries for {attention.shape[1]} tokens.")
        visual = visual.nonzero().flatten()
    visual = visual.long()
    if visual.numel() and not (int(visual.min()) >= 0 and int(visual.max()) < attention.shape[1]):
        raise ValueError(f"visual positions must be between 0 and {attention.shape[1] - 1}.")
    graph = upcast(attention.index_select(1, visual).index_select(2, visual))
    mass = graph.sum(-1, keepdim=True)
    uniform = 1.0 / max(len(visual), 1)
    return torch.where(mass > 0, graph / mass.clamp(min=torch.finfo(graph.dtype).tiny), uniform)


def similarity_graph(embeddings: Tensor, temperature: float = 0.1) -> Tensor:
    """Return the softmax of the page's cosine similarities, a substitute for attention if only vectors are available.

    Args:
        embeddings: `(N, d_r)` L2-normalised.
        temperature: softmax temperature.

    Returns:
        `(1, N, N)` row-stochastic, in the shape of a graph with one head.
    """
    embeddings = upcast(embeddings)
    return (embeddings @ embeddings.T / temperature).softmax(-1)[None]


def propagate(graph: Tensor, steps: int = 6) -> Tensor:
    """Propagate a uniform distribution through the graph of each head.

    Args:
        graph: `(H, N, N)` row-stochastic.
        steps: number of propagation steps K.

    Returns:
        `(H, N)` distribution after K steps; each row sums to 1.

    Examples:
        >>> graph = torch.tensor([[[0.5, 0.5], [0.0, 1.0]]])
        >>> propagate(graph, steps=1), propagate(graph, steps=6)
        (tensor([[0.2500, 0.7500]]), tensor([[0.0078, 0.9922]]))
    """
    require_steps(steps)
    graph = upcast(graph)
    heads, n = graph.shape[:2]
    support = graph.new_full((heads, 1, n), 1.0 / max(n, 1))
    for _ in range(steps):
        support = torch.bmm(support, graph)
    return support[:, 0]


def layer_score(support: Tensor) -> Tensor:
    """Reduce propagated support `(H, N)` to one score per token `(N,)`: RMS over heads, divided by its mean.

    Examples:
        >>> layer_score(torch.tensor([[0.25, 0.75]]))
        tensor([0.5000, 1.5000])
    """
    score = upcast(support).square().mean(0).sqrt()
    return score / score.mean().clamp(min=torch.finfo(score.dtype).tiny)


def centrality(graphs: Iterable[Tensor], steps: int = 6) -> Tensor:
    """Compute propagated attention centrality over a window of layers.

    Args:
        graphs: one `(H, N, N)` row-stochastic graph per layer.
        steps: number of propagation steps K.

    Returns:
        `(N,)` mean of the layer scores; its mean is 1.

    Examples:
        >>> centrality([torch.tensor([[[0.5, 0.5], [0.0, 1.0]]])], steps=1)
        tensor([0.5000, 1.5000])
    """
    scores = [layer_score(propagate(graph, steps)) for graph in graphs]
    if not scores:
        raise ValueError("centrality requires the graph of at least one layer.")
    return torch.stack(scores).mean(0)


def require_steps(steps: int) -> None:
    """Raise ValueError unless the propagation depth is an integer of at least 1."""
    if isinstance(steps, bool) or int(steps) != steps or steps < 1:
        raise ValueError(f"steps must be an integer of at least 1, got {steps!r}.")
