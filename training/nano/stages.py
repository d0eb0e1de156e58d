"""Training stages after reading, the runs that combine them, and the model that a run starts from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.model import NanoModel
from anchorfold.backbones.nano.query import Vocabulary
from anchorfold.backbones.nano.stem import PatchStem
from training.nano import checkpoint
from training.nano.crops import DEFAULT_SAMPLING, Sampling
from training.nano.null_dimensions import reserve_null_dimensions


@dataclass(frozen=True)
class Stage:
    """Sampling and loss weights of one kind of step.

    Attributes:
        height, width: Size of a crop in pixels.
        batch: Crops per step.
        real_share: Share of crops from real pages; the rest is synthetic.
        learning_rate: Peak learning rate.
        blank_share: Share of blank patches that are kept; they teach little and cost time.
        frozen: Submodules that are not trained.
        absent_weight: Weight of the losses on absent words and on background patches.
        page_weight: Weight of the loss on compressed pages.
        retention_weight: Weight of the loss on what folding removes from each word's best match.
        centrality_weight: Weight of the losses on where attention goes.
        sampling: Shares of the types of crops.
        squared_shares: Patches prefer the larger of two words.
        masked_share: Share of printed patches that the transformer does not see and must infer from other patches.
        universal: Number of AGC's universal tokens.
    """

    height: int
    width: int
    batch: int
    real_share: float
    learning_rate: float
    blank_share: float
    frozen: tuple[str, ...] = ()
    absent_weight: float = 0.0
    page_weight: float = 0.0
    retention_weight: float = 0.0
    centrality_weight: float = 0.0
    sampling: Sampling = DEFAULT_SAMPLING
    squared_shares: bool = True
    masked_share: float = 0.0
    universal: int = 0


READER = ("stem.reader",)
STAGES = {
    "words": Stage(384, 640, 4, 0.9, 2e-3, 0.25, READER, centrality_weight=0.05),
    "crops": Stage(384, 640, 4, 0.5, 5e-4, 0.25, absent_weight=0.5),
    "pages": Stage(1024, 768, 2, 0.6, 5e-4, 0.4, (), 0.5, page_weight=0.5, retention_weight=1.5, centrality_weight=1.0),
    "agc": Stage(1024, 768, 2, 0.7, 6e-4, 0.4, READER, page_weight=0.5, retention_weight=1.5, universal=128),
}
# Squared shares on whole pages cost score retention.
DEGRADED = Sampling(scans=0.6, small=0.4, sheets=0.6, letters=0.2)
STAGES |= {
    "degraded-crops": replace(STAGES["crops"], sampling=DEGRADED),
    "degraded-pages": replace(STAGES["pages"], sampling=DEGRADED, squared_shares=False),
}
# Reading and masked patches: no term for where attention goes, folding or compressed pages. Reading alone needs little
# context, so it leaves attention uniform; a masked patch can only be inferred from others. The stem is trained already.
NEUTRAL_TERMS: dict[str, Any] = {
    "frozen": ("stem",), "page_weight": 0.0, "retention_weight": 0.0, "centrality_weight": 0.0, "masked_share": 0.3,
    "learning_rate": 1e-3,
}  # fmt: skip
STAGES |= {f"neutral-{name}": replace(STAGES[name], **NEUTRAL_TERMS) for name in ("crops", "pages")}


@dataclass(frozen=True)
class Run:
    """A sequence of training steps drawn from one or several stages.

    Attributes:
        parts: Names of stages and their relative frequencies. The first one defines what is trained, and how fast.
        is_causal: Train with a causal attention mask over the patches in reading order.
        reset_layers: Layers whose query and key projections are re-initialised at the start, so that their
            attention is learned by this run alone.
    """

    parts: tuple[tuple[str, int], ...]
    is_causal: bool = False
    reset_layers: tuple[int, ...] = ()


NEUTRAL = Run((("neutral-crops", 2), ("neutral-pages", 1)), reset_layers=tuple(range(6)))
RUNS = {name: Run(((name, 1),)) for name in STAGES} | {
    "mixed": Run((("crops", 4), ("pages", 1))),
    "settled": Run((("crops", 1), ("pages", 2))),
    "degraded": Run((("degraded-crops", 1), ("degraded-pages", 2))),
    "neutral": NEUTRAL,
    "neutral-causal": replace(NEUTRAL, is_causal=True),
}


def capture_attention(module, query, key, value, attention_mask=None, **kwargs):
    """Compute scaled-dot-product attention and store the queries and keys on the module."""
    module.captured = (query, key)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


def captured_attention(model: NanoModel, layer: int) -> tuple[Tensor, Tensor]:
    """Return queries and keys `(B, H, T, d)` of a layer in the last forward pass."""
    attention: Any = model.layers[layer].self_attn
    query, key = attention.captured
    return query, key


AttentionInterface.register("nano_capture", capture_attention)
AttentionMaskInterface.register("nano_capture", sdpa_mask)


@torch.no_grad()
def reset_attention(model: NanoModel, layers: Iterable[int]) -> None:
    """Re-initialise the query and key projections of some layers, so that their attention is learned again.

    The deviation gives logits of about unit variance: from logits near zero, attention takes thousands of steps to
    leave the uniform distribution.
    """
    for number in layers:
        attention: Any = model.layers[number].self_attn
        rows = slice(0, 2 * model.config.hidden_size)
        torch.nn.init.trunc_normal_(attention.qkv.weight[rows], std=model.config.hidden_size**-0.5)
        attention.qkv.bias[rows] = 0


def load_start(
    data: Path, start: Path | None = None, universal: int = 0, *,
    eighth_scale: bool = False, is_causal: bool = False, rope_fixed_pairs: int | None = None,
) -> tuple[NanoModel, Vocabulary, dict[str, float]]:  # fmt: skip
    """Load the model that a run starts from.

    Args:
        data: Folder with the checkpoints of stages 0 and 1, which provide tables and stem if there is no `start`.
        start: Exported model to continue from.
        universal: Number of AGC's universal tokens, appended to the register tokens.
        eighth_scale: Read an eighth of the size too; new weights are zero, so that outputs do not change at first.
        is_causal: Mask later patches. A causal `start` stays causal.
        rope_fixed_pairs: Number of rotary pairs per axis that do not rotate; as in `start` by default.

    Returns:
        The model, its vocabulary, and the inverse document frequencies of the vocabulary.
    """
    torch.manual_seed(0)
    options: dict[str, Any] = {"is_causal": True} if is_causal else {}
    if rope_fixed_pairs is not None:
        options["rope_fixed_pairs"] = rope_fixed_pairs
    if start is not None:
        model = NanoModel.from_pretrained(start, dtype=torch.float32, **options)
        if universal:
            new = model.registers.std() * torch.randn(universal, model.config.hidden_size)
            model.registers = torch.nn.Parameter(torch.cat((model.registers.detach(), new)))
            model.config.registers += universal
        if eighth_scale and not model.config.eighth_scale:
            model.config.eighth_scale = True
            cells = PatchStem(model.config).at_eighth
            assert cells is not None
            for parameter in cells.parameters():
                torch.nn.init.zeros_(parameter)
            model.stem.at_eighth = cells
        vocabulary = Vocabulary.load(start)
    else:
        model = NanoModel(NanoConfig(eighth_scale=eighth_scale, **options))
        tables = checkpoint.load(data / "tables.pt")
        reading = checkpoint.load(data / "reading.pt")
        assert tables is not None, "run stage 0 first"
        assert reading is not None, "run stage 1 first"
        model.words.weight.data.copy_(tables["model"]["words.weight"])
        model.spelling.weight.data.copy_(tables["model"]["spelling.weight"])
        model.word_weights.data.copy_(tables["weights"])
        model.stem.reader.load_state_dict(reading["model"])
        vocabulary = Vocabulary(tables["words"].split("\n"))
    model.config._attn_implementation_internal = "nano_capture"
    reserve_null_dimensions(model, vocabulary)
    return model, vocabulary, dict(zip(vocabulary.words, model.word_weights.tolist(), strict=True))
