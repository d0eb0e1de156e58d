"""Stage 1: teach the stem to name the characters under its cells.

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
from training.nano.crops import Pieces, to_tensor
from training.nano.labels import BLANK, IGNORE, character_map

HEIGHT, WIDTH = 256, 512


class Characters(Pieces):
    """Pieces with the symbol maps of the full and the half size."""

    def sample(self, rng: random.Random) -> tuple[Tensor, Tensor, Tensor]:
        piece = self.piece(rng)
        full = character_map(piece.symbols, piece.boxes, HEIGHT, WIDTH)
        half = character_map(piece.symbols, piece.boxes / 2, HEIGHT // 2, WIDTH // 2)
        return to_tensor(piece.pixels), torch.from_numpy(full), torch.from_numpy(half)


def name_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy over the cells, right answers and number of printed cells. Blank paper counts a tenth."""
    b, _, h, w = logits.shape
    logits = logits.view(b, READS_PER_CELL, -1, h, w).permute(0, 3, 4, 1, 2).flatten(0, 3)
    labels = labels.view(b, h, w, READS_PER_CELL).flatten()
    weight = torch.ones(logits.shape[-1])
    weight[BLANK] = 0.1
    printed = (labels != BLANK) & (labels != IGNORE)
    right = (logits.argmax(-1) == labels) & printed
    total = F.cross_entropy(logits, labels, weight, ignore_index=IGNORE, reduction="sum")
    # A small view of dense print may have no cell that can be named.
    count = printed.sum() + weight[BLANK] * (labels == BLANK).sum()
    return total / count.clamp(min=1), right.sum(), printed.sum()


def train(
    data: Path, fonts: Path, steps: int, batch: int, rate: float, seed: int, every: int = 50, real: float = 0.4
) -> list[dict[str, float]]:
    """Train or resume; returns the curve: step, loss and share of printed cells read right."""
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
        Characters(data, fonts, HEIGHT, WIDTH, real, seed + step), batch, num_workers=1, prefetch_factor=4
    )
    losses, right, printed, began = [], 0, 0, time.time()
    for pixels, full, half in loader:
        if step >= steps:
            break
        loss_full, r1, n1 = name_loss(reader(pixels)[1], full)
        loss_half, r2, n2 = name_loss(reader(F.avg_pool2d(pixels, 2))[1], half)
        loss = loss_full + 0.5 * loss_half
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        step += 1
        losses.append(loss.item())
        right, printed = right + int(r1 + r2), printed + int(n1 + n2)
        if step % every == 0:
            curve.append({"step": step, "loss": float(np.mean(losses)), "right": right / max(printed, 1)})
            print(f"step {step}  loss {curve[-1]['loss']:.3f}  characters {100 * curve[-1]['right']:.1f} %"
                  f"  {(time.time() - began) / every:.2f} s/step", flush=True)  # fmt: skip
            losses, right, printed, began = [], 0, 0, time.time()
        if step % 200 == 0 or step == steps:
            checkpoint.save(path, model=reader.state_dict(), optimiser=optimiser.state_dict(),
                            schedule=schedule.state_dict(), step=step, curve=curve)  # fmt: skip
    return curve


def main() -> None:
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
