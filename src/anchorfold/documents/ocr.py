"""Optical character recognition of page images with RapidOCR, whose package contains its models."""

from __future__ import annotations

import logging
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    from PIL import Image

_log = logging.getLogger(__name__)
OCR_REQUIRED = "OCR requires RapidOCR: pip install 'anchorfold[ocr]'."


def require_ocr() -> None:
    """Raise AnchorFoldError if RapidOCR is not installed, without importing it."""
    if find_spec("rapidocr") is None or find_spec("onnxruntime") is None:
        raise AnchorFoldError(OCR_REQUIRED)


class OcrEngine:
    """Text recognition. RapidOCR is loaded with the first image. Thread-safe."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._lock = threading.Lock()

    def read(self, image: Image.Image) -> str:
        """Return the lines of text in an RGB image from top to bottom; empty if none are recognised."""
        with self._lock:
            if self._engine is None:
                self._engine = _load()
            try:
                result = self._engine(np.asarray(image)[:, :, ::-1])  # RapidOCR expects BGR
            except Exception:  # a page without text is better than no page
                _log.warning("OCR of a page failed", exc_info=True)
                return ""
        return "\n".join(result.txts or ())


def _load() -> Any:
    try:
        from rapidocr import RapidOCR
    except ImportError as error:
        raise AnchorFoldError(OCR_REQUIRED) from error
    return RapidOCR(params={"Global.log_level": "critical"})
