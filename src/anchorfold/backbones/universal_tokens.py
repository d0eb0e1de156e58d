"""Universal tokens: learned special tokens at the end of a page, whose attention AGC reads.

They are ordinary rows of the embedding matrix with special tokens of their own, so that checkpoints contain them like
all other tokens. `universal_tokens` in `config.json` is their number. Queries have none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CONFIG_KEY = "universal_tokens"
DEVIATION, OFFSET = 0.02, 1e-4  # of new embeddings; the offset makes tokens differ from the first step


def universal_count(config: Any) -> int:
    """Return the number of universal tokens in a configuration (object or dictionary)."""
    count = config.get(CONFIG_KEY) if isinstance(config, dict) else getattr(config, CONFIG_KEY, None)
    return int(count or 0)


def universal_token(number: int) -> str:
    """Return the special token with this number.

    Examples:
        >>> universal_token(3)
        '<|universal_3|>'
    """
    return f"<|universal_{number}|>"


def universal_text(count: int) -> str:
    """Return the text to append to a page's prompt."""
    return "".join(map(universal_token, range(count)))


def universal_ids(tokenizer: Any, count: int) -> list[int]:
    """Return the token ids of the first `count` universal tokens."""
    ids: list[int] = tokenizer.convert_tokens_to_ids([universal_token(number) for number in range(count)])
    return ids


def initial_embeddings(count: int, dim: int) -> Tensor:
    """Return embeddings `(count, dim)` of untrained universal tokens: N(0, 0.02) with a small offset each."""
    draw = torch.randn(count, dim, generator=torch.Generator().manual_seed(0))
    return DEVIATION * draw + OFFSET * torch.arange(count)[:, None]


@torch.no_grad()
def add_universal_tokens(model: Any, tokenizer: Any, count: int) -> list[int]:
    """Add `count` universal tokens to a transformers model and its tokenizer; return their ids.

    New tokens get the next free ids. The embedding matrix is enlarged if necessary (Qwen's has spare rows).
    """
    tokenizer.add_tokens([universal_token(number) for number in range(count)], special_tokens=True)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    ids = universal_ids(tokenizer, count)
    weight = model.get_input_embeddings().weight
    weight[ids] = initial_embeddings(count, weight.shape[1]).to(weight)
    setattr(model.config, CONFIG_KEY, count)
    return ids
