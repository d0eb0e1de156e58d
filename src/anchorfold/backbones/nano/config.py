"""Configuration of nano."""

from __future__ import annotations

from typing import ClassVar

from transformers import PretrainedConfig

from anchorfold.backbones.nano.text import CHARACTERS, SPELLING_FEATURES


class NanoConfig(PretrainedConfig):
    """Sizes of the page encoder and of the query tables.

    Attributes:
        registers: Number of learned tokens before the patches.
        stem_channels, cell_channels, run_channels: Channels of the stem's convolutions.
        patch_height, patch_width: Patch size in pixels.
        max_patches: Maximum number of patches per page.
        rope_fixed_pairs: Number of rotary pairs per axis that do not rotate with the position.
        eighth_scale: Read the page at an eighth of its size too, for large type.
        null_dimensions: Trailing dimensions reserved for term-frequency weighting; 0 disables it.
        is_causal: Mask later patches in attention.
        characters: Symbols that the stem can name.
    """

    model_type = "anchorfold_nano"
    attribute_map: ClassVar[dict[str, str]] = {  # keys of older configurations
        "rope_still": "rope_fixed_pairs",
        "eighth": "eighth_scale",
        "silent": "null_dimensions",
    }

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
        rope_fixed_pairs: int = 0,
        eighth_scale: bool = False,
        null_dimensions: int = 0,
        is_causal: bool = False,
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
        self.rope_fixed_pairs = rope_fixed_pairs
        self.eighth_scale = eighth_scale
        self.null_dimensions = null_dimensions
        self.is_causal = is_causal
        self.vocab_size = vocab_size
        self.spelling_features = spelling_features
        self.characters = characters
        super().__init__(**kwargs)
