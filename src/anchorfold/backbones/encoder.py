"""Protocols of encoders: what an index requires of a model. This module does not import torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from anchorfold._registry import Registry
from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from anchorfold.attention.layer_settings import LayerSettings
    from anchorfold.attention.signals import Signal
    from anchorfold.compressors import Compressor
    from anchorfold.page import EncodedPage, PageState

# Options of `anchorfold.load` that an index may store: they select the weights. All other options depend on the machine
# (`device`, `dtype`) or let a checkpoint execute code (`trust_remote_code`, `allow_pickle`); an index may come from an
# untrusted source, so only the caller can set them.
STORED_OPTIONS = {"revision": str, "bidirectional": bool, "merge_adapters": bool, "dim": int}


class QueryEncoder(Protocol):
    """An encoder of queries: sufficient for search."""

    @property
    def fingerprint(self) -> str:
        """Digest of the weights; the same model has the same fingerprint on every machine."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> Sequence[Tensor | np.ndarray]:
        """Return vectors `(tokens, dim)` of each query, in float32 on the CPU."""
        ...


class Encoder(QueryEncoder, Protocol):
    """An encoder of pages and queries: sufficient for indexing, search and explanations.

    Examples:
        >>> model.name, model.dim, model.load_options
        ('nano', 128, {})
    """

    @property
    def name(self) -> str:
        """Name or path that `anchorfold.load` accepts."""
        ...

    @property
    def load_options(self) -> Mapping[str, Any]:
        """Options that `anchorfold.load` requires besides the name, among those in `STORED_OPTIONS`."""
        ...

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        ...

    @property
    def layer_settings(self) -> LayerSettings:
        """Layers whose attention compressors read."""
        ...

    @property
    def page_pixels(self) -> int:
        """Number of pixels above which a page image is not worth rendering."""
        ...

    @property
    def default_batch_size(self) -> int:
        """Default number of pages per forward pass."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> list[Tensor]:
        """Return vectors `(tokens, dim)` of each query, in float32 on the CPU."""
        ...

    def encode_documents(
        self, images: Iterable[Any], compressor: Compressor | None = None, batch_size: int | None = None
    ) -> list[EncodedPage]:
        """Return compressed pages in float32 on the CPU.

        Raises:
            ValueError, OSError: one of the pages cannot be encoded.
            BrokenModelError: the model cannot run.
        """
        ...

    def explain_query(self, text: str) -> ExplainedQuery:
        """Return the vectors of a query and the word of each vector."""
        ...

    def warn_if_causal(self) -> None:
        """Warn if visual tokens cannot attend to later ones, as attention-based compressors assume they can."""
        ...


@runtime_checkable
class ComparableEncoder(Encoder, Protocol):
    """An encoder that returns pages before compression, to compare several compressors in one pass."""

    def page_states(
        self, images: Iterable[Any], signals: Iterable[Signal] = (), batch_size: int | None = None
    ) -> Iterator[PageState]:
        """Yield pages with their hidden states and signals."""
        ...

    def compress_page(self, state: PageState, compressor: Compressor) -> EncodedPage:
        """Compress one page."""
        ...


def require_comparable(encoder: Encoder) -> ComparableEncoder:
    """Return the encoder, or raise AnchorFoldError if compressors cannot be compared on it."""
    if not isinstance(encoder, ComparableEncoder):
        raise AnchorFoldError(f"cannot compare methods on {encoder.name}: it does not provide uncompressed pages.")
    return encoder


def select_stored(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the load options that may be stored in an index.

    Examples:
        >>> select_stored({"revision": "v1.3", "trust_remote_code": True})
        {'revision': 'v1.3'}
    """
    return {name: options[name] for name, kind in STORED_OPTIONS.items() if isinstance(options.get(name), kind)}


# Query encoders that require neither torch nor the rest of their model, by model name.
QUERY_ENCODERS: Registry[type[QueryEncoder]] = Registry(
    "anchorfold.query_encoders", "query encoder", {"nano": "anchorfold.backbones.nano.query:NanoQueryEncoder"}
)


def load_query_encoder(model: str) -> QueryEncoder | None:
    """Return the lightweight query encoder of a model, or None if it has none."""
    return QUERY_ENCODERS[model]() if model in QUERY_ENCODERS else None


@dataclass(frozen=True)
class ExplainedQuery:
    """Vectors `(T, d)` of a query, its words, and the word number of each vector (None for special tokens)."""

    vectors: Tensor
    words: list[str]
    labels: list[int | None]


def label_tokens(text: str, ids: Tensor, tokenizer: Any) -> tuple[list[str], list[int | None]]:
    """Return the words of a query, and the word number of each token of its prompt."""
    return label_pieces(text, [tokenizer.decode([i]) for i in ids.tolist()])


def label_pieces(text: str, pieces: Sequence[str]) -> tuple[list[str], list[int | None]]:
    """Return the words of a text, and the word number of each piece of a tokenised prompt that contains it."""
    words = text.split()
    owner = [number for number, word in enumerate(words) for _ in word]
    letters = "".join(words).casefold()
    # Tokenizers treat white space differently: compare without it.
    plain = ["".join(p.split()).replace("\u2581", "").casefold() for p in pieces]
    start = "".join(plain).rfind(letters)
    labels: list[int | None] = []
    position = 0
    for piece in plain:
        offset = position - start if start >= 0 else -1
        labels.append(owner[offset] if piece and 0 <= offset < len(owner) else None)
        position += len(piece)
    return words, labels
