"""Published checkpoints that this package can load, for listings and suggestions.

The values are from the model cards, colpali-engine and mteb; None if unknown. They are not used to load a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from anchorfold.attention.layer_settings import (
    CALIBRATION_FILE,
    LayerSettings,
    default_settings,
    read_settings,
)
from anchorfold.backbones.nano.query import WEIGHTS
from anchorfold.backbones.weights import calibration_folder


@dataclass(frozen=True)
class KnownModel:
    """A checkpoint.

    Args:
        name: hub name.
        family: model family.
        dim: dimension of vectors.
        visual_tokens: maximum visual tokens per page.
        layers: language layers with softmax attention.
        causal: whether it is trained with a causal mask.
        licence: licence of the weights, and of their base if it differs.
        dims: truncated dimensions that it was trained for.
        needs_option: its configuration does not declare that it is bidirectional: load it with `bidirectional=True`.
    """

    name: str
    family: str
    dim: int
    visual_tokens: int | None
    layers: int | None
    causal: bool
    licence: str
    dims: tuple[int, ...] = ()
    needs_option: bool = False

    def layer_settings(self) -> LayerSettings | None:
        """Return the layer settings it would be loaded with on this machine; None if its depth is unknown."""
        # Calibrations of several revisions or weights may exist: use the newest.
        files = sorted(
            calibration_folder(self.name).glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True
        )
        if self.name == "nano":
            files.append(WEIGHTS / CALIBRATION_FILE)
        if self.layers is None:
            return None
        if files:
            return read_settings(files[0], self.layers)
        return default_settings(self.family, self.layers)

    def source(self) -> str:
        """Return the source of the layer settings as readable text."""
        settings = self.layer_settings()
        source = settings.source if settings else "guess"
        if source in ("paper", "guess"):
            return {"paper": "the paper", "guess": "a guess: 70-90 % of depth"}[source]
        return "this package" if Path(source).is_relative_to(WEIGHTS) else f"calibrated here ({Path(source).name})"


RESEARCH = "Qwen research (base)"
WEBAI = "webAI's own licence"
NON_COMMERCIAL = "NVIDIA non-commercial, Llama 3.2 community"
EVIE_DIMS = (64, 128, 256, 512, 1024, 2048)
KNOWN = [
    KnownModel("nano", "nano", 128, 1600, 6, False, "Apache-2.0"),
    KnownModel("vidore/colpali-v1.3-hf", "colpali", 128, 1024, 18, False, "Gemma; adapters MIT"),
    KnownModel("vidore/colpali-v1.3", "colpali", 128, 1024, 18, False, "Gemma; adapters MIT"),
    KnownModel("vidore/colqwen2-v1.0", "colqwen2", 128, 768, 28, True, "Apache-2.0; adapters MIT"),
    KnownModel("vidore/colqwen2-v1.0-hf", "colqwen2", 128, 768, 28, True, "Apache-2.0"),
    KnownModel("vidore/colqwen2.5-v0.2", "colqwen2.5", 128, 768, 36, True, f"{RESEARCH}; adapters MIT"),
    KnownModel("nomic-ai/colnomic-embed-multimodal-3b", "colqwen2.5", 128, 768, 36, True, RESEARCH),
    KnownModel("nomic-ai/colnomic-embed-multimodal-7b", "colqwen2.5", 128, 768, 28, True, "Apache-2.0"),
    KnownModel("tsystems/colqwen2.5-3b-multilingual-v1.0", "colqwen2.5", 128, 768, 36, True, RESEARCH),
    KnownModel("TomoroAI/tomoro-colqwen3-embed-4b", "colqwen3", 320, 1280, 36, True, "Apache-2.0"),
    KnownModel("TomoroAI/tomoro-colqwen3-embed-8b", "colqwen3", 320, 1280, 36, True, "Apache-2.0"),
    KnownModel("VAGOsolutions/SauerkrautLM-ColQwen3-2b-v0.1", "colqwen3", 128, None, 28, True, "Apache-2.0"),
    KnownModel("VAGOsolutions/SauerkrautLM-ColQwen3-4b-v0.1", "colqwen3", 128, None, 36, True, "Apache-2.0"),
    KnownModel("VAGOsolutions/SauerkrautLM-ColQwen3-8b-v0.1", "colqwen3", 128, None, 36, True, "Apache-2.0"),
    KnownModel("OpenSearch-AI/Ops-Colqwen3-4B", "colqwen3", 2560, 1280, 36, True, "Apache-2.0", (128, 320, 2560)),
    KnownModel("athrael-soju/colqwen3.5-4.5B-v3", "colqwen3.5", 128, None, 8, True, "Apache-2.0"),
    KnownModel("vultr/VultronRetrieverFlash-Qwen3.5-0.8B", "colqwen3.5", 320, None, 6, True, "Apache-2.0"),
    KnownModel("vultr/VultronRetrieverCore-Qwen3.5-4.5B", "colqwen3.5", 320, None, 8, True, "Apache-2.0"),
    KnownModel("vultr/VultronRetrieverPrime-Qwen3.5-8B", "colqwen3.5", 320, None, 8, True, "Apache-2.0"),
    KnownModel("tencent/EVIE-4.5B", "colqwen3.5", 2048, 1024, 8, False, "Apache-2.0", EVIE_DIMS, needs_option=True),
    KnownModel("tencent/EVIE-8B", "colqwen3.5", 4096, 1024, 8, False, "Apache-2.0", needs_option=True),
    KnownModel("webAI-Official/webAI-ColVec1.1-4b", "colqwen3.5", 640, 1792, 8, False, WEBAI),
    KnownModel("webAI-Official/webAI-ColVec1.1-8b", "colqwen3.5", 640, 1792, 8, False, WEBAI),
    KnownModel("Cognitive-Lab/ColNetraEmbed", "colgemma3", 128, 256, 34, False, "Gemma"),
    KnownModel("athrael-soju/ColUltraVBERT", "ultravbert", 768, None, None, False, "MIT", (128, 256, 320, 512, 768)),
    KnownModel("ModernVBERT/colmodernvbert", "colmodernvbert", 128, None, 22, False, "MIT"),
    KnownModel("nvidia/llama-nemoretriever-colembed-1b-v1", "nemotron", 2048, None, 16, False, NON_COMMERCIAL),
    KnownModel("nvidia/llama-nemoretriever-colembed-3b-v1", "nemotron", 3072, None, 28, False, NON_COMMERCIAL),
    KnownModel("nvidia/llama-nemotron-colembed-vl-3b-v2", "nemotron", 3072, 2304, 28, False, NON_COMMERCIAL),
    KnownModel("nvidia/nemotron-colembed-vl-4b-v2", "nemotron-qwen3", 2560, None, 36, False, "CC-BY-NC-4.0"),
    KnownModel("nvidia/nemotron-colembed-vl-8b-v2", "nemotron-qwen3", 4096, None, 36, False, "CC-BY-NC-4.0"),
]


def trained_dimensions(name: str, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the truncated dimensions that a model was trained for: from its configuration, or listed here.

    Examples:
        >>> trained_dimensions("athrael-soju/ColUltraVBERT", {})
        (128, 256, 320, 512, 768)
    """
    listed = next((model.dims for model in KNOWN if model.name == name), ())
    return tuple(config.get("head_dims") or listed)


def similar_models(name: str, most: int = 3) -> list[str]:
    """Return published models that a wrong name may mean.

    Args:
        name: as the user wrote it; a path has no suggestions.
        most: number of suggestions.

    Examples:
        >>> similar_models("colpali")
        ['vidore/colpali-v1.3-hf', 'vidore/colpali-v1.3']
        >>> similar_models("nan0")
        ['nano']
    """
    if name.startswith((".", "/", "~")):
        return []
    last = name.lower().rpartition("/")[2]
    by_last = {model.name.lower().rpartition("/")[2]: model.name for model in KNOWN}
    within = [full for short, full in by_last.items() if len(last) > 2 and last in short]
    close = [by_last[short] for short in get_close_matches(last, by_last, most)]
    return [model for model in within or close if model != name][:most]
