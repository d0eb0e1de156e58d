"""Stage 1: train the stem to classify the characters in its cells.

python -m training.nano.reading DATA_FOLDER FONT_FOLDER --steps 6000
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.stem import READS_PER_CELL, Reader
from training.nano import checkpoint
from training.nano.crops import CropStream, to_tensor
from training.nano.labels import BLANK, IGNORE, map_characters

HEIGHT, WIDTH = 256, 512


class CharacterCrops(CropStream):
    """Crops with character maps of full and half size."""

    def sample(self, rng: random.Random) -> tuple[Tensor, Tensor, Tensor]:
        """Draw a crop and its character maps."""
        crop = self.draw_crop(rng)
        full = map_characters(crop.symbols, crop.boxes, HEIGHT, WIDTH)
        half = map_characters(crop.symbols, crop.boxes / 2, HEIGHT // 2, WIDTH // 2)
        return to_tensor(crop.pixels), torch.from_numpy(full), torch.from_numpy(half)


def character_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the cross-entropy over cells, the number of correct cells and of printed cells.

    Blank cells have a tenth of the weight.
    """
    b, _, h, w = logits.shape
    logits = logits.view(b, READS_PER_CELL, -1, h, w).permute(0, 3, 4, 1, 2).flatten(0, 3)
    labels = labels.view(b, h, w, READS_PER_CELL).flatten()
    weight = torch.ones(logits.shape[-1])
    weight[BLANK] = 0.1
    printed = (labels != BLANK) & (labels != IGNORE)
    correct = (logits.argmax(-1) == labels) & printed
    total = F.cross_entropy(logits, labels, weight, ignore_index=IGNORE, reduction="sum")
    # Dense print at a small scale may have no readable cell.
    count = printed.sum() + weight[BLANK] * (labels == BLANK).sum()
    return total / count.clamp(min=1), correct.sum(), printed.sum()


def train(
    data: Path, fonts: Path, steps: int, batch: int, rate: float, seed: int, every: int = 50, real_share: float = 0.4
) -> list[dict[str, float]]:
    """Train or resume; return the curve of loss and accuracy on printed cells."""
    torch.manual_seed(seed)
    reader = Reader(NanoConfig())
    optimiser = torch.optim.AdamW(reader.parameters(), rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, steps, pct_start=0.05)
    path = data / "reading.pt"
    curve: list[dict[str, float]] = []
    step = 0
    if (state := checkpoint.load(path)) is not None:
        reader.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        schedule.load_state_dict(state["schedule"])
        step, curve = state["step"], state["curve"]
    loader = DataLoader(
        CharacterCrops(data, fonts, HEIGHT, WIDTH, real_share, seed + step), batch, num_workers=1, prefetch_factor=4
    )
    losses, correct, printed, began = [], 0, 0, time.time()
    for pixels, full, half in loader:
        if step >= steps:
            break
        loss_full, r1, n1 = character_loss(reader(pixels)[1], full)
        loss_half, r2, n2 = character_loss(reader(F.avg_pool2d(pixels, 2))[1], half)
        loss = loss_full + 0.5 * loss_half
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        step += 1
        losses.append(loss.item())
        correct, printed = correct + int(r1 + r2), printed + int(n1 + n2)
        if step % every == 0:
            curve.append({"step": step, "loss": float(np.mean(losses)), "accuracy": correct / max(printed, 1)})
            print(f"step {step}  loss {curve[-1]['loss']:.3f}  characters {100 * curve[-1]['accuracy']:.1f} %"
                  f"  {(time.time() - began) / every:.2f} s/step", flush=True)  # fmt: skip
            losses, correct, printed, began = [], 0, 0, time.time()
        if step % 200 == 0 or step == steps:
            checkpoint.save(path, model=reader.state_dict(), optimiser=optimiser.state_dict(),
                            schedule=schedule.state_dict(), step=step, curve=curve)  # fmt: skip
    return curve


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    train(arguments.data, arguments.fonts, arguments.steps, arguments.batch, arguments.rate, arguments.seed)


if __name__ == "__main__":
    main()
