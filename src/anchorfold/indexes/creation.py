"""Creation of an index, and checks that an existing one has the requested settings."""

from __future__ import annotations

import inspect
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from anchorfold.backbones.encoder import select_stored
from anchorfold.compressors import COMPRESSORS, AnchorFold, Compressor
from anchorfold.compressors.default import DefaultCompressor
from anchorfold.databases.urls import is_url
from anchorfold.errors import InvalidArgumentError, MismatchError
from anchorfold.indexes.index_model import load_model
from anchorfold.indexes.locations import Location, create_store, make_target
from anchorfold.quantization.codec import BITS
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.protocol import PageStore

if TYPE_CHECKING:
    from anchorfold.backbones.encoder import Encoder

_log = logging.getLogger(__name__)
DEFAULT_RATIO = 0.2  # near lossless


def choose_compressor(
    method: str | None = None, ratio: float | None = None, cap: int | None = None, graph: str | None = None
) -> Compressor:
    """Return a compressor by name and budget; the default of the model at ratio 0.2 if no name is given.

    Args:
        method: name of a compressor; "auto" or None for the default of the model.
        ratio: share of a page's vectors to keep.
        cap: maximum vectors per page.
        graph: visual attention graph of AnchorFold, or of another method that reads it.
    """
    if ratio is not None and cap is not None:
        raise InvalidArgumentError("ratio and cap exclude each other: give one of them.")
    if method in (None, DefaultCompressor.name):
        method = AnchorFold.name if graph else None
    compressor_type = COMPRESSORS[method] if method else DefaultCompressor
    try:
        if graph:
            if "graph" not in inspect.signature(compressor_type).parameters:
                raise InvalidArgumentError(f"{method} does not read an attention graph: leave the graph out.")
            options: dict[str, Any] = (
                {"cap": cap} if cap is not None else {"ratio": DEFAULT_RATIO if ratio is None else ratio}
            )
            return compressor_type(**options | {"graph": graph})
        if ratio is None and cap is None:
            try:
                return compressor_type.with_budget()
            except ValueError:  # a budget is required
                ratio = DEFAULT_RATIO
        return compressor_type.with_budget(ratio, cap)
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error


def create_index(
    location: Location, model: str | Encoder, compressor: Compressor | None, load_options: dict[str, Any],
    bits: int | None = None, thumbnails: bool = True, provenance: bool = True, text: bool = True, ocr: bool = False,
) -> tuple[PageStore, Encoder]:  # fmt: skip
    """Create a store where there is none; return it with the loaded encoder."""
    compressor = compressor or choose_compressor()
    if bits is not None and bits not in BITS:
        raise InvalidArgumentError(
            f"vectors cannot be stored in {bits} bits: choose one of {', '.join(map(str, BITS))}."
        )
    if not compressor.ready:
        raise InvalidArgumentError(
            f"{compressor.name} must be calibrated before it can index: call its calibrate_on() with about "
            f"{compressor.calibration_pages} held-out pages, or choose another method."
        )
    with removed_if_unused(location):
        make_target(location)
        encoder = load_model(model, load_options) if isinstance(model, str) else model
    requested = compressor
    if isinstance(compressor, DefaultCompressor):
        causal = getattr(encoder, "is_causal", False)
        compressor = compressor.for_model(getattr(encoder, "family", ""), causal)
        kind = "a causal" if causal else "a bidirectional"
        _log.info("%s is %s model: pages are compressed with %s", encoder.name, kind, compressor.name)
    if reason := compressor.unsupported_reason(encoder.layer_settings):
        raise InvalidArgumentError(reason)
    settings = IndexSettings(
        model=encoder.name, load_options=select_stored(encoder.load_options), fingerprint=encoder.fingerprint,
        dim=encoder.dim, method=compressor.name, options=_json_values(compressor.options), bits=bits or 16,
        thumbnails=thumbnails, provenance=provenance, layers=_json_values(asdict(encoder.layer_settings)),
        text=text or ocr, ocr=ocr,
    )  # fmt: skip
    if not all(signal.suits_causal for signal in compressor.signals(encoder.layer_settings)):
        encoder.warn_if_causal()
    store = create_store(location, settings)
    require_same(store.settings, requested, bits)
    return store, encoder


@contextmanager
def removed_if_unused(location: Location) -> Iterator[None]:
    """Remove a new folder if the block fails before anything is stored in it."""
    existed = is_url(location) or os.path.exists(location)
    try:
        yield
    except BaseException:
        if not existed:
            with suppress(OSError):
                os.rmdir(location)
        raise


def _json_values(options: dict[str, Any]) -> dict[str, Any]:
    """Convert tuples to lists as JSON does, so that stored and given options are comparable."""
    values: dict[str, Any] = json.loads(json.dumps(options))
    return values


def require_same(
    settings: IndexSettings, compressor: Compressor | None, bits: int | None, dim: int | None = None
) -> None:
    """Raise MismatchError if an index has another compressor, other bits or dimensions; None matches any value.

    The default compressor matches any method with its budget.
    """
    if dim is not None and dim != settings.dim:
        raise MismatchError(
            f"the index was created with vectors of {settings.dim} dimensions, not of {dim}: leave that option out, or "
            "choose another folder."
        )
    if isinstance(compressor, DefaultCompressor):
        if not _json_values(compressor.options).items() <= settings.options.items():
            raise MismatchError(
                f"the index was created with {settings.method} {settings.options}, not with {compressor.options}: "
                "leave these options out, or choose another folder."
            )
    elif compressor is not None:
        requested = (compressor.name, _json_values(compressor.options))
        if requested != (settings.method, settings.options):
            raise MismatchError(
                f"the index was created with {settings.method} {settings.options}, not with {requested[0]} "
                f"{requested[1]}: leave these options out, or choose another folder."
            )
    if bits is not None and bits != settings.bits:
        raise MismatchError(
            f"the index was created with {settings.bits} bits per vector component, not with {bits}: leave that option "
            "out, or choose another folder."
        )
