"""What a picture of a page says, read by RapidOCR: its wheel brings the weights, and nothing is downloaded."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    from PIL import Image

_log = logging.getLogger(__name__)
NEEDED = "reading pages without a text layer needs RapidOCR: pip install 'anchorfold[ocr]'."


def require_ocr() -> None:
    """Refuse if the library is not installed; it is not imported for that."""
    from importlib.util import find_spec

    if find_spec("rapidocr") is None or find_spec("onnxruntime") is None:
        raise AnchorFoldError(NEEDED)


class PictureReader:
    """Reads pictures; the library and its models are loaded with the first one. Safe for threads."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._lock = threading.Lock()

    def read(self, image: Image.Image) -> str:
        """The lines of an RGB picture, from top to bottom; empty if it has none, or none that can be read."""
        with self._lock:
            if self._engine is None:
                self._engine = _load()
            try:
                answer = self._engine(np.asarray(image)[:, :, ::-1])  # it wants blue first
            except Exception:  # whatever the library raises: a page is worth more than its text
                _log.warning("a page could not be read by OCR", exc_info=True)
                return ""
        return "\n".join(answer.txts or ())


def _load() -> Any:
    try:
        from rapidocr import RapidOCR
    except ImportError as error:
        raise AnchorFoldError(NEEDED) from error
    return RapidOCR(params={"Global.log_level": "critical"})
