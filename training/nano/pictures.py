"""Pictures for the model card: how training went, and the pages that nano reads best and worst.

    python -m training.nano.pictures DATA_FOLDER FONT_FOLDER --model FOLDER --curves reading,words,pages --to docs

`--curves` names the checkpoints in DATA_FOLDER whose curves are drawn one after the other; what `training.nano.probe`
measured on the way is drawn too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import anchorfold
from anchorfold.backbones.nano.retriever import Nano
from anchorfold.evaluation.figures.style import plotting
from training.nano import checkpoint, measuring_set
from training.nano.evaluate import Read, read_page
from training.nano.kinds import labelled_pages
from training.nano.probe import PROBES_FILE

Labelled = tuple[str, Image.Image, str, np.ndarray]  # kind, page, symbols, boxes (n, 4)
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


def draw_probes(lines: Sequence[str], path: Path) -> None:
    """What was gained by the hours: words named first and false matches of each kind, and NDCG@5 of each corpus."""
    points = sorted((json.loads(line) for line in lines), key=lambda point: point["hours"])
    titles = {"words": "words named first among 5,000, %", "false": "false matches, %", "corpora": "NDCG@5, full index"}
    titles = {part: title for part, title in titles.items() if any(point[part] for point in points)}
    plt = plotting()
    figure, panels = plt.subplots(1, len(titles), figsize=(4.4 * len(titles), 3.8), squeeze=False)
    for panel, (part, title) in zip(panels[0], titles.items(), strict=True):
        for name in dict.fromkeys(name for point in points for name in point[part]):
            measured = [(p["hours"], p[part][name]) for p in points if name in p[part]]
            values = [v["ndcg"][0] if part == "corpora" else v for _, v in measured]
            panel.plot([hours for hours, _ in measured], values, marker="o", ms=4, label=name)
        panel.set(xlabel="hours of one core", title=title)
        panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def colour_page(image: Image.Image, reads: list[Read], rows: int, columns: int) -> Image.Image:
    """The page with its labelled patches tinted: blue for right, orange for wrong."""
    page = image.convert("RGB").resize((columns * 16, rows * 8))
    tint = Image.new("RGBA", page.size)
    draw = ImageDraw.Draw(tint)
    for read in reads:
        y, x = divmod(read.patch, columns)
        draw.rectangle((x * 16, y * 8, x * 16 + 15, y * 8 + 7), fill=(*(RIGHT if read.right else WRONG), 110))
    return Image.alpha_composite(page.convert("RGBA"), tint).convert("RGB")


def draw_pages(model: Nano, kind: str, pages: Iterable[Labelled], path: Path, across: int = 3) -> None:
    """The best and the worst of some unseen pages of one kind, side by side."""
    rng = random.Random(11)
    scored = []
    for _, image, symbols, boxes in pages:
        if len(reads := read_page(model, image, symbols, boxes, rng)) > 20:
            scored.append((float(np.mean([r.right for r in reads])), image, reads))
    scored.sort(key=lambda s: s[0])
    plt = plotting()
    shown = [*scored[-across:][::-1], *scored[:across]]
    tallest = max(image.height / image.width for _, image, _ in shown)
    figure, panels = plt.subplots(2, across, figsize=(3.4 * across, 7 * tallest + 1.2))
    for panel, (share, image, reads) in zip(panels.flat, shown, strict=True):
        width, height = model.processor.target_size(*image.size)
        panel.imshow(colour_page(image, reads, height // 16, width // 32))
        panel.set_title(f"{100 * share:.0f} % of {len(reads)} patches", fontsize=8)
        panel.axis("off")
    figure.suptitle(
        f"The best (above) and worst of {len(scored)} unseen {kind}: blue patches name their word, orange do not"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--curves", default="reading,words,pages")
    parser.add_argument("--pages", type=int, default=30, help="pages of each kind to choose from")
    parser.add_argument("--words", type=Path, default=measuring_set.WORD_LIST)
    parser.add_argument("--to", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    draw_curves(arguments.data, arguments.curves.split(","), arguments.to / "nano-curves.png")
    if (probes := arguments.data / PROBES_FILE).exists():
        draw_probes(probes.read_text().splitlines(), arguments.to / "nano-probes.png")
    model = anchorfold.load(arguments.model)
    assert isinstance(model, Nano)
    labelled = labelled_pages(arguments.data, arguments.fonts, arguments.words, arguments.pages, seed=11)
    for kind, pages in itertools.groupby(sorted(labelled, key=lambda page: page[0]), key=lambda page: page[0]):
        draw_pages(model, kind, pages, arguments.to / f"nano-{kind}.png")


if __name__ == "__main__":
    main()
