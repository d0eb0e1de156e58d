"""Gemma 3 with a retrieval projection, with the weight names of colpali-engine."""

from __future__ import annotations

from transformers.models.gemma3.modeling_gemma3 import Gemma3Model

from anchorfold.backbones.colqwen_model import ProjectedModel


class ColGemma3Model(ProjectedModel, Gemma3Model):
    """Gemma 3 with a projection: the tokens of an image attend to each other in both directions, text is causal."""
