"""Peak memory of a training step of ColQwen2.5 at its true size, without allocating it.

    python -m benchmarks.training_memory --pairs 32              # one GPU
    python -m benchmarks.training_memory --pairs 32 --devices 8  # pages of eight GPUs in the loss
    python -m benchmarks.training_memory --pairs 16

Model, adapters, autocast, gradient checkpointing, loss and AdamW are those of `paper.toml`; tensors are torch's fake
tensors, which have shapes and no data. Counts the bytes of all storages that are alive at a time, in the second step.
Not included: the vision tower, which has no gradients and ends before the language model starts, temporary buffers
inside kernels, memory fragmentation and the CUDA context. Attention is torch's flash kernel.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from anchorfold.testing import tiny
from benchmarks.rehearsal import REHEARSALS
from training.colqwen25.losses import batch_scores, contrastive_loss
from training.colqwen25.recipe import Recipe, read_recipe

QUERY_TOKENS, PAGE_TOKENS, DIMENSIONS = 32, 800, 128


class LiveBytes(TorchDispatchMode):
    """Count the bytes of the storages that are alive, and their maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def add(self, tensor: Tensor) -> None:
        """Count a tensor's storage until it is freed."""
        storage = tensor.untyped_storage()
        if storage not in self.known:
            self.known[storage] = storage.nbytes()
            weakref.finalize(storage, self._free, storage.nbytes())
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)

    def _free(self, size: int) -> None:
        self.now -= size

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self.add(value)
        return result


def tiny_configuration() -> dict[str, Any]:
    """Return the configuration of the tiny checkpoint, which `REHEARSALS` enlarges."""
    with tempfile.TemporaryDirectory() as folder:
        tiny.make("colqwen2.5", Path(folder) / "model")
        configuration: dict[str, Any] = json.loads((Path(folder) / "model" / "config.json").read_text())
    return configuration


def build_model(recipe: Recipe, small: dict[str, Any]) -> PeftModel:
    """Build the model in bfloat16 with adapters in float32, as `training.colqwen25.model.build` does."""
    torch.set_default_dtype(getattr(torch, recipe.model.dtype))
    model: Any
    model, _ = REHEARSALS["colqwen2.5"].build(small)
    torch.set_default_dtype(torch.float32)
    model.remove_causal_mask()
    model.set_attn_implementation("sdpa")
    model.requires_grad_(False)
    with patch.object(nn.Module, "to", lambda module, *_, **__: module):  # fake parameters cannot be moved
        tuned = get_peft_model(model, LoraConfig(**recipe.lora))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    return tuned.train()


def measure_step(small: dict[str, Any], pairs: int, devices: int) -> None:
    """Print the bytes of weights and of the second step."""
    # The other loss has a result whose shape depends on the data; it needs no more memory.
    recipe = replace(read_recipe(), loss=replace(read_recipe().loss, kind="cross-entropy"))
    model = build_model(recipe, small)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False)
    width = model.config.text_config.hidden_size

    def encode(count: int, tokens: int) -> Tensor:
        states = torch.zeros(count, tokens, width, dtype=torch.bfloat16, requires_grad=True)
        vectors: Tensor = model(inputs_embeds=states, position_ids=torch.arange(tokens).expand(3, count, tokens))
        return vectors.float()

    live = LiveBytes()
    for tensor in (*model.parameters(), *model.buffers()):
        live.add(tensor)
    weights = live.now
    with live:
        for _ in range(2):
            live.peak = live.now
            with torch.autocast("cpu", torch.bfloat16):
                queries, pages = encode(pairs, QUERY_TOKENS), encode(pairs, PAGE_TOKENS)
                others = torch.zeros((devices - 1) * pairs, PAGE_TOKENS, DIMENSIONS)
                pages = torch.cat([pages, others])
                masks = [torch.ones(len(x), x.shape[1], dtype=torch.bool) for x in (queries, pages)]
                scores = batch_scores(queries, masks[0], pages, masks[1])
                answers = torch.arange(pairs)
                loss = contrastive_loss(scores, masks[0].sum(1), answers, None, recipe.loss)
            forward = live.peak
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del queries, pages, scores, loss
    kept = live.now
    print(f"{pairs} pairs of {PAGE_TOKENS} page tokens, {devices} devices: weights {weights / 1e9:.2f} GB, ", end="")
    print(
        f"with the optimizer {kept / 1e9:.2f} GB, peak {forward / 1e9:.2f} GB forward, {live.peak / 1e9:.2f} GB in all"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--devices", type=int, default=1)
    arguments = parser.parse_args()
    small = tiny_configuration()
    with FakeTensorMode():
        measure_step(small, arguments.pairs, arguments.devices)


if __name__ == "__main__":
    main()
