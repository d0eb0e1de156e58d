"""A compressor of another package."""

import torch

from anchorfold.compressors import BudgetCompressor, keep


class EveryOther(BudgetCompressor):
    """Tokens at equal distances."""

    name, title, colour = "every-other", "Every other", "#8844aa"

    def reduce(self, page, m, settings):
        """Keep m of them."""
        return keep(page, torch.arange(m) * len(page) // m)
