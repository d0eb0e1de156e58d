"""The shape of nano."""

from __future__ import annotations

from transformers import PretrainedConfig

from anchorfold.backbones.nano.text import CHARACTERS, SPELLING_FEATURES


class NanoConfig(PretrainedConfig):
    """Sizes of the page reader and of the query tables. Pixels unless said otherwise."""

    model_type = "anchorfold_nano"

    def __init__(
        self,
        hidden_size: int = 256,
        num_hidden_layers: int = 6,
        num_attention_heads: int = 8,
        intermediate_size: int = 1024,
        embedding_dim: int = 128,
        registers: int = 8,
        stem_channels: int = 128,
        cell_channels: int = 96,
        run_channels: int = 192,
        patch_height: int = 16,
        patch_width: int = 32,
        max_patches: int = 1600,
        rope_theta: float = 100.0,
        rope_still: int = 0,
        eighth: bool = False,
        silent: int = 0,
        vocab_size: int = 26000,
        spelling_features: int = SPELLING_FEATURES,
        characters: str = CHARACTERS,
        **kwargs: object,
    ) -> None:
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.embedding_dim = embedding_dim
        self.registers = registers
        self.stem_channels = stem_channels
        self.cell_channels = cell_channels
        self.run_channels = run_channels
        self.patch_height = patch_height
        self.patch_width = patch_width
        self.max_patches = max_patches
        self.rope_theta = rope_theta
        self.rope_still = rope_still
        self.eighth = eighth
        self.silent = silent
        self.vocab_size = vocab_size
        self.spelling_features = spelling_features
        self.characters = characters
        super().__init__(**kwargs)
