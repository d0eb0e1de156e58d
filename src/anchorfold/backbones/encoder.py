"""What an index needs of a model: a small protocol that a backbone, a test double or a remote service can satisfy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import Signal
from anchorfold.errors import AnchorFoldError
from anchorfold.page import EncodedPage, PageState

if TYPE_CHECKING:
    from anchorfold.backbones.query_words import ExplainedQuery
    from anchorfold.compressors import Compressor


class QueryEncoder(Protocol):
    """Enough for searching."""

    @property
    def fingerprint(self) -> str:
        """A digest of the weights: the same model has the same on every machine."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> list[Tensor]:
        """For each query its `(tokens, dim)` vectors in float32 on the CPU."""
        ...


class PageEncoder(QueryEncoder, Protocol):
    """Enough for indexing, searching and explaining.

    >>> model.name, model.dim, model.load_options
    ('nano', 128, {})
    """

    @property
    def name(self) -> str:
        """What `anchorfold.load` takes to load it again."""
        ...

    @property
    def load_options(self) -> Mapping[str, Any]:
        """Other options that `anchorfold.load` requires for that: `revision`, `bidirectional`, `merge_adapters`."""
        ...

    @property
    def dim(self) -> int:
        """The dimension of its vectors."""
        ...

    @property
    def settings(self) -> LayerSettings:
        """Which layers compressors listen to."""
        ...

    @property
    def page_pixels(self) -> int:
        """A page rendered larger than this gains nothing."""
        ...

    @property
    def default_batch(self) -> int:
        """Pages a forward pass if nobody says."""
        ...

    def encode_pages(
        self, images: Iterable[Any], compressor: Compressor | None = None, batch_size: int | None = None
    ) -> list[EncodedPage]:
        """Compressed pages in float32 on the CPU.

        Raises:
            ValueError, OSError: one of these pages cannot be encoded.
            BrokenModelError: the model cannot run.
        """
        ...

    def explain_query(self, text: str) -> ExplainedQuery:
        """A query's vectors, and which of its words each belongs to."""
        ...

    def warn_if_causal(self) -> None:
        """Warn where visual tokens cannot look ahead, which attention-based compressors assume."""
        ...


@runtime_checkable
class ComparableEncoder(PageEncoder, Protocol):
    """An encoder that shows a page before compression: several compressors can then be compared in one pass."""

    def page_states(
        self, images: Iterable[Any], signals: Iterable[Signal] = (), batch_size: int | None = None
    ) -> Iterator[PageState]:
        """Pages with their hidden states and the wanted signals."""
        ...

    def compress(self, state: PageState, compressor: Compressor) -> EncodedPage:
        """One of these pages, compressed."""
        ...


def require_comparable(encoder: PageEncoder) -> ComparableEncoder:
    """The same encoder, or one sentence on why its compressors cannot be compared."""
    if not isinstance(encoder, ComparableEncoder):
        raise AnchorFoldError(f"{encoder.name} does not show its pages before compression: methods cannot be compared.")
    return encoder
