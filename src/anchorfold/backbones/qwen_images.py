"""The image processor of Qwen's vision-language models, by what a checkpoint declares, in all spellings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anchorfold.backbones.checkpoint import Checkpoint
from anchorfold.errors import CheckpointError

# transformers 4.49 gave Qwen2.5-VL a class of its own, later ones took it back; `Fast` was torchvision's form until
# 5.0, `Pil` is Pillow's since. All of them cut the same patches.
SPELLINGS = {
    stem + form for stem in ("Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor") for form in ("", "Fast", "Pil")
}


def load_image_processor(sources: Sequence[Checkpoint], visual_tokens: int | None) -> Any:
    """From the first of these checkpoints that has one: Pillow's, so that results do not depend on torchvision.

    Args:
        sources: adapters and their base, or one checkpoint.
        visual_tokens: a page gives at most so many; fewer if the checkpoint says so; None for what it says.
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    name, declared = _declared(sources)
    kind = declared.get("image_processor_type", "Qwen2VLImageProcessor")
    if kind not in SPELLINGS:
        raise CheckpointError(
            f"{name} declares the image processor {kind!r}, and only {', '.join(sorted(SPELLINGS))} are known: take "
            "the preprocessor_config.json that it was trained with."
        )
    # Limits were written as min_pixels and max_pixels, then inside of `size`, then as its edges; the first one counts.
    size = declared.get("size") or {}
    limits = {
        edge: declared.get(pixels) or size.get(edge) or size.get(pixels) or Qwen2VLImageProcessorPil.size[edge]
        for edge, pixels in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels"))
    }
    others = {k: v for k, v in declared.items() if k not in ("min_pixels", "max_pixels", "size", "auto_map")}
    processor = Qwen2VLImageProcessorPil.from_dict({**others, "size": limits})
    if visual_tokens is not None:
        side = processor.patch_size * processor.merge_size
        processor.size["longest_edge"] = min(limits["longest_edge"], visual_tokens * side * side)
    return processor


def _declared(sources: Sequence[Checkpoint]) -> tuple[str, dict[str, Any]]:
    """A file of its own, or since transformers 5 a part of the processor's."""
    for checkpoint in sources:
        declared = checkpoint.json("preprocessor_config.json")
        declared = declared or (checkpoint.json("processor_config.json") or {}).get("image_processor")
        if declared:
            return checkpoint.name, declared
    raise CheckpointError(
        f"{sources[-1].name} does not say how its pages are cut into patches: add its preprocessor_config.json."
    )
