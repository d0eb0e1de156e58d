"""Published checkpoints that this package can load, for listings and suggestions.

The values are from the model cards, colpali-engine and mteb; None if unknown. They are not used to load a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

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
    """A checkpoint: dimension of vectors, maximum visual tokens per page, language layers, causal mask, licence."""

    name: str
    family: str
    dim: int
    visual_tokens: int | None
    layers: int
    causal: bool
    licence: str

    def layer_settings(self) -> LayerSettings:
        """Return the layer settings it would be loaded with on this machine."""
        # Calibrations of several revisions or weights may exist: use the newest.
        files = sorted(
            calibration_folder(self.name).glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True
        )
        if self.name == "nano":
            files.append(WEIGHTS / CALIBRATION_FILE)
        if files:
            return read_settings(files[0], self.layers)
        return default_settings(self.family, self.layers)

    def source(self) -> str:
        """Return the source of the layer settings as readable text."""
        source = self.layer_settings().source
        if source in ("paper", "guess"):
            return {"paper": "the paper", "guess": "a guess: 70-90 % of depth"}[source]
        return "this package" if Path(source).is_relative_to(WEIGHTS) else f"calibrated here ({Path(source).name})"


NON_COMMERCIAL = "NVIDIA non-commercial, Llama 3.2 community"
KNOWN = [
    KnownModel("nano", "nano", 128, 1600, 6, False, "Apache-2.0"),
    KnownModel("vidore/colpali-v1.3-hf", "colpali", 128, 1024, 18, False, "Gemma; adapters MIT"),
    KnownModel("vidore/colpali-v1.3", "colpali", 128, 1024, 18, False, "Gemma; adapters MIT"),
    KnownModel("vidore/colqwen2-v1.0", "colqwen2", 128, 768, 28, True, "Apache-2.0; adapters MIT"),
    KnownModel("vidore/colqwen2-v1.0-hf", "colqwen2", 128, 768, 28, True, "Apache-2.0"),
    KnownModel("vidore/colqwen2.5-v0.2", "colqwen2.5", 128, 768, 36, True, "Qwen research (base); adapters MIT"),
    KnownModel("TomoroAI/tomoro-colqwen3-embed-4b", "colqwen3", 320, 1280, 36, True, "Apache-2.0"),
    KnownModel("TomoroAI/tomoro-colqwen3-embed-8b", "colqwen3", 320, 1280, 36, True, "Apache-2.0"),
    KnownModel("ModernVBERT/colmodernvbert", "colmodernvbert", 128, None, 22, False, "MIT"),
    KnownModel("nvidia/llama-nemotron-colembed-vl-3b-v2", "nemotron", 3072, 2304, 28, False, NON_COMMERCIAL),
    KnownModel("nvidia/nemotron-colembed-vl-4b-v2", "nemotron-qwen3", 2560, None, 36, False, "CC-BY-NC-4.0"),
    KnownModel("nvidia/nemotron-colembed-vl-8b-v2", "nemotron-qwen3", 4096, None, 36, False, "CC-BY-NC-4.0"),
]


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
