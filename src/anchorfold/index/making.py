"""A new index: its settings from a model, a compressor and the options of the store."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorfold.backbones.load_options import select_stored
from anchorfold.errors import AnchorFoldError, NotAnIndexError
from anchorfold.index.embedded import EmbeddedStore
from anchorfold.index.model import load_model
from anchorfold.index.options import as_stored, choose_compressor, require_same, require_usable
from anchorfold.index.store.folder import make_folder
from anchorfold.index.store.lock import writer_lock
from anchorfold.index.store.settings import IndexSettings

if TYPE_CHECKING:
    from anchorfold.backbones.encoder import PageEncoder
    from anchorfold.compressors import Compressor

CREATION_WAIT = 30.0  # seconds for somebody else who makes the same index


@dataclass(frozen=True)
class StoreOptions:
    """What a new index keeps: `bits` a number (16 if None), pictures of pages, where vectors come from, and text.

    With `ocr`, pages without a text layer are read.
    """

    bits: int | None = None
    thumbnails: bool = True
    provenance: bool = True
    text: bool = True
    ocr: bool = False


def make_index(
    folder: Path, model: str | PageEncoder, compressor: Compressor | None, options: StoreOptions,
    load_options: dict[str, Any],
) -> tuple[EmbeddedStore, PageEncoder]:  # fmt: skip
    """A store in a folder that is empty or does not exist, and the encoder."""
    compressor = compressor or choose_compressor()
    require_usable(compressor, options.bits)
    make_folder(folder)
    encoder = load_model(model, load_options) if isinstance(model, str) else model
    if obstacle := compressor.obstacle(encoder.settings):
        raise AnchorFoldError(obstacle)
    settings = IndexSettings(
        model=encoder.name, load_options=select_stored(encoder.load_options), fingerprint=encoder.fingerprint,
        dim=encoder.dim,
        method=compressor.name, options=as_stored(compressor.options), bits=options.bits or 16,
        thumbnails=options.thumbnails, provenance=options.provenance, layers=as_stored(asdict(encoder.settings)),
        text=options.text or options.ocr, ocr=options.ocr,
    )  # fmt: skip
    if compressor.signals(encoder.settings):
        encoder.warn_if_causal()
    with writer_lock(folder, CREATION_WAIT):
        # Somebody else may have made it while the model was loaded.
        store = opened(folder) or EmbeddedStore.create(folder, settings)
    require_same(store.settings, compressor, options.bits)
    return store, encoder


def opened(folder: Path) -> EmbeddedStore | None:
    """The store of a folder, or None if it holds none."""
    try:
        return EmbeddedStore.open(folder)
    except NotAnIndexError:
        return None
