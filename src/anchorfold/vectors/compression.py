"""Compression of existing multi-vectors, or of hidden states with attention or centrality.

Shapes: N visual tokens in a sequence of T tokens, H heads, hidden dimension d, retrieval dimension d_r.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import InDegree, LastTextAttention, PropagatedAttention, Signal
from anchorfold.compressors import COMPRESSORS, Compressor, compressor_names
from anchorfold.core.focus import layer_score, propagate, visual_graph
from anchorfold.core.fold import Projection
from anchorfold.core.numerics import require_finite, upcast
from anchorfold.errors import AnchorFoldError
from anchorfold.page import EncodedPage, PageState, PatchGrid

Array = Tensor | np.ndarray
NO_LAYERS = LayerSettings(window=(0, 0), sap_window=(0, 0), layers=1, source="given")


def compress_vectors(pages: Iterable[Array], compressor: Compressor) -> list[EncodedPage]:
    """Compress pages of existing vectors with a method that needs no attention.

    Args:
        pages: one `(N, d_r)` array or tensor per page, of any length; L2-normalised here.
        compressor: for example `SemanticClustering(ratio=0.1)`. For methods that need attention, use
            `compress_hidden_states`.

    Returns:
        For each page `vectors (m, d_r)` in float32 (float64 if given), L2-normalised and in page order, with anchors,
        groups and weights.

    Examples:
        >>> import numpy as np
        >>> from anchorfold import SemanticClustering, compress_vectors
        >>> generator = np.random.default_rng(0)
        >>> pages = [generator.normal(size=(n, 128)).astype("float16") for n in (200, 256)]
        >>> [tuple(page.vectors.shape) for page in compress_vectors(pages, SemanticClustering(ratio=0.1))]
        [(20, 128), (26, 128)]
    """
    if needs_attention(compressor):
        raise AnchorFoldError(attention_missing(compressor.name))
    return [compress_hidden_states(page, compressor) for page in pages]


def compress_hidden_states(
    hidden: Array,
    compressor: Compressor,
    *,
    attention: Sequence[Array] | Mapping[int, Array] | None = None,
    visual: Array | Sequence[int] | None = None,
    centrality: Array | None = None,
    project: Projection | None = None,
    grid: PatchGrid | None = None,
) -> EncodedPage:
    """Compress one page from its hidden states and, if the compressor needs it, its attention.

    Args:
        hidden: `(N, d)` final hidden states of the visual tokens before the retrieval projection; or `(N, d_r)`
            vectors.
        compressor: for example `AnchorFold(ratio=0.1)`.
        attention: `(H, T, T)` post-softmax self-attention of each layer, in order; or by layer number if the compressor
            has its own `window`.
        visual: positions `(N,)` of the visual tokens in the sequence, or a mask `(T,)`; None if all tokens are visual.
        centrality: `(N,)` in place of `attention`, such as the result of `anchorfold.core.focus.centrality`.
        project: the retrieval projection `(k, d) -> (k, d_r)`; None if `hidden` is in retrieval space.
        grid: positions of the tokens on the page, for heatmaps.

    Returns:
        `vectors (m, d_r)`, L2-normalised and in page order, with anchors, groups and weights.

    Examples:
        >>> import torch
        >>> from anchorfold import AnchorFold, compress_hidden_states
        >>> hidden, projection = torch.randn(256, 512), torch.nn.Linear(512, 128)
        >>> attention = [torch.rand(8, 256, 256).softmax(-1) for layer in range(4)]
        >>> with torch.no_grad():
        ...     page = compress_hidden_states(hidden, AnchorFold(ratio=0.1), attention=attention, project=projection)
        >>> tuple(page.vectors.shape), page.full
        ((26, 128), 256)
    """
    states = as_tensor("hidden", hidden)
    if states.ndim != 2:
        raise ValueError(f"hidden must have the shape (tokens, dim), got {tuple(states.shape)}.")
    require_finite("hidden", states)
    by_layer = attention if isinstance(attention, Mapping) else dict(enumerate(attention or ()))
    layers = {int(layer): as_tensor("attention", values) for layer, values in by_layer.items()}
    settings = NO_LAYERS
    if layers:
        window = (min(layers), max(layers))
        settings = LayerSettings(window=window, sap_window=window, layers=window[1] + 1, source="given")
    signals = list(compressor.signals(settings))
    values: dict[Signal, Tensor] = {}
    if signals and centrality is not None:
        alpha = upcast(as_tensor("centrality", centrality)).to(states.device)
        if alpha.shape != states.shape[:1]:
            raise ValueError(f"centrality must have one value per token, got {alpha.numel()} for {len(states)} tokens.")
        values = dict.fromkeys(signals, alpha)
    elif signals and not layers:
        raise AnchorFoldError(attention_missing(compressor.name))
    elif signals:
        values = {signal: _compute_signal(signal, layers, visual, states) for signal in signals}
    page = PageState(states, project or (lambda hidden: hidden), values, grid)
    folded = compressor.compress(page, settings)
    return EncodedPage(folded.vectors, folded.anchors, folded.groups, folded.weights, grid)


def needs_attention(compressor: Compressor) -> bool:
    """Return whether a compressor needs attention besides vectors."""
    try:
        return bool(compressor.signals(NO_LAYERS))
    except AnchorFoldError:  # requires a model trained for it
        return True


def attention_free_methods() -> list[str]:
    """Return the names of the compressors that need only vectors."""
    names = []
    for name in compressor_names(training_free=True):
        kind = COMPRESSORS[name]
        try:
            compressor = kind.with_budget(0.5)
        except ValueError:  # has no budget
            compressor = kind.with_budget()
        if not needs_attention(compressor):
            names.append(name)
    return names


def attention_missing(method: str) -> str:
    """Return the error message for a method that needs attention."""
    return (
        f"{method} needs attention, which existing vectors do not contain: choose one of "
        f"{', '.join(attention_free_methods())}, or pass attention or centrality to "
        "anchorfold.compress_hidden_states, or index the documents with `anchorfold index`."
    )


def as_tensor(name: str, values: Any) -> Tensor:
    """Convert an array or tensor to a floating-point tensor; half precision is preserved."""
    if not isinstance(values, Tensor):
        array = np.asarray(values)
        if array.dtype.kind not in "fiu":
            raise ValueError(f"{name} must contain numbers, got {array.dtype}.")
        values = torch.from_numpy(array if array.flags.writeable and array.dtype.isnative else array.astype(np.float32))
    tensor: Tensor = values
    return tensor if tensor.dtype.is_floating_point else tensor.float()


def _compute_signal(
    signal: Signal, layers: Mapping[int, Tensor], visual: Array | Sequence[int] | None, states: Tensor
) -> Tensor:
    """Compute a signal `(N,)` as attention capture does."""
    if signal.layer not in layers:
        raise ValueError(
            f"the compressor needs attention of layer {signal.layer}, got layers "
            f"{', '.join(map(str, sorted(layers)))}: pass a mapping {{layer: attention}}."
        )
    attention = layers[signal.layer].to(states.device)
    if attention.ndim != 3 or attention.shape[1] != attention.shape[2]:
        raise ValueError(f"attention must have the shape (heads, tokens, tokens), got {tuple(attention.shape)}.")
    positions = torch.arange(attention.shape[1]) if visual is None else torch.as_tensor(visual)
    positions = positions.nonzero().flatten() if positions.dtype == torch.bool else positions.long()
    positions = positions.to(states.device)
    if len(positions) != len(states):
        raise ValueError(
            f"hidden has {len(states)} tokens and attention {len(positions)}: pass the visual positions (visual=...)."
        )
    match signal:
        case PropagatedAttention():
            return layer_score(propagate(visual_graph(attention, positions), signal.steps))
        case InDegree():
            return upcast(attention[:, positions][:, :, positions]).sum(1).mean(0)
        case LastTextAttention():
            text = torch.ones(attention.shape[1], dtype=torch.bool, device=states.device)
            text[positions] = False
            rows = text.nonzero().flatten()[-signal.tokens :]
            if not len(rows):
                raise ValueError(
                    "the compressor needs attention from text tokens: pass attention of the whole sequence."
                )
            return upcast(attention[:, rows][:, :, positions]).mean((0, 1))
