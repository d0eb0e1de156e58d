"""DocPruner: keep the tokens with high attention from the page's global token."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import LastTextAttention
from anchorfold.compressors.base import Compressor, keep_tokens
from anchorfold.core.budget import check_budget
from anchorfold.core.fold import CompressedPage
from anchorfold.errors import InvalidArgumentError
from anchorfold.page import PageState


class DocPruner(Compressor):
    """Adaptive pruning: keep tokens whose final-layer global attention (z-score in the page) is above a threshold.

    The number of vectors differs between pages. To meet a global ratio, `calibrate` sets the threshold to the
    (1 - ratio) quantile of the z-scores of held-out pages (128 in the paper).

    Args:
        ratio: average share of vectors to keep over the calibration pages.
        threshold: z-score, if it is known already.

    Examples:
        >>> DocPruner(ratio=0.1).ready, DocPruner(threshold=1.5).ready
        (False, True)
    """

    name = "docpruner"
    title = "DocPruner"
    calibration_pages = 128  # as in the paper

    def __init__(self, ratio: float | None = None, *, threshold: float | None = None) -> None:
        if ratio is not None:
            check_budget(ratio)
        elif threshold is None:
            raise InvalidArgumentError("DocPruner requires a ratio to calibrate for, or a threshold.")
        self.ratio, self.threshold = ratio, threshold

    def signals(self, settings: LayerSettings) -> Sequence[LastTextAttention]:
        """Return the last layer's attention from the last text token."""
        return [LastTextAttention(settings.layers - 1)]

    @classmethod
    def with_budget(cls, ratio: float | None = None, cap: int | None = None) -> Self:
        """Create a compressor for a ratio, which holds on average; a cap is rejected."""
        if cap is not None:
            raise InvalidArgumentError(
                "DocPruner keeps a different number of vectors per page: give a ratio instead of a cap."
            )
        return cls(ratio)

    @property
    def ready(self) -> bool:
        """Whether the threshold is known."""
        return self.threshold is not None

    def calibrate(self, pages: Iterable[PageState], settings: LayerSettings) -> Self:
        """Set the threshold from held-out pages."""
        if self.ratio is None:
            raise InvalidArgumentError("cannot calibrate this DocPruner: it has no ratio.")
        scores = [standardise(page.mean_signal(self.signals(settings))) for page in pages]
        if not scores:
            raise InvalidArgumentError(
                f"DocPruner requires about {self.calibration_pages} held-out pages for calibration."
            )
        pooled = torch.cat(scores).double().cpu().numpy()
        self.threshold = float(np.quantile(pooled, 1 - self.ratio)) if self.ratio < 1 else -math.inf
        return self

    def compress(self, page: PageState, settings: LayerSettings) -> CompressedPage:
        """Prune; the highest-scoring token is always kept."""
        if self.threshold is None:
            raise InvalidArgumentError(
                f"DocPruner(ratio={self.ratio}) is not calibrated: call docpruner.calibrate_on(model, images) with "
                f"about {self.calibration_pages} held-out pages first."
            )
        if not len(page):
            return keep_tokens(page, torch.zeros(0, dtype=torch.long))
        scores = standardise(page.mean_signal(self.signals(settings)))
        selected = scores > self.threshold
        selected[scores.argmax()] = True
        return keep_tokens(page, selected.nonzero().flatten())


def standardise(scores: Tensor) -> Tensor:
    """Return z-scores within one page; zeros if all scores are equal."""
    deviation = scores.std(correction=0)
    return (scores - scores.mean()) / deviation if deviation > 0 else torch.zeros_like(scores)
