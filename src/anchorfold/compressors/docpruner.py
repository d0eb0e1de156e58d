"""DocPruner: keep the tokens that the page's global token attends to unusually much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import FromLastText
from anchorfold.budget import check_budget
from anchorfold.compressors.base import Compressor, keep
from anchorfold.fold import Folded
from anchorfold.page import PageState


class DocPruner(Compressor):
    """Adaptive pruning: tokens whose final-layer global attention lies above a threshold, in the page's own z-scores.

    The number of vectors differs from page to page. To meet a global ratio, `calibrate` sets one threshold:
    the (1 - ratio) quantile of the z-scores of held-out pages (128 in the paper).

    Args:
        ratio: the share of vectors to keep on average over the calibration pages.
        threshold: a z-score, if it is known already.

    >>> DocPruner(ratio=0.1).ready, DocPruner(threshold=1.5).ready
    (False, True)
    """

    name = "docpruner"
    title, colour, marker = "DocPruner", "#CC79A7", "v"
    calibration_pages = 128  # as in the paper

    def __init__(self, ratio: float | None = None, *, threshold: float | None = None) -> None:
        if ratio is not None:
            check_budget(ratio)
        elif threshold is None:
            raise ValueError("DocPruner needs a ratio to calibrate for, or a threshold.")
        self.ratio, self.threshold = ratio, threshold

    def signals(self, settings: LayerSettings) -> Sequence[FromLastText]:
        """The last layer's attention from the last text token."""
        return [FromLastText(settings.layers - 1)]

    @classmethod
    def with_budget(cls, ratio: float | None = None, cap: int | None = None) -> Self:
        """Only a ratio, which holds on average."""
        if cap is not None:
            raise ValueError("DocPruner keeps as many vectors as a page deserves: it takes a ratio, not a cap.")
        return cls(ratio)

    @property
    def ready(self) -> bool:
        """Whether its threshold is known."""
        return self.threshold is not None

    def calibrate(self, pages: Iterable[PageState], settings: LayerSettings) -> Self:
        """Set the threshold from held-out pages."""
        if self.ratio is None:
            raise ValueError("this DocPruner has no ratio to calibrate for: give it one.")
        scores = [standardise(page.mean_signal(self.signals(settings))) for page in pages]
        if not scores:
            raise ValueError(f"DocPruner needs held-out pages to calibrate on, about {self.calibration_pages}.")
        pooled = torch.cat(scores).double().cpu().numpy()
        self.threshold = float(np.quantile(pooled, 1 - self.ratio)) if self.ratio < 1 else -math.inf
        return self

    def compress(self, page: PageState, settings: LayerSettings) -> Folded:
        """Prune; a page never becomes empty: its strongest token stays."""
        if self.threshold is None:
            raise ValueError(
                f"DocPruner(ratio={self.ratio}) has no threshold yet: call docpruner.calibrate_on(model, images) with "
                f"about {self.calibration_pages} held-out pages first."
            )
        if not len(page):
            return keep(page, torch.zeros(0, dtype=torch.long))
        scores = standardise(page.mean_signal(self.signals(settings)))
        chosen = scores > self.threshold
        chosen[scores.argmax()] = True
        return keep(page, chosen.nonzero().flatten())


def standardise(scores: Tensor) -> Tensor:
    """z-scores within one page; zero where all scores are equal."""
    spread = scores.std(correction=0)
    return (scores - scores.mean()) / spread if spread > 0 else torch.zeros_like(scores)
