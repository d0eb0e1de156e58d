"""Token-pooling module for sentence-transformers with the attention-free compressors.

    from sentence_transformers import MultiVectorEncoder
    from anchorfold import SemanticClustering
    from anchorfold.integrations.sentence_transformers import CompressorPooling

    encoder = MultiVectorEncoder("lightonai/GTE-ModernColBERT-v1")
    encoder.append(CompressorPooling(SemanticClustering(ratio=0.2)))
    encoder.save_pretrained("small-model")  # the saved model returns compressed documents
    MultiVectorEncoder("small-model", trust_remote_code=True)  # refers to a class of this package

It also works per call (`encode_document(..., token_pooling=...)`) and on existing embeddings (`.pool(...)`).
Use `anchorfold.attach` for compressors that read attention.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anchorfold.compressors import COMPRESSORS, Compressor
from anchorfold.core.fold import combine
from anchorfold.core.numerics import unit, upcast
from anchorfold.errors import AnchorFoldError, MissingExtraError
from anchorfold.vectors.compression import attention_missing, compress_hidden_states, needs_attention

try:
    from sentence_transformers.multi_vector_encoder.modules import BaseTokenPooling
except ImportError as error:
    raise MissingExtraError("sentence-transformers", "multivector", error) from None


class CompressorPooling(BaseTokenPooling):
    """Compresses the token embeddings of documents; queries are not changed.

    Gradients flow through the means of groups, not through the assignment of tokens.

    Args:
        compressor: attention-free compressor, such as `SemanticClustering(ratio=0.2)`, or its name.
        options: constructor arguments of a named compressor.
        tasks: tasks to compress; `["document"]` if None.
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
        """Compress embeddings `(N, d)` to `(m, d)`; the data type is kept."""
        page = compress_hidden_states(embedding.detach(), self.compression)
        members = page.groups >= 0
        tokens = upcast(embedding)[members]
        vectors = combine(tokens, page.weights[members].to(tokens), page.groups[members], len(page))
        return (unit(vectors) if self.compression.normalize else vectors).to(embedding.dtype)
