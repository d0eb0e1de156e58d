"""The stages after reading: how each samples and weighs, and the model that it begins with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.model import NanoModel
from anchorfold.backbones.nano.query import WordIndex
from anchorfold.backbones.nano.stem import PatchStem
from training.nano import checkpoint
from training.nano.silence import make_room


@dataclass(frozen=True)
class Stage:
    """How one stage samples and weighs."""

    height: int
    width: int
    batch: int
    real: float
    rate: float
    frozen_stem: bool
    page_loss: float
    retention: float
    centrality: float
    blank_kept: float
    pretence: float = 0.0
    universal: int = 0


STAGES = {
    "words": Stage(384, 640, 4, 0.9, 2e-3, True, 0.0, 0.0, 0.05, 0.25),
    "crops": Stage(384, 640, 4, 0.5, 5e-4, False, 0.0, 0.0, 0.0, 0.25, pretence=0.5),
    "pages": Stage(1024, 768, 2, 0.6, 5e-4, False, 0.5, 1.5, 1.0, 0.4, pretence=0.5),
    "agc": Stage(1024, 768, 2, 0.7, 6e-4, True, 0.5, 1.5, 0.0, 0.4, universal=128),
}
MIXES = {  # steps of the one for steps of the other
    "mixed": (("crops", 4), ("pages", 1)),
    "settled": (("crops", 1), ("pages", 2)),
}


def record_attention(module, query, key, value, attention_mask=None, **kwargs):
    """Scaled-dot-product attention that leaves its queries and keys on the module."""
    module.recorded = (query, key)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


def recorded(model: NanoModel, layer: int) -> tuple[Tensor, Tensor]:
    """Queries and keys `(B, H, T, d)` of a layer in the last pass."""
    attention: Any = model.layers[layer].self_attn
    query, key = attention.recorded
    return query, key


AttentionInterface.register("nano_record", record_attention)
AttentionMaskInterface.register("nano_record", sdpa_mask)


def load_start(
    data: Path, start: Path | None = None, universal: int = 0, eighth: bool = False
) -> tuple[NanoModel, WordIndex, dict[str, float]]:
    """A model with the stem of stage 1 and the tables of stage 0, or an exported one to go on with.

    `universal` tokens for AGC are new registers behind those that it has. With `eighth` it looks at an eighth of the
    size too: if it did not before, what it sees there counts for nothing yet.
    """
    torch.manual_seed(0)
    if start is not None:
        model = NanoModel.from_pretrained(start, dtype=torch.float32)
        if universal:
            new = model.registers.std() * torch.randn(universal, model.config.hidden_size)
            model.registers = torch.nn.Parameter(torch.cat((model.registers.detach(), new)))
            model.config.registers += universal
        if eighth and not model.config.eighth:
            model.config.eighth = True
            cells = PatchStem(model.config).at_eighth
            assert cells is not None
            for parameter in cells.parameters():
                torch.nn.init.zeros_(parameter)
            model.stem.at_eighth = cells
        model.config._attn_implementation_internal = "nano_record"
        index = WordIndex.load(start)
        make_room(model, index)
        return model, index, dict(zip(index.words, model.word_weights.tolist(), strict=True))
    config = NanoConfig(attn_implementation="nano_record", eighth=eighth)
    model = NanoModel(config)
    model.set_attn_implementation("nano_record")
    tables = checkpoint.load(data / "tables.pt")
    reading = checkpoint.load(data / "reading.pt")
    assert tables is not None, "run stage 0 first"
    assert reading is not None, "run stage 1 first"
    words = tables["words"].split("\n")
    model.words.weight.data.copy_(tables["model"]["words.weight"])
    model.spelling.weight.data.copy_(tables["model"]["spelling.weight"])
    model.word_weights.data.copy_(tables["weights"])
    model.stem.reader.load_state_dict(reading["model"])
    index = WordIndex(words)
    make_room(model, index)
    return model, index, dict(zip(words, tables["weights"].tolist(), strict=True))
