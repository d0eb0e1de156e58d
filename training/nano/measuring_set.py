"""Writes invented sheets as a corpus that `anchorfold eval` reads: pictures and questions about what is printed."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from anchorfold.evaluation.corpus import PAGES_FOLDER, QUERIES_FILE
from anchorfold.nano.query import WordIndex
from anchorfold.nano.query_side import WEIGHTS
from training.nano import synth
from training.nano.labels import group_words
from training.nano.script import Script, Topic, TopicScript, unseen_words
from training.nano.sheet import Sheet

Drawer = Callable[[random.Random, Script, tuple[str, ...]], Sheet]
WORD_LIST = Path("/usr/share/dict/words")


def sheets(
    draw: Drawer, fonts: Path, listing: Path, pages: int, topic_size: int, seed: int
) -> Iterator[tuple[Image.Image, str, np.ndarray, list[str]]]:
    """Pictures in unseen fonts and words, symbols, boxes `(n, 4)` and questions; `topic_size` pages share a topic."""
    unseen = synth.latin_fonts(fonts, held_out=True)
    nouns, names = unseen_words(listing, set(WordIndex.load(WEIGHTS).words))
    for number in range(pages):
        topic = Topic(random.Random(f"{seed}/{number // topic_size}"), nouns, names)
        rng = random.Random(f"{seed}/{number // topic_size}/{number % topic_size}")
        script = TopicScript(rng, topic)
        image, symbols, boxes = draw(rng, script, unseen).labelled()
        yield image, symbols, boxes, script.questions(set(group_words(symbols, boxes).texts))


def run(parser: argparse.ArgumentParser, draw: Drawer, kind: str, topic_size: int) -> None:
    """The command line of a measuring set."""
    parser.add_argument("fonts", type=Path)
    parser.add_argument("to", type=Path)
    parser.add_argument("--pages", type=int, default=300)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--words", type=Path, default=WORD_LIST, help="a list of words, such as Debian's wamerican")
    arguments = parser.parse_args()
    (arguments.to / PAGES_FOLDER).mkdir(parents=True, exist_ok=True)
    lines = []
    drawn = sheets(draw, arguments.fonts, arguments.words, arguments.pages, topic_size, arguments.seed)
    for number, (image, _, _, questions) in enumerate(drawn):
        name = f"{kind}-{number:03}.jpg"
        image.save(arguments.to / PAGES_FOLDER / name, quality=random.Random(name).randint(60, 92))
        lines += [
            json.dumps({"id": f"{kind}-{number}-{i}", "text": text, "relevant": [[name, 0]], "kind": part})
            for i, (text, part) in enumerate(zip(questions, ("title", "detail"), strict=False))
        ]
    (arguments.to / QUERIES_FILE).write_text("\n".join(lines) + "\n")
    print(f"{arguments.pages} pages, {len(lines)} questions in {arguments.to}")
