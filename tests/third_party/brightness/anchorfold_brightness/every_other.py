"""A compressor of another package."""

import torch

from anchorfold.compressors import BudgetCompressor, keep_tokens


class EveryOther(BudgetCompressor):
    """Tokens at equal distances."""

    name, title = "every-other", "Every other"

    def reduce(self, page, m, settings):
        """Keep m of them."""
        return keep_tokens(page, torch.arange(m) * len(page) // m)
