"""What the tiny checkpoints share: sizes, a tokenizer of a few words, one folder for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WORDS = [
    "question",
    "query",
    "describe",
    "the",
    "image",
    "net",
    "revenue",
    "by",
    "region",
    "user",
    "page",
    "table",
    "report",
    "a",
    "b",
    "c",
    "d",
    "e",
    "1",
    "2",
    "3",
]
TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4}
VISION = {
    "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 14,
}  # fmt: skip


def make_tokenizer(special: list[str], **roles: str) -> Any:
    """A word tokenizer that knows a few words and the architecture's special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(["<unk>", *special, *WORDS]))}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", **roles)
    tokenizer.add_special_tokens({"additional_special_tokens": [s for s in special if s not in roles.values()]})
    return tokenizer


def save(model: Any, folder: Path, *parts: Any) -> None:
    """A model, its tokenizer and its processors in one folder."""
    for part in (model, *parts):
        part.save_pretrained(folder)
