"""The model of an index: loaded when it is first needed, and refused if its weights are others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorfold.backbones.load_options import select_stored
from anchorfold.backbones.query_encoders import load_query_encoder
from anchorfold.errors import AnchorFoldError, MismatchError
from anchorfold.index.store.settings import IndexSettings

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from anchorfold.backbones.encoder import PageEncoder, QueryEncoder
    from anchorfold.backbones.query_encoders import LightQueryEncoder
    from anchorfold.compressors import Compressor
    from anchorfold.index.source import Recipe


def load_model(name: str, options: dict[str, Any]) -> PageEncoder:
    """`anchorfold.load`, imported when a model is needed: counting and removing pages go without."""
    from anchorfold.backbones.loading import load

    return load(name, **options)


class IndexModel:
    """Finds and checks the encoder of an index. Safe for threads.

    Args:
        path: the index, for messages.
        settings: what it was made with.
        given: an encoder, or where the model is now; None for the place that the index remembers.
        load_options: for `anchorfold.load`. The index supplies defaults for `revision`, `bidirectional` and
            `merge_adapters` only.
    """

    def __init__(
        self, path: Path, settings: IndexSettings, given: str | PageEncoder | None, load_options: dict[str, Any]
    ) -> None:
        self.path, self.settings = path, settings
        self._place = given if isinstance(given, str) else None
        self._encoder = None if isinstance(given, str) else given
        self._query_encoder: LightQueryEncoder | None = None
        self._load_options = {k: v for k, v in load_options.items() if v is not None}
        self._lock = threading.Lock()
        if self._encoder is not None:
            self._require_same_weights(self._encoder)

    def for_settings(self, settings: IndexSettings) -> IndexModel:
        """The model of the same index after its settings changed; a loaded one is kept if its weights are the same."""
        given = self._encoder or self._place
        return IndexModel(self.path, settings, given, self._load_options)

    @property
    def encoder(self) -> PageEncoder:
        """The whole model."""
        with self._lock:
            if self._encoder is None:
                self._encoder = self._load()
            return self._encoder

    def compressor(self) -> Compressor:
        """The compressor that the index was made with, bound to the layers of that time."""
        from anchorfold.attention.layer_settings import LayerSettings
        from anchorfold.compressors import COMPRESSORS, Pinned

        settings = self.settings
        layers = self.encoder.settings if settings.layers is None else LayerSettings.from_dict(settings.layers)
        return Pinned(COMPRESSORS[settings.method](**settings.options), layers)

    def recipe(self, batch_size: int | None) -> Recipe:
        """How pages are made, for others who load the model themselves: it is not loaded here for that."""
        from anchorfold.index.source import Recipe

        return Recipe(str(self.path), self.settings, self._place, self._load_options, batch_size)

    def encode_queries(self, texts: Sequence[str]) -> Sequence[Tensor | np.ndarray]:
        """With the model if it is loaded; else with its light query side, where it has one."""
        with self._lock:
            if self._encoder is None and self._query_encoder is None and self._place is None:
                self._query_encoder = load_query_encoder(self.settings.model)
                if self._query_encoder is not None:
                    self._require_same_weights(self._query_encoder)
            light = self._query_encoder if self._encoder is None else None
        return (light or self.encoder).encode_queries(texts)

    def _load(self) -> PageEncoder:
        stored = select_stored(self.settings.load_options)
        if self._place is not None:
            stored.pop("revision", None)  # of the model's old place
        try:
            encoder = load_model(self._place or self.settings.model, {**stored, **self._load_options})
        except (OSError, ValueError) as error:
            if self._place is not None:
                raise
            revision = f", revision {stored['revision']}" if stored.get("revision") else ""
            raise AnchorFoldError(
                f"{self.path} was made with the model {self.settings.model}{revision}, which cannot be loaded: {error} "
                "If it is elsewhere now, say where: --model on the command line, Index.open(path, model=...) in Python."
            ) from error
        self._require_same_weights(encoder)
        return encoder

    def _require_same_weights(self, model: QueryEncoder | LightQueryEncoder) -> None:
        if model.fingerprint != self.settings.fingerprint:
            raise MismatchError(
                f"{self.path} was made with another model ({self.settings.model}, fingerprint "
                f"{self.settings.fingerprint}; this one has {model.fingerprint}): load that one, or index again."
            )
