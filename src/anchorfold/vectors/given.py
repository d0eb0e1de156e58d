"""Compressors on what one already has: a page's vectors alone, or its hidden states with attention or centrality.

Shapes: N visual tokens of a sequence of T, H heads, d the hidden and d_r the retrieval dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorfold._numerics import require_finite, widen
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import FromLastText, InDegree, Propagated, Signal
from anchorfold.compressors import COMPRESSORS, Compressor, compressor_names
from anchorfold.errors import AnchorFoldError
from anchorfold.focus import layer_score, propagate, visual_graph
from anchorfold.fold import Projection
from anchorfold.page import EncodedPage, PageState, PatchGrid

Array = Tensor | np.ndarray
NO_LAYERS = LayerSettings(window=(0, 0), sap_window=(0, 0), layers=1, source="given")


def compress_vectors(pages: Iterable[Array], compressor: Compressor) -> list[EncodedPage]:
    """Pages that are vectors already, each compressed; for methods that need no attention.

    Args:
        pages: one `(N, d_r)` array or tensor a page, of any lengths; L2-normalised here.
        compressor: for example `SemanticClustering(ratio=0.1)`; for one that listens to attention see `compress`.

    Returns:
        For each page its `vectors (m, d_r)` in float32 (float64 stays), L2-normalised and in page order, with anchors,
        groups and weights.

    >>> import numpy as np
    >>> from anchorfold import SemanticClustering, compress_vectors
    >>> generator = np.random.default_rng(0)
    >>> pages = [generator.normal(size=(n, 128)).astype("float16") for n in (200, 256)]
    >>> [tuple(page.vectors.shape) for page in compress_vectors(pages, SemanticClustering(ratio=0.1))]
    [(20, 128), (26, 128)]
    """
    if needs_attention(compressor):
        raise AnchorFoldError(attention_missing(compressor.name))
    return [compress(page, compressor) for page in pages]


def compress(
    hidden: Array,
    compressor: Compressor,
    *,
    attention: Sequence[Array] | Mapping[int, Array] | None = None,
    visual: Array | Sequence[int] | None = None,
    centrality: Array | None = None,
    project: Projection | None = None,
    grid: PatchGrid | None = None,
) -> EncodedPage:
    """One page from its hidden states, and from what the compressor wants to know of its attention.

    Args:
        hidden: `(N, d)` the visual tokens' final hidden states before the retrieval projection; or `(N, d_r)` vectors.
        compressor: for example `AnchorFold(ratio=0.1)`.
        attention: `(H, T, T)` post-softmax self-attention of each layer to listen to, in order; or by layer number, if
            the compressor has a `window` of its own.
        visual: positions `(N,)` of the visual tokens in the sequence, or a mask `(T,)`; None if all tokens are visual.
        centrality: `(N,)` in place of `attention`: what the compressor would compute from it, such as
            `anchorfold.focus.centrality(...)`.
        project: the retrieval projection `(k, d) -> (k, d_r)`; None if `hidden` is in retrieval space.
        grid: where the tokens lie on the page, for heatmaps.

    Returns:
        The page as `vectors (m, d_r)`, L2-normalised and in page order, with anchors, groups and weights.

    >>> import torch
    >>> from anchorfold import AnchorFold, compress
    >>> hidden, projection = torch.randn(256, 512), torch.nn.Linear(512, 128)
    >>> attention = [torch.rand(8, 256, 256).softmax(-1) for layer in range(4)]
    >>> with torch.no_grad():
    ...     page = compress(hidden, AnchorFold(ratio=0.1), attention=attention, project=projection)
    >>> tuple(page.vectors.shape), page.full
    ((26, 128), 256)
    """
    states = as_tensor("hidden", hidden)
    if states.ndim != 2:
        raise ValueError(f"a page must have the shape (tokens, dim), got {tuple(states.shape)}.")
    require_finite("hidden", states)
    layers = {} if attention is None else _layers(attention)
    settings = _layer_settings(layers)
    signals = list(compressor.signals(settings))
    values: dict[Signal, Tensor] = {}
    if signals and centrality is not None:
        alpha = widen(as_tensor("centrality", centrality)).to(states.device)
        if alpha.shape != states.shape[:1]:
            raise ValueError(f"{len(states)} tokens have {alpha.numel()} values of centrality: there must be one each.")
        values = dict.fromkeys(signals, alpha)
    elif signals and not layers:
        raise AnchorFoldError(attention_missing(compressor.name))
    elif signals:
        values = {signal: _measured(signal, layers, visual, states) for signal in signals}
    page = PageState(states, project or _as_it_is, values, grid)
    folded = compressor.compress(page, settings)
    return EncodedPage(folded.vectors, folded.anchors, folded.groups, folded.weights, grid)


def needs_attention(compressor: Compressor) -> bool:
    """Whether vectors alone are not enough for a compressor."""
    try:
        return bool(compressor.signals(NO_LAYERS))
    except AnchorFoldError:  # it wants a model that was trained for it
        return True


def attention_free_methods() -> list[str]:
    """The names of the compressors that need vectors alone."""
    names = []
    for name in compressor_names(training_free=True):
        kind = COMPRESSORS[name]
        try:
            compressor = kind.with_budget(0.5)
        except ValueError:  # it takes no budget
            compressor = kind.with_budget()
        if not needs_attention(compressor):
            names.append(name)
    return names


def attention_missing(method: str) -> str:
    """Why a method cannot compress vectors alone, and what can."""
    return (
        f"{method} listens to the attention of the model while it reads a page, and vectors alone do not tell it: "
        f"choose one of {', '.join(attention_free_methods())}; or give attention or centrality to anchorfold.compress, "
        "or index the documents anew with `anchorfold index`."
    )


def as_tensor(name: str, values: Any) -> Tensor:
    """An array or tensor as a tensor of floats; half precision stays as it is."""
    if not isinstance(values, Tensor):
        array = np.asarray(values)
        if array.dtype.kind not in "fiu":
            raise ValueError(f"{name} must hold numbers, got the type {array.dtype}.")
        values = torch.from_numpy(array if array.flags.writeable and array.dtype.isnative else array.astype(np.float32))
    tensor: Tensor = values
    return tensor if tensor.dtype.is_floating_point else tensor.float()


def _as_it_is(hidden: Tensor) -> Tensor:
    return hidden


def _layers(attention: Sequence[Array] | Mapping[int, Array]) -> dict[int, Tensor]:
    by_layer = attention if isinstance(attention, Mapping) else dict(enumerate(attention))
    return {int(layer): as_tensor("attention", values) for layer, values in by_layer.items()}


def _layer_settings(layers: Mapping[int, Tensor]) -> LayerSettings:
    if not layers:
        return NO_LAYERS
    window = (min(layers), max(layers))
    return LayerSettings(window=window, sap_window=window, layers=window[1] + 1, source="given")


def _measured(
    signal: Signal, layers: Mapping[int, Tensor], visual: Array | Sequence[int] | None, states: Tensor
) -> Tensor:
    """`(N,)` one signal, as the attention tap would have measured it."""
    if signal.layer not in layers:
        raise ValueError(
            f"the compressor listens to layer {signal.layer}, and attention is given for the layers "
            f"{', '.join(map(str, sorted(layers)))}: give it by layer number, {{layer: attention}}."
        )
    attention = layers[signal.layer].to(states.device)
    if attention.ndim != 3 or attention.shape[1] != attention.shape[2]:
        raise ValueError(f"attention must have the shape (heads, tokens, tokens), got {tuple(attention.shape)}.")
    positions = torch.arange(attention.shape[1]) if visual is None else torch.as_tensor(visual)
    positions = positions.nonzero().flatten() if positions.dtype == torch.bool else positions.long()
    positions = positions.to(states.device)
    if len(positions) != len(states):
        raise ValueError(
            f"hidden has {len(states)} tokens and attention is of {len(positions)}: say which are visual (visual=...)."
        )
    match signal:
        case Propagated():
            return layer_score(propagate(visual_graph(attention, positions), signal.steps))
        case InDegree():
            return widen(attention[:, positions][:, :, positions]).sum(1).mean(0)
        case FromLastText():
            text = torch.ones(attention.shape[1], dtype=torch.bool, device=states.device)
            text[positions] = False
            rows = text.nonzero().flatten()[-signal.tokens :]
            if not len(rows):
                raise ValueError("this compressor listens to text tokens: give attention of the whole sequence.")
            return widen(attention[:, rows][:, :, positions]).mean((0, 1))
