"""Late-interaction retriever that reads page pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import ModelOutput

from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.query import embed_words
from anchorfold.backbones.nano.stem import PatchStem
from anchorfold.backbones.nano.term_frequency import apply_term_frequency

# Tensor name of the minimum term-frequency weight. It is part of the model fingerprint, so it cannot be renamed.
MINIMUM_WEIGHT = "quietest"


@dataclass
class NanoOutput(ModelOutput):
    """Outputs for T = registers + patches tokens.

    Attributes:
        hidden: `(B, T, d)` states before the output projection.
        embeddings: `(B, T, 128)` unit vectors.
    """

    hidden: Tensor | None = None
    embeddings: Tensor | None = None


def list_positions(rows: int, columns: int, device: torch.device | None = None) -> Tensor:
    """List the row and column of each patch in reading order: `(rows * columns, 2)`."""
    y, x = torch.meshgrid(torch.arange(rows, device=device), torch.arange(columns, device=device), indexing="ij")
    return torch.stack((y.flatten(), x.flatten()), 1)


def compute_rotary(positions: Tensor, head_dim: int, theta: float, fixed_pairs: int = 0) -> tuple[Tensor, Tensor]:
    """Compute a 2D rotary embedding: half of the pairs rotate with the row, half with the column.

    Args:
        positions: `(T, 2)` rows and columns.
        head_dim: Dimension of one head.
        theta: Base of the frequencies.
        fixed_pairs: Number of pairs per axis, the slowest ones, that do not rotate. They compare words at any distance.

    Returns:
        Cosine and sine, `(T, head_dim)` each.
    """
    quarter = head_dim // 4
    frequency = theta ** (-torch.arange(quarter, device=positions.device, dtype=torch.float32) / quarter)
    frequency[quarter - fixed_pairs :] = 0
    angles = (positions.float()[:, :, None] * frequency).flatten(1)
    angles = torch.cat((angles, angles), 1)
    return angles.cos(), angles.sin()


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys by their positions."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def eager_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float,
    is_causal: bool = False, **_: object,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute attention from its definition and return the weights too."""
    logits = query @ key.transpose(2, 3) * scaling
    if is_causal:
        logits = logits.masked_fill(torch.ones_like(logits[0, 0], dtype=torch.bool).triu(1), float("-inf"))
    if mask is not None:
        logits = logits + mask if mask.dtype != torch.bool else logits.masked_fill(~mask, float("-inf"))
    weights = logits.softmax(-1)
    return (weights @ value).transpose(1, 2), weights


class NanoAttention(nn.Module):
    """Multi-head attention through transformers' attention interface, bidirectional unless `config.is_causal`."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.config = config
        self.heads = config.num_attention_heads
        self.scaling = (config.hidden_size // self.heads) ** -0.5
        self.is_causal = config.is_causal
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """Attend over tokens: `(B, T, d)` to `(B, T, d)`."""
        b, t, d = x.shape
        query, key, value = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        query, key = apply_rotary(query, cos, sin), apply_rotary(key, cos, sin)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        y, _ = attend(self, query, key, value, mask, dropout=0.0, scaling=self.scaling, is_causal=self.is_causal)
        attended: Tensor = self.out(y.reshape(b, t, d))
        return attended


class NanoLayer(nn.Module):
    """Pre-norm transformer layer."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size)
        self.self_attn = NanoAttention(config)
        self.norm2 = nn.LayerNorm(config.hidden_size)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """Apply the layer: `(B, T, d)` to `(B, T, d)`."""
        x = x + self.self_attn(self.norm1(x), cos, sin, mask)
        step: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + step


