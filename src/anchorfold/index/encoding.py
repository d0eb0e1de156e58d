"""Rendered pages into compressed ones: in batches, and page by page where one is to blame.

Knows nothing of the store: what it gives back can be committed by somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anchorfold.backbones.encoder import PageEncoder
from anchorfold.compressors import Compressor
from anchorfold.errors import BrokenModelError
from anchorfold.page import EncodedPage

ALIKE_FAILURES = 3  # in a row: then it is the model, not the pages


class PageBatches:
    """Encodes images in batches.

    Args:
        model: the encoder.
        compressor: what makes pages smaller.
        batch_size: pages a forward pass.
    """

    def __init__(self, model: PageEncoder, compressor: Compressor, batch_size: int) -> None:
        self.model, self.compressor, self.batch_size = model, compressor, batch_size
        self._failures: list[str] = []

    def encode(
        self, images: Sequence[Any], names: Sequence[str], blame: Callable[[int, str], None]
    ) -> list[EncodedPage | None]:
        """The pages, None for those that cannot be encoded.

        Args:
            images: of the pages.
            names: what each is called in a message.
            blame: called with the number of a page that cannot be encoded, and why.

        Raises:
            BrokenModelError: the model cannot run, or several pages fail alike in a row.
        """
        return self._encoded(images, names, blame, 0)

    def _encoded(
        self, images: Sequence[Any], names: Sequence[str], blame: Callable[[int, str], None], first: int
    ) -> list[EncodedPage | None]:
        try:
            pages: list[EncodedPage | None] = list(self.model.encode_pages(images, self.compressor, self.batch_size))
        except (BrokenModelError, ValueError, OSError, RuntimeError) as error:
            if len(images) > 1:  # one page may be to blame, or too many at once
                return [
                    page
                    for i in range(len(images))
                    for page in self._encoded(images[i : i + 1], names[i : i + 1], blame, first + i)
                ]
            if isinstance(error, BrokenModelError):
                raise
            self._note_failure(str(error) or type(error).__name__, names[0])
            blame(first, f"cannot be encoded ({str(error) or type(error).__name__})")
            return [None]
        self._failures.clear()
        return pages

    def _note_failure(self, why: str, name: str) -> None:
        """Several pages that fail alike in a row are not to blame."""
        self._failures.append(why)
        if self._failures[-ALIKE_FAILURES:] == [why] * ALIKE_FAILURES:
            raise BrokenModelError(
                f"{ALIKE_FAILURES} pages in a row could not be encoded ({why}): stopped at {name}; mend the model or "
                "its settings and run again."
            )
