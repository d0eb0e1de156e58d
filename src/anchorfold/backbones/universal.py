"""Universal tokens: learned special tokens at the end of a page, whose attention AGC listens to.

They are ordinary rows of the embedding matrix behind special tokens of their own, so that a checkpoint carries them as
it carries every other word; `universal_tokens` in its `config.json` says how many there are. Queries have none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CONFIG_KEY = "universal_tokens"
SPREAD, OFFSET = 0.02, 1e-4  # how new tokens are drawn; the offset tells them apart from the first step on


def universal_count(config: Any) -> int:
    """How many universal tokens a checkpoint's configuration, an object or a dictionary, says that it has."""
    count = config.get(CONFIG_KEY) if isinstance(config, dict) else getattr(config, CONFIG_KEY, None)
    return int(count or 0)


def universal_token(number: int) -> str:
    """The special token with this number.

    >>> universal_token(3)
    '<|universal_3|>'
    """
    return f"<|universal_{number}|>"


def universal_text(count: int) -> str:
    """What is appended to a page's prompt."""
    return "".join(map(universal_token, range(count)))


def universal_ids(tokenizer: Any, count: int) -> list[int]:
    """The tokenizer's ids of the first `count` universal tokens, which it knows."""
    ids: list[int] = tokenizer.convert_tokens_to_ids([universal_token(number) for number in range(count)])
    return ids


def draw_rows(count: int, width: int) -> Tensor:
    """Embeddings `(count, width)` of untrained universal tokens: N(0, 0.02) and a small offset each."""
    draw = torch.randn(count, width, generator=torch.Generator().manual_seed(0))
    return SPREAD * draw + OFFSET * torch.arange(count)[:, None]


@torch.no_grad()
def add_universal_tokens(model: Any, tokenizer: Any, count: int) -> list[int]:
    """Teach a transformers model and its tokenizer `count` universal tokens; returns their ids.

    Tokens that the tokenizer does not know get the next free ids. The embedding matrix grows if they do not fit (Qwen's
    has spare rows).
    """
    tokenizer.add_tokens([universal_token(number) for number in range(count)], special_tokens=True)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    ids = universal_ids(tokenizer, count)
    weight = model.get_input_embeddings().weight
    weight[ids] = draw_rows(count, weight.shape[1]).to(weight)
    setattr(model.config, CONFIG_KEY, count)
    return ids
