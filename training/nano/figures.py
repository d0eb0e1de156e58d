"""Figures of the model card: training curves, probes, and the pages with the best and worst reading accuracy.

    python -m training.nano.figures DATA_FOLDER FONT_FOLDER --model FOLDER --curves reading,words,pages -o docs

`--curves` lists the checkpoints in DATA_FOLDER whose curves are plotted in sequence. The output of
`training.nano.probe` is plotted too.
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
from anchorfold.evaluation.figures.style import import_pyplot
from training.nano import checkpoint, evaluation_set
from training.nano.evaluate import PatchReading, load_evaluation_pages, read_page
from training.nano.probe import PROBES_FILE

Labelled = tuple[str, Image.Image, str, np.ndarray]  # kind, page, symbols, boxes (n, 4)
CORRECT, WRONG = (0, 114, 178), (213, 94, 0)


def draw_curves(data: Path, names: list[str], path: Path) -> None:
    """Plot the accuracy on training crops over all steps, one colour per run."""
    plt = import_pyplot()
    figure, panel = plt.subplots(figsize=(9, 3.6))
    start = 0
    for name in names:
        state = checkpoint.load(data / f"{name}.pt")
        assert state is not None, f"{name}.pt is missing"
        steps = [start + point["step"] for point in state["curve"]]
        line = panel.plot(steps, [100 * point["accuracy"] for point in state["curve"]], lw=2, label=name)[0]
        if "alone_accuracy" in state["curve"][0]:
            alone = [100 * point["alone_accuracy"] for point in state["curve"]]
            panel.plot(steps, alone, lw=1.2, ls=":", color=line.get_color(), label=f"{name}, patch alone")
        start = steps[-1]
    panel.set(xlabel="steps", ylabel="accuracy on training crops, %", ylim=(0, 100))
    characters = "characters (reading), then " if "reading" in names else ""
    panel.set_title(f"{characters}words among about 3,700")
    panel.legend(fontsize=8, ncols=2, loc="upper left")
    figure.savefig(path)
    plt.close(figure)


def draw_probes(lines: Sequence[str], path: Path) -> None:
    """Plot reading accuracy and false matches per type of page and NDCG@5 per corpus over training time."""
    points = sorted((json.loads(line) for line in lines), key=lambda point: point["hours"])
    titles = {
        "words": "words first among 5,000, %",
        "false_matches": "false matches, %",
        "corpora": "NDCG@5, full index",
    }
    titles = {part: title for part, title in titles.items() if any(point[part] for point in points)}
    plt = import_pyplot()
    figure, panels = plt.subplots(1, len(titles), figsize=(4.4 * len(titles), 3.8), squeeze=False)
    for panel, (part, title) in zip(panels[0], titles.items(), strict=True):
        for name in dict.fromkeys(name for point in points for name in point[part]):
            measured = [(p["hours"], p[part][name]) for p in points if name in p[part]]
            values = [v["ndcg"][0] if part == "corpora" else v for _, v in measured]
            panel.plot([hours for hours, _ in measured], values, marker="o", ms=4, label=name)
        panel.set(xlabel="core hours", title=title)
        panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def colour_page(image: Image.Image, reads: list[PatchReading], rows: int, columns: int) -> Image.Image:
    """Tint the labelled patches of a page: blue if correct, orange if wrong."""
    page = image.convert("RGB").resize((columns * 16, rows * 8))
    tint = Image.new("RGBA", page.size)
    draw = ImageDraw.Draw(tint)
    for reading in reads:
        y, x = divmod(reading.patch, columns)
        draw.rectangle((x * 16, y * 8, x * 16 + 15, y * 8 + 7), fill=(*(CORRECT if reading.correct else WRONG), 110))
    return Image.alpha_composite(page.convert("RGBA"), tint).convert("RGB")


def draw_pages(model: Nano, kind: str, pages: Iterable[Labelled], path: Path, across: int = 3) -> None:
    """Draw the best and the worst of some held-out pages of one type."""
    rng = random.Random(11)
    scored = []
    for _, image, symbols, boxes in pages:
        if len(reads := read_page(model, image, symbols, boxes, rng)) > 20:
            scored.append((float(np.mean([r.correct for r in reads])), image, reads))
    scored.sort(key=lambda s: s[0])
    plt = import_pyplot()
    shown = [*scored[-across:][::-1], *scored[:across]]
    tallest = max(image.height / image.width for _, image, _ in shown)
    figure, panels = plt.subplots(2, across, figsize=(3.4 * across, 7 * tallest + 1.2))
    for panel, (share, image, reads) in zip(panels.flat, shown, strict=True):
        width, height = model.processor.fit_size(*image.size)
        panel.imshow(colour_page(image, reads, height // 16, width // 32))
        panel.set_title(f"{100 * share:.0f} % of {len(reads)} patches", fontsize=8)
        panel.axis("off")
    figure.suptitle(f"Best (top) and worst of {len(scored)} held-out {kind}; blue: word correct, orange: wrong")
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--curves", default="reading,words,pages")
    parser.add_argument("--pages", type=int, default=30, help="pages per type to choose from")
    parser.add_argument("--words", type=Path, default=evaluation_set.WORD_LIST)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    draw_curves(arguments.data, arguments.curves.split(","), arguments.output / "nano-curves.png")
    if (probes := arguments.data / PROBES_FILE).exists():
        draw_probes(probes.read_text().splitlines(), arguments.output / "nano-probes.png")
    model = anchorfold.load(arguments.model)
    assert isinstance(model, Nano)
    labelled = load_evaluation_pages(arguments.data, arguments.fonts, arguments.words, arguments.pages, seed=11)
    for kind, pages in itertools.groupby(sorted(labelled, key=lambda page: page[0]), key=lambda page: page[0]):
        draw_pages(model, kind, pages, arguments.output / f"nano-{kind}.png")


if __name__ == "__main__":
    main()
