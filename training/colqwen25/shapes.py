"""Synthetic retrieval task: pages show three of fourteen shapes, and queries name them.

    python -m training.colqwen25.shapes FOLDER

writes FOLDER/train and FOLDER/test as corpus folders. Both contain all shapes but share no combination, so that a model
has to recognise shapes and cannot memorise pages. Cells have the size of a visual token of Qwen2.5-VL, so that a tiny
random model can learn the task in minutes.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from itertools import combinations, cycle, islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from anchorfold.evaluation.corpus import PAGES_FOLDER, QUERIES_FILE

CELL = 28
Draw = ImageDraw.ImageDraw


def _bars(draw: Draw, ink: int, across: bool) -> None:
    for start in (3, 12, 21):
        draw.rectangle((3, start, 24, start + 4) if across else (start, 3, start + 4, 24), fill=ink)


def _checks(draw: Draw, ink: int) -> None:
    for x, y in ((3, 3), (17, 3), (10, 10), (3, 17), (17, 17)):
        draw.rectangle((x, y, x + 6, y + 6), fill=ink)


# Names are words in the vocabulary of the tiny checkpoints.
SHAPES: dict[str, Callable[[Draw, int], None]] = {
    "net": lambda draw, ink: draw.ellipse((3, 3, 24, 24), fill=ink),
    "revenue": lambda draw, ink: draw.ellipse((3, 3, 24, 24), outline=ink, width=4),
    "region": lambda draw, ink: draw.rectangle((3, 3, 24, 24), fill=ink),
    "user": lambda draw, ink: draw.rectangle((3, 3, 24, 24), outline=ink, width=4),
    "table": lambda draw, ink: draw.polygon(((14, 3), (24, 24), (3, 24)), fill=ink),
    "report": lambda draw, ink: draw.polygon(((14, 24), (24, 3), (3, 3)), fill=ink),
    "a": lambda draw, ink: draw.polygon(((14, 2), (25, 14), (14, 25), (2, 14)), fill=ink),
    "b": lambda draw, ink: _bars(draw, ink, True),
    "c": lambda draw, ink: _bars(draw, ink, False),
    "d": lambda draw, ink: draw.rectangle((2, 2, 13, 25), fill=ink),
    "e": lambda draw, ink: draw.rectangle((2, 14, 25, 25), fill=ink),
    "1": _checks,
    "2": lambda draw, ink: draw.line(((3, 3), (24, 24)), fill=ink, width=6),
    "3": lambda draw, ink: draw.line(((3, 24), (24, 3)), fill=ink, width=6),
}


def draw_page(names: tuple[str, ...], cells: int, rng: random.Random) -> Image.Image:
    """Draw `cells x cells` cells on a noisy background, with the named shapes in random cells and greys."""
    side = cells * CELL
    paper = np.random.default_rng(rng.getrandbits(32)).integers(190, 256, (side, side), dtype=np.uint8)
    page = Image.fromarray(paper)
    for name, cell in zip(names, rng.sample(range(cells * cells), len(names)), strict=True):
        x, y = cell % cells * CELL, cell // cells * CELL
        tile = page.crop((x, y, x + CELL, y + CELL))
        SHAPES[name](ImageDraw.Draw(tile), rng.randrange(90))
        page.paste(tile, (x, y))
    return page.convert("RGB")


def write_corpus(folder: Path, pages: list[tuple[str, ...]], cells: int, rng: random.Random) -> None:
    """Write a corpus folder: one image per page and one query per combination."""
    (folder / PAGES_FOLDER).mkdir(parents=True, exist_ok=True)
    relevant: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for number, names in enumerate(pages):
        file = f"page-{number:04}.png"
        draw_page(names, cells, rng).save(folder / PAGES_FOLDER / file)
        relevant.setdefault(names, []).append((file, 0))
    queries = [{"id": " ".join(names), "text": " ".join(names), "relevant": files} for names, files in relevant.items()]
    (folder / QUERIES_FILE).write_text("".join(json.dumps(query) + "\n" for query in queries))


def write_corpora(
    folder: Path, train: int = 284, test: int = 80, cells: int = 4, shapes: int = 14, shown: int = 3, seed: int = 0
) -> None:
    """Write FOLDER/train and FOLDER/test; each page shows `shown` of the first `shapes` shapes.

    Combinations repeat only after all have been used; fewer shapes make an easier task.
    """
    rng = random.Random(seed)
    drawn = [tuple(rng.sample(names, shown)) for names in combinations(list(SHAPES)[:shapes], shown)]
    rng.shuffle(drawn)
    pages = list(islice(cycle(drawn), train + test))
    write_corpus(folder / "test", pages[:test], cells, rng)
    write_corpus(folder / "train", pages[test:], cells, rng)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", type=int, default=4, help="cells per side; a cell is one visual token")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    arguments = parser.parse_args()
    write_corpora(arguments.folder, cells=arguments.cells, seed=arguments.seed)


if __name__ == "__main__":
    main()
