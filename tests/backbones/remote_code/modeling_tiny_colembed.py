"""Remote code of the tiny Nemotron-like checkpoint: its own tiling, prompts, left padding and forward_* methods."""

from typing import ClassVar

import numpy as np
import torch
from PIL import Image
from torch import nn
from transformers import AutoTokenizer, LlamaConfig, LlamaModel, PretrainedConfig, PreTrainedModel, SiglipVisionConfig
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.siglip.modeling_siglip import SiglipVisionModel


class TinyColEmbedConfig(PretrainedConfig):
    model_type = "llama_nemotron_tiny_colembed"
    sub_configs: ClassVar = {"vision_config": SiglipVisionConfig, "llm_config": LlamaConfig}

    def __init__(
        self, vision_config=None, llm_config=None, force_image_size=56, max_input_tiles=8, use_thumbnail=True,
        img_context_token_id=0, **kwargs,
    ):  # fmt: skip
        self.vision_config = SiglipVisionConfig(**_plain(vision_config))
        self.llm_config = LlamaConfig(**_plain(llm_config))
        self.force_image_size, self.max_input_tiles = force_image_size, max_input_tiles
        self.use_thumbnail, self.img_context_token_id = use_thumbnail, img_context_token_id
        super().__init__(**kwargs)


def _plain(config):
    return config.to_dict() if hasattr(config, "to_dict") else dict(config or {})


class BidirectionalLlama(LlamaModel):
    def forward(self, inputs_embeds, attention_mask):
        for layer in self.layers:
            layer.self_attn.is_causal = False
        mask = create_bidirectional_mask(self.config, inputs_embeds, attention_mask=attention_mask)
        positions = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device)[None]
        turns = self.rotary_emb(inputs_embeds, positions)
        states = inputs_embeds
        for layer in self.layers:
            states = layer(states, attention_mask=mask, position_ids=positions, position_embeddings=turns)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(states))


class TinyColEmbed(PreTrainedModel):
    config_class = TinyColEmbedConfig
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.vision_model = SiglipVisionModel(config.vision_config)
        self.mlp1 = nn.Linear(4 * config.vision_config.hidden_size, config.llm_config.hidden_size)
        self.language_model = BidirectionalLlama(config.llm_config)
        self.post_init()

    def forward(self, pixel_values=None, input_ids=None, attention_mask=None):
        embeds = self.language_model.embed_tokens(input_ids)
        if pixel_values is not None:
            grid = self.vision_model(pixel_values).last_hidden_state
            b, n, d = grid.shape
            side = int(n**0.5)
            grid = grid.view(b, side // 2, 2, side // 2, 2, d).transpose(2, 3).reshape(-1, 4 * d)
            marks = input_ids == self.config.img_context_token_id
            embeds = embeds.masked_scatter(marks[..., None], self.mlp1(grid).to(embeds.dtype))
        return self.language_model(embeds, attention_mask)

    @property
    def tokenizer(self):
        return AutoTokenizer.from_pretrained(self.config._name_or_path, padding_side="left")

    def tiles(self, image):
        side, most = self.config.force_image_size, self.config.max_input_tiles
        shapes = sorted({(i, j) for i in range(1, most + 1) for j in range(1, most + 1) if i * j <= most}, key=np.prod)
        wanted, best = image.width / image.height, (-1.0, (1, 1))
        for shape in shapes:
            ratio = shape[0] / shape[1]
            area = shape[0] * shape[1] * side * side / (image.width * image.height)
            value = min(area, 0.6) * min(ratio / wanted, wanted / ratio)
            best = max(best, (value, shape), key=lambda x: x[0])
        across, down = best[1]
        large = image.resize((across * side, down * side))
        cut = [
            large.crop((x * side, y * side, (x + 1) * side, (y + 1) * side)) for y in range(down) for x in range(across)
        ]
        return cut + [image.resize((side, side), Image.Resampling.BICUBIC)] * (len(cut) > 1)

    @torch.no_grad()
    def forward_images(self, images, batch_size=8):
        found = []
        for start in range(0, len(images), batch_size):
            tiles = [self.tiles(i.convert("RGB")) for i in images[start : start + batch_size]]
            flat = np.stack([np.asarray(t, np.float32) / 127.5 - 1 for page in tiles for t in page])
            tokens = (self.config.force_image_size // self.config.vision_config.patch_size // 2) ** 2
            prompts = ["<s> page <img> " + "<IMG_CONTEXT> " * (tokens * len(p)) + "</img> </s>" for p in tiles]
            inputs = self.tokenizer(prompts, return_tensors="pt", padding=True)
            states = self(
                pixel_values=torch.from_numpy(flat).permute(0, 3, 1, 2),
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
            ).last_hidden_state
            found += list(nn.functional.normalize(states, dim=-1) * inputs["attention_mask"][..., None])
        return found

    @torch.no_grad()
    def forward_queries(self, queries, batch_size=8):
        found = []
        for start in range(0, len(queries), batch_size):
            prompts = ["<s> query " + q for q in queries[start : start + batch_size]]
            inputs = self.tokenizer(prompts, return_tensors="pt", padding=True)
            states = self(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).last_hidden_state
            found += list(nn.functional.normalize(states, dim=-1) * inputs["attention_mask"][..., None])
        return found
