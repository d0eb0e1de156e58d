"""Prompts, limits and weight names of the models in the ColQwen family.

The values are those of colpali-engine (illuin-tech/colpali) when the published checkpoints were trained: it prefixed
queries with "Query: " until October 2025 and without a prefix since, that is, from ColQwen3 on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from anchorfold.errors import CheckpointError

IMAGE_TOKEN = "<|image_pad|>"
TEXT = "{text}"
PAGE_PROMPT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"
OPS_PAGE_PROMPT = PAGE_PROMPT.replace("<|im_end|>", "<|im_end|><|im_start|>assistant\n")
AUGMENTATION = "<|endoftext|>" * 10

# Maps weight names to ours: `visual`, `language_model`, `custom_text_proj`. colpali-engine saves these, or
# `model.layers` with transformers before 4.52; TomoroAI's and webAI's names start with `vlm.`, NVIDIA's with `model.`.
KEY_MAPPING = {
    r"^(?:vlm\.)?(?:model\.)?(?=(?:visual|language_model)\.)": "",
    r"^(?:vlm\.)?model\.(?=(?:layers|norm|embed_tokens)\.)": "language_model.",
    r"^embedding_proj_layer\.": "custom_text_proj.",
}


@dataclass(frozen=True)
class Layout:
    """A model of the family.

    Args:
        family: family name, the key of the paper's layer settings and figures.
        model_class: class in `colqwen_model.py`.
        visual_tokens: maximum visual tokens per page; None for the limit of the checkpoint's image processor.
        query_prompt: prompt with `{text}` in place of the query.
        page_prompt: prompt with one `<|image_pad|>` in place of the page.
        query_length: maximum tokens per query.
        bidirectional: trained without a causal mask, independent of the configuration.
        chat: use the checkpoint's chat template for prompts.
        assumed: what is not stated in public sources and was assumed; printed as a warning.
    """

    family: str
    model_class: str
    visual_tokens: int | None
    query_prompt: str = TEXT + AUGMENTATION
    page_prompt: str = PAGE_PROMPT
    query_length: int | None = None
    bidirectional: bool = False
    chat: bool = False
    assumed: str = ""


_WITH_PREFIX = "Query: " + TEXT + AUGMENTATION

# By `model_type` in `config.json`.
LAYOUTS = {
    "qwen2_vl": Layout("colqwen2", "ColQwen2Model", 768, _WITH_PREFIX),
    "qwen2_5_vl": Layout("colqwen2.5", "ColQwen25Model", 768, _WITH_PREFIX),
    "qwen3_vl": Layout("colqwen3", "ColQwen3Model", 768),
    "colqwen3": Layout("colqwen3", "ColQwen3Model", 1280),  # TomoroAI/tomoro-colqwen3-embed
    "ops_colqwen3": Layout(  # OpenSearch-AI/Ops-Colqwen3
        "colqwen3", "ColQwen3Model", None, _WITH_PREFIX, OPS_PAGE_PROMPT,
        assumed="its prompts are those of public ports of its processor, which was not read",
    ),
    "qwen3_vl_nemotron_embed": Layout(
        "nemotron-qwen3", "NemotronQwen3Model", None, query_length=512, bidirectional=True, chat=True
    ),
    "qwen3_5": Layout("colqwen3.5", "ColQwen35Model", None),
    "colqwen3_5": Layout(  # webAI-ColVec1 and 1.1
        "colqwen3.5", "ColQwen35Model", 1792,
        assumed="its prompts are assumed to be those of colpali-engine",
    ),
}  # fmt: skip

# Checkpoints whose configuration is that of a layout above and whose prompts differ, by a pattern of their name.
NAMED_LAYOUTS = {
    # github.com/VAGOsolutions/sauerkrautlm-colpali
    r"SauerkrautLM-ColQwen3": Layout("colqwen3", "SauerkrautColQwen3Model", None, _WITH_PREFIX),
}


def find_layout(name: str, model_type: str) -> Layout | None:
    """Return the layout of a checkpoint by its name (hub name or folder) or its `model_type`."""
    last = PurePath(name).name
    named = (layout for pattern, layout in NAMED_LAYOUTS.items() if re.match(pattern, last))
    return next(named, LAYOUTS.get(model_type))


def with_chat_prompts(layout: Layout, name: str, tokenizer: Any, processor: dict[str, Any]) -> Layout:
    """Return a layout with prompts from the checkpoint's chat template and `processor_config.json`."""
    if not tokenizer.chat_template:
        raise CheckpointError(
            f"{name} requires a chat template for its prompts and has none: add its chat_template.jinja to the folder."
        )

    def render(*content: dict[str, str]) -> str:
        message = [{"role": "user", "content": list(content)}]
        prompt: str = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return prompt

    passage, query = processor.get("passage_prefix", "passage:"), processor.get("query_prefix", "query:")
    page_prompt = render({"type": "image"}, {"type": "text", "text": f"{passage} " if passage else ""})
    query_prompt = render({"type": "text", "text": f"Query: {query} {TEXT}" if query else f"Query: {TEXT}"})
    if page_prompt.count(IMAGE_TOKEN) != 1 or query_prompt.count(TEXT) != 1:
        raise CheckpointError(
            f"the chat template of {name} does not contain a page or a query: use the template it was published with."
        )
    length = processor.get("q_max_length", layout.query_length)
    return replace(layout, page_prompt=page_prompt, query_prompt=query_prompt, query_length=length)
