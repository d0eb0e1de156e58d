"""Pictures for the model card: how training went, and the pages that nano reads best and worst.

    python -m training.nano.pictures DATA_FOLDER --model FOLDER --curves reading,words,pages --to docs

`--curves` names the checkpoints in DATA_FOLDER whose curves are drawn one after the other.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import anchorfold
from anchorfold.backbones.nano.retriever import Nano
from anchorfold.evaluation.figures.style import plotting
from training.nano import checkpoint
from training.nano.corpus import load_page
from training.nano.evaluate import Read, read_page

RIGHT, WRONG = (0, 114, 178), (213, 94, 0)


def draw_curves(data: Path, names: list[str], path: Path) -> None:
    """Share of right answers on training pieces over all steps, a colour a run."""
    plt = plotting()
    figure, panel = plt.subplots(figsize=(9, 3.6))
    start = 0
    for name in names:
        state = checkpoint.load(data / f"{name}.pt")
        assert state is not None, f"{name}.pt is missing"
        steps = [start + point["step"] for point in state["curve"]]
        line = panel.plot(steps, [100 * point["right"] for point in state["curve"]], lw=2, label=name)[0]
        if "alone" in state["curve"][0]:
            alone = [100 * point["alone"] for point in state["curve"]]
            panel.plot(steps, alone, lw=1.2, ls=":", color=line.get_color(), label=f"{name}, patch alone")
        start = steps[-1]
    panel.set(xlabel="steps", ylabel="right on training pieces, %", ylim=(0, 100))
    characters = "characters named (reading), then " if "reading" in names else ""
    panel.set_title(f"{characters}words named first among about 3,700")
    panel.legend(fontsize=8, ncols=2, loc="upper left")
    figure.savefig(path)
    plt.close(figure)


def colour_page(image: Image.Image, found: list[Read], rows: int, columns: int) -> Image.Image:
    """The page with its labelled patches tinted: blue for right, orange for wrong."""
    page = image.convert("RGB").resize((columns * 16, rows * 8))
    tint = Image.new("RGBA", page.size)
    draw = ImageDraw.Draw(tint)
    for read in found:
        y, x = divmod(read.patch, columns)
        draw.rectangle((x * 16, y * 8, x * 16 + 15, y * 8 + 7), fill=(*(RIGHT if read.right else WRONG), 110))
    return Image.alpha_composite(page.convert("RGBA"), tint).convert("RGB")


def draw_pages(model: Nano, data: Path, count: int, path: Path, each: int = 3) -> None:
    """The best and the worst of some held-out pages, side by side."""
    rng = random.Random(11)
    paths = rng.sample(sorted((data / "pages" / "held_out").glob("*.npz")), count)
    scored = []
    for source in paths:
        image, symbols, boxes = load_page(source)
        if len(found := read_page(model, image, symbols, boxes, rng)) > 100:
            scored.append((float(np.mean([r.right for r in found])), source.stem, image, found))
    scored.sort(key=lambda s: s[0])
    plt = plotting()
    figure, panels = plt.subplots(2, each, figsize=(3.4 * each, 9))
    for panel, (share, name, image, found) in zip(panels.flat, [*scored[-each:][::-1], *scored[:each]], strict=True):
        width, height = model.processor.target_size(*image.size)
        panel.imshow(colour_page(image, found, height // 16, width // 32))
        panel.set_title(f"{100 * share:.0f} % of {len(found)} patches\n{name}", fontsize=8)
        panel.axis("off")
    figure.suptitle(
        f"The best (above) and worst of {len(scored)} unseen pages: blue patches name their word, orange do not"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--curves", default="reading,words,pages")
    parser.add_argument("--pages", type=int, default=60)
    parser.add_argument("--to", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    draw_curves(arguments.data, arguments.curves.split(","), arguments.to / "nano-curves.png")
    model = anchorfold.load(arguments.model)
    assert isinstance(model, Nano)
    draw_pages(model, arguments.data, arguments.pages, arguments.to / "nano-pages.png")


if __name__ == "__main__":
    main()
