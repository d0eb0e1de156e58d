"""What tells the members of the ColQwen family apart. All of it is data, from the code that published them.

Each is a transformers vision-language model (Qwen2-VL, Qwen2.5-VL, Qwen3-VL) with a projection of its final states.
Prompts, limits and dimensions are those of colpali-engine (illuin-tech/colpali) when the published checkpoints were
trained: it put "Query: " before queries until October 2025, and no prefix from then on, so from ColQwen3 on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from anchorfold.errors import CheckpointError

IMAGE_TOKEN = "<|image_pad|>"
TEXT = "{text}"
PAGE_PROMPT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"
AUGMENTATION = "<|endoftext|>" * 10

# Names of a checkpoint's weights, to ours: `visual`, `language_model`, `custom_text_proj`. colpali-engine saves these,
# or with transformers before 4.52 `model.layers`; TomoroAI's layout puts all under `vlm.`, NVIDIA's under `model.`.
KEY_MAPPING = {
    r"^(?:vlm\.)?(?:model\.)?(?=(?:visual|language_model)\.)": "",
    r"^(?:vlm\.)?model\.(?=(?:layers|norm|embed_tokens)\.)": "language_model.",
    r"^embedding_proj_layer\.": "custom_text_proj.",
}


@dataclass(frozen=True)
class Layout:
    """One member of the family.

    Args:
        family: our name for it; the paper's layers and figures are found by it.
        model_class: its name in `colqwen.py`.
        visual_tokens: at most so many a page; None for what the checkpoint's image processor says.
        query_prompt: with `{text}` where the query stands.
        page_prompt: with one `<|image_pad|>` where the page stands.
        query_length: tokens after which a query is cut.
        bidirectional: trained without a causal mask, whatever its configuration says.
        chat: prompts are made with the checkpoint's own chat template.
    """

    family: str
    model_class: str
    visual_tokens: int | None
    query_prompt: str = TEXT + AUGMENTATION
    page_prompt: str = PAGE_PROMPT
    query_length: int | None = None
    bidirectional: bool = False
    chat: bool = False


_WITH_PREFIX = "Query: " + TEXT + AUGMENTATION

# By what `config.json` calls the architecture.
LAYOUTS = {
    "qwen2_vl": Layout("colqwen2", "ColQwen2Model", 768, _WITH_PREFIX),
    "qwen2_5_vl": Layout("colqwen2.5", "ColQwen25Model", 768, _WITH_PREFIX),
    "qwen3_vl": Layout("colqwen3", "ColQwen3Model", 768),
    "colqwen3": Layout("colqwen3", "ColQwen3Model", 1280),  # TomoroAI/tomoro-colqwen3-embed
    "qwen3_vl_nemotron_embed": Layout(
        "nemotron-qwen3", "NemotronQwen3Model", None, query_length=512, bidirectional=True, chat=True
    ),
}


def with_chat_prompts(layout: Layout, name: str, tokenizer: Any, processor: dict[str, Any]) -> Layout:
    """A layout with the prompts that the checkpoint's chat template and `processor_config.json` make."""
    if not tokenizer.chat_template:
        raise CheckpointError(
            f"{name} writes its prompts with a chat template, and has none: add its chat_template.jinja to the folder."
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
            f"{name}: its chat template leaves no room for a page or a query. Take the template that it was "
            "published with."
        )
    length = processor.get("q_max_length", layout.query_length)
    return replace(layout, page_prompt=page_prompt, query_prompt=query_prompt, query_length=length)
