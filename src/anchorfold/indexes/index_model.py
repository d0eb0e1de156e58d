"""The model of an index, loaded on first use."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anchorfold.backbones.encoder import load_query_encoder, select_stored
from anchorfold.errors import AnchorFoldError, MismatchError
from anchorfold.storage.index_settings import IndexSettings

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from anchorfold.backbones.encoder import Encoder, QueryEncoder
    from anchorfold.compressors import Compressor
    from anchorfold.ingestion.encoded_pages import EncodingJob


def load_model(name: str, options: dict[str, Any]) -> Encoder:
    """Call `anchorfold.load`, which is imported only when a model is needed."""
    from anchorfold.backbones.loading import load

    return load(name, **options)


class IndexModel:
    """Encoder of an index, loaded on first use and verified by fingerprint. Thread-safe.

    Args:
        location: folder or URL of the index, for messages.
        settings: settings of the index.
        model: an encoder, or a model name or path that overrides the stored one.
        load_options: options of `anchorfold.load`. The index supplies defaults only for `revision`, `bidirectional` and
            `merge_adapters`.
    """

    def __init__(
        self, location: str, settings: IndexSettings, model: str | Encoder | None, load_options: dict[str, Any]
    ) -> None:
        self.location, self.settings = location, settings
        self._override = model if isinstance(model, str) else None
        self._encoder = None if isinstance(model, str) else model
        self._query_encoder: QueryEncoder | None = None
        self._load_options = {k: v for k, v in load_options.items() if v is not None}
        self._lock = threading.Lock()
        if self._encoder is not None:
            self._require_same_weights(self._encoder)

    def for_settings(self, settings: IndexSettings) -> IndexModel:
        """Return the model of the same index with other settings; a loaded encoder is reused."""
        return IndexModel(self.location, settings, self._encoder or self._override, self._load_options)

    @property
    def encoder(self) -> Encoder:
        """The encoder, loaded on first use."""
        with self._lock:
            if self._encoder is None:
                self._encoder = self._load()
            return self._encoder

    def compressor(self) -> Compressor:
        """Return the compressor with the layer settings that are stored in the index."""
        from anchorfold.attention.layer_settings import LayerSettings
        from anchorfold.compressors import COMPRESSORS, BoundCompressor

        settings = self.settings
        layers = self.encoder.layer_settings if settings.layers is None else LayerSettings.from_dict(settings.layers)
        return BoundCompressor(COMPRESSORS[settings.method](**settings.options), layers)

    def encoding_job(self, batch_size: int | None) -> EncodingJob:
        """Return how pages are encoded, for workers that load the model themselves."""
        from anchorfold.ingestion.encoded_pages import EncodingJob

        return EncodingJob(self.location, self.settings, self._override, self._load_options, batch_size)

    def encode_queries(self, texts: Sequence[str]) -> Sequence[Tensor | np.ndarray]:
        """Encode queries with the loaded model, or else with its light query encoder if there is one."""
        with self._lock:
            if self._encoder is None and self._query_encoder is None and self._override is None:
                self._query_encoder = load_query_encoder(self.settings.model)
                if self._query_encoder is not None:
                    self._require_same_weights(self._query_encoder)
            light = self._query_encoder if self._encoder is None else None
        return (light or self.encoder).encode_queries(texts)

    def _load(self) -> Encoder:
        stored = select_stored(self.settings.load_options)
        if self._override is not None:
            stored.pop("revision", None)  # belongs to the stored model
        try:
            encoder = load_model(self._override or self.settings.model, {**stored, **self._load_options})
        except (OSError, ValueError) as error:
            if self._override is not None:
                raise
            revision = f", revision {stored['revision']}" if stored.get("revision") else ""
            raise AnchorFoldError(
                f"{self.location} was created with the model {self.settings.model}{revision}, which cannot be loaded: "
                f"{error} "
                "If it was moved, use --model on the command line or Index.open(path, encoder=...) in Python."
            ) from error
        self._require_same_weights(encoder)
        return encoder

    def _require_same_weights(self, model: QueryEncoder) -> None:
        if model.fingerprint != self.settings.fingerprint:
            raise MismatchError(
                f"{self.location} was created with another model ({self.settings.model}, fingerprint "
                f"{self.settings.fingerprint}; this one has {model.fingerprint}): load that one, or index again."
            )