class NanoModel(PreTrainedModel):
    """Page encoder (stem, transformer, projection) and query tables (words and spelling).

    The input sequence is the register tokens followed by the patches of a page in reading order, padded on the right.
    Registers absorb attention that would otherwise go to background patches; they are never indexed.

    With `config.null_dimensions`, patch vectors are weighted by in-page term frequency after the projection. The
    weighting is not affine, so compressors average `(n, 128)` weighted vectors instead of hidden states.
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
        if config.null_dimensions:  # a parameter, because the fingerprint must include it
            self.register_parameter(MINIMUM_WEIGHT, nn.Parameter(torch.full((1,), 0.8), requires_grad=False))
        self.identity = nn.Identity()
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
    def output_projection(self) -> nn.Module:
        """Map from the states that compressors average to vectors: affine, or the identity after weighting."""
        return self.identity if self.config.null_dimensions else self.projection

    @property
    def minimum_weight(self) -> Tensor:
        """Term-frequency weight `(1,)` of a patch that resembles no other on its page."""
        weight: Tensor = self.get_parameter(MINIMUM_WEIGHT)
        return weight

    def compute_rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Compute cosine and sine `(T, head_dim)` of `positions (T, 2)`."""
        config = self.config
        head_dim = config.hidden_size // config.num_attention_heads
        return compute_rotary(positions, head_dim, config.rope_theta, config.rope_fixed_pairs)

    def encode(self, patches: list[Tensor], positions: list[Tensor]) -> Tensor:
        """Run the transformer on the patches of some pages.

        Args:
            patches: `(n_i, d)` patch features of each page.
            positions: `(n_i, 2)` their rows and columns.

        Returns:
            `(B, registers + max n_i, d)` final hidden states.
        """
        lengths = [len(p) for p in patches]
        r, longest = len(self.registers), max(lengths)
        x = self.registers.expand(len(patches), -1, -1)
        x = torch.cat((x, nn.utils.rnn.pad_sequence(patches, batch_first=True)), 1)
        padded = F.pad(nn.utils.rnn.pad_sequence(positions, batch_first=True), (0, 0, r, 0))
        rotations = zip(*map(self.compute_rotary, padded), strict=True)
        cos, sin = (torch.stack(values)[:, None].to(x.dtype) for values in rotations)
        mask = None
        # A causal mask also excludes padding, which comes last.
        if min(lengths) < longest and not self.config.is_causal:
            valid = torch.arange(r + longest, device=x.device) < r + torch.tensor(lengths, device=x.device)[:, None]
            mask = valid[:, None, None].expand(-1, 1, r + longest, -1)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        states: Tensor = self.norm(x)
        return states

    def embed_words(self, word_ids: Tensor, features: Tensor, offsets: Tensor) -> Tensor:
        """Compute unit vectors `(n, 128)` of words from the output of `Vocabulary.lookup`."""
        return embed_words(self.words.weight, self.spelling.weight, word_ids, features, offsets)

    def forward(self, pixel_values: Tensor, patch_grid: Tensor, **_: object) -> NanoOutput:
        """Encode pages.

        Args:
            pixel_values: `(B, 1, H, W)`, padded on the right and at the bottom.
            patch_grid: `(B, 2)` rows and columns of each page.
        """
        ph, pw = self.config.patch_height, self.config.patch_width
        patches, positions = [], []
        for pixels, (rows, columns) in zip(pixel_values, patch_grid.tolist(), strict=True):
            # Pages pass the convolutions one at a time, so that padding does not affect border patches.
            patches.append(self.stem(pixels[None, :, : rows * ph, : columns * pw])[0])
            positions.append(list_positions(rows, columns, pixel_values.device))
        hidden = self.encode(patches, positions)
        if self.config.null_dimensions:
            pages = zip(self.projection(hidden), patches, strict=True)
            hidden = torch.stack([self._weight_patches(page, len(patch)) for page, patch in pages])
        return NanoOutput(hidden=hidden, embeddings=F.normalize(self.output_projection(hidden), dim=-1))

    def _weight_patches(self, vectors: Tensor, count: int) -> Tensor:
        """Apply term-frequency weights to the `count` patches of one page `(T, 128)`, not to registers and padding."""
        registers, patches, padding = vectors.tensor_split((len(self.registers), len(self.registers) + count))
        weighted = apply_term_frequency(patches, self.minimum_weight, self.config.null_dimensions)
        return torch.cat((registers, weighted, padding))
