"""How the ColQwen family is recognised; its model classes are imported when one of them is loaded."""

from __future__ import annotations

from anchorfold.backbones.checkpoint import Backbone, Checkpoint
from anchorfold.backbones.colqwen_layouts import LAYOUTS
from anchorfold.backbones.encoder import PageEncoder


def is_colqwen(checkpoint: Checkpoint) -> bool:
    """A vision-language model of Qwen's by its configuration, or adapters, which are for one of these."""
    return checkpoint.model_type in LAYOUTS or "peft_type" in checkpoint.config


def _load(checkpoint: Checkpoint) -> PageEncoder:
    from anchorfold.backbones.colqwen import load_colqwen

    return load_colqwen(checkpoint)


BACKBONE = Backbone(_load, is_colqwen)
