"""A token-pooling module for sentence-transformers: our attention-free compressors as a part of a model.

    from sentence_transformers import MultiVectorEncoder
    from anchorfold import SemanticClustering
    from anchorfold.integrations.sentence_transformers import CompressorPooling

    encoder = MultiVectorEncoder("lightonai/GTE-ModernColBERT-v1")
    encoder.append(CompressorPooling(SemanticClustering(ratio=0.2)))
    encoder.save_pretrained("small-model")  # whoever loads it gets small documents
    MultiVectorEncoder("small-model", trust_remote_code=True)  # it names a class of this package

It also works per call (`encode_document(..., token_pooling=...)`) and on embeddings that one has (`.pool(...)`).
Compressors that listen to attention do not fit here, where only vectors arrive: `anchorfold.attach` is for those.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anchorfold._numerics import unit, widen
from anchorfold.compressors import COMPRESSORS, Compressor
from anchorfold.errors import AnchorFoldError, MissingExtraError
from anchorfold.fold import combine
from anchorfold.vectors.given import attention_missing, compress, needs_attention

try:
    from sentence_transformers.multi_vector_encoder.modules import BaseTokenPooling
except ImportError as error:
    raise MissingExtraError("sentence-transformers", "multivector", error) from None


class CompressorPooling(BaseTokenPooling):
    """Each document's token embeddings as fewer; queries pass through.

    Gradients flow through the groups' means; which token goes where is decided without them.

    Args:
        compressor: one that needs vectors alone, such as `SemanticClustering(ratio=0.2)`; or its name, with `options`.
        options: what the compressor's constructor takes, if it is named.
        tasks: what is compressed; `["document"]` if None.
    """

    config_keys: list[str] = ["compressor", "options", "tasks"]  # noqa: RUF012

    def __init__(
        self,
        compressor: Compressor | str,
        options: dict[str, Any] | None = None,
        *,
        tasks: str | list[str] | None = None,
    ) -> None:
        super().__init__(tasks=tasks)
        chosen = COMPRESSORS[compressor](**(options or {})) if isinstance(compressor, str) else compressor
        if needs_attention(chosen):
            raise AnchorFoldError(f"{attention_missing(chosen.name)} anchorfold.attach(encoder, compressor) does that.")
        self.compression, self.compressor, self.options = chosen, chosen.name, chosen.options

    def pool_one(self, embedding: Tensor, **_: Any) -> Tensor:
        """`(N, d)` to `(m, d)`, L2-normalised, in the type that was given."""
        page = compress(embedding.detach(), self.compression)
        members = page.groups >= 0
        tokens = widen(embedding)[members]
        vectors = combine(tokens, page.weights[members].to(tokens), page.groups[members], len(page))
        return unit(vectors).to(embedding.dtype)
