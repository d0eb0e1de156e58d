"""nano: a late-interaction retriever that reads page pixels, small enough to ship in the package."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import ModelOutput

from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.loudness import speak
from anchorfold.backbones.nano.query import word_vectors
from anchorfold.backbones.nano.stem import PatchStem


@dataclass
class NanoOutput(ModelOutput):
    """`hidden (B, T, d)` before the final map and `embeddings (B, T, 128)`, L2-normalised; T = registers + patches."""

    hidden: Tensor | None = None
    embeddings: Tensor | None = None


def patch_positions(rows: int, columns: int, device: torch.device | None = None) -> Tensor:
    """`(rows x columns, 2)` row and column of each patch, in page order."""
    y, x = torch.meshgrid(torch.arange(rows, device=device), torch.arange(columns, device=device), indexing="ij")
    return torch.stack((y.flatten(), x.flatten()), 1)


def rotary(positions: Tensor, head_dim: int, theta: float, still: int = 0) -> tuple[Tensor, Tensor]:
    """Cosine and sine `(T, head_dim)` of a rotary embedding: half of it turns with the row, half with the column.

    The `still` slowest pairs of each half do not turn at all: words far apart can be compared by them.
    """
    quarter = head_dim // 4
    frequency = theta ** (-torch.arange(quarter, device=positions.device, dtype=torch.float32) / quarter)
    frequency[quarter - still :] = 0
    angles = (positions.float()[:, :, None] * frequency).flatten(1)
    angles = torch.cat((angles, angles), 1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn queries or keys by their positions."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def eager_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: object
) -> tuple[Tensor, Tensor]:
    """The textbook attention, which also returns its weights."""
    logits = query @ key.transpose(2, 3) * scaling
    if mask is not None:
        logits = logits + mask if mask.dtype != torch.bool else logits.masked_fill(~mask, float("-inf"))
    weights = logits.softmax(-1)
    return (weights @ value).transpose(1, 2), weights


class NanoAttention(nn.Module):
    """Bidirectional multi-head attention through transformers' attention interface."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.config = config
        self.heads = config.num_attention_heads
        self.scaling = (config.hidden_size // self.heads) ** -0.5
        self.is_causal = False
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """`(B, T, d)` to the same."""
        b, t, d = x.shape
        query, key, value = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        y, _ = attend(self, query, key, value, mask, dropout=0.0, scaling=self.scaling, is_causal=False)
        attended: Tensor = self.out(y.reshape(b, t, d))
        return attended


class NanoLayer(nn.Module):
    """Attention and a feed-forward network, each behind a norm and beside a shortcut."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size)
        self.self_attn = NanoAttention(config)
        self.norm2 = nn.LayerNorm(config.hidden_size)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """`(B, T, d)` to the same."""
        x = x + self.self_attn(self.norm1(x), cos, sin, mask)
        step: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + step


class NanoModel(PreTrainedModel):
    """Page reader (stem, transformer, projection) and query tables (words and spelling).

    The sequence is `registers` learned tokens, then the page's patches in reading order, padded on the right.
    Registers give attention somewhere to rest that is no patch of paper; they are never indexed.

    With `config.silent` dimensions that no word uses, patches speak by how often the page shows the like of them. That
    is no affine map and comes after the one that is, so the states of a page that are averaged are `(N, 128)` then.
    """

    config_class = NanoConfig
    base_model_prefix = "nano"
    main_input_name = "pixel_values"
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: NanoConfig) -> None:
        super().__init__(config)
        self.stem = PatchStem(config)
        self.registers = nn.Parameter(torch.randn(config.registers, config.hidden_size) * 0.02)
        self.layers = nn.ModuleList(NanoLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size)
        self.projection = nn.Linear(config.hidden_size, config.embedding_dim)
        if config.silent:  # a weight, so that models which differ in it alone are told apart
            self.quietest = nn.Parameter(torch.full((1,), 0.8), requires_grad=False)
        self.spoken = nn.Identity()
        self.words = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.spelling = nn.EmbeddingBag(config.spelling_features, config.embedding_dim, mode="mean")
        self.word_weights = nn.Parameter(torch.ones(config.vocab_size), requires_grad=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    @property
    def final(self) -> nn.Module:
        """What takes the states that are averaged to vectors: an affine map, or nothing if that came before."""
        return self.spoken if self.config.silent else self.projection

    def turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the positions `(T, 2)` for one head."""
        config = self.config
        return rotary(positions, config.hidden_size // config.num_attention_heads, config.rope_theta, config.rope_still)

    def encode(self, patches: list[Tensor], positions: list[Tensor]) -> Tensor:
        """Patch features `(N_i, d)` at `positions (N_i, 2)` to final hidden states `(B, registers + max N, d)`."""
        lengths = [len(p) for p in patches]
        r, longest = len(self.registers), max(lengths)
        x = self.registers.expand(len(patches), -1, -1)
        x = torch.cat((x, nn.utils.rnn.pad_sequence(patches, batch_first=True)), 1)
        positions_padded = nn.utils.rnn.pad_sequence(positions, batch_first=True)
        positions_padded = F.pad(positions_padded, (0, 0, r, 0))
        turns = [self.turns(p) for p in positions_padded]
        cos, sin = (torch.stack(t)[:, None].to(x.dtype) for t in zip(*turns, strict=True))
        mask = None
        if min(lengths) < longest:
            valid = torch.arange(r + longest, device=x.device) < r + torch.tensor(lengths, device=x.device)[:, None]
            mask = valid[:, None, None].expand(-1, 1, r + longest, -1)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        states: Tensor = self.norm(x)
        return states

    def embed_words(self, word_ids: Tensor, features: Tensor, offsets: Tensor) -> Tensor:
        """Unit vectors `(n, 128)` of words: spelling plus, for known words (`word_ids >= 0`), their own vector."""
        return word_vectors(self.words.weight, self.spelling.weight, word_ids, features, offsets)

    def forward(self, pixel_values: Tensor, patch_grid: Tensor, **_: object) -> NanoOutput:
        """`pixel_values (B, 1, H, W)` padded on the right and below; `patch_grid (B, 2)` rows and columns a page."""
        ph, pw = self.config.patch_height, self.config.patch_width
        patches, positions = [], []
        for pixels, (rows, columns) in zip(pixel_values, patch_grid.tolist(), strict=True):
            # Each page passes the convolutions alone: padding must not leak over its border.
            patches.append(self.stem(pixels[None, :, : rows * ph, : columns * pw])[0])
            positions.append(patch_positions(rows, columns, pixel_values.device))
        hidden = self.encode(patches, positions)
        if self.config.silent:
            hidden = self.speak(self.projection(hidden), [len(p) for p in patches])
        return NanoOutput(hidden=hidden, embeddings=F.normalize(self.final(hidden), dim=-1))

    def speak(self, vectors: Tensor, lengths: list[int]) -> Tensor:
        """`(B, T, 128)` of any length, each page's patches as loud as the page repeats what they show."""
        first = len(self.registers)
        pages = []
        for page, length in zip(vectors, lengths, strict=True):
            spoken = speak(page[first : first + length], self.quietest, self.config.silent)
            pages.append(torch.cat((page[:first], spoken, page[first + length :])))
        return torch.stack(pages)
