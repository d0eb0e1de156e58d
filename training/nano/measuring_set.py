"""Writes invented sheets as a corpus that `anchorfold eval` reads: pictures and questions about what is printed."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from anchorfold.backbones.nano.query import WordIndex
from anchorfold.backbones.nano.query_side import WEIGHTS
from anchorfold.evaluation.corpus import PAGES_FOLDER, QUERIES_FILE
from training.nano import synth
from training.nano.labels import group_words
from training.nano.script import Script, Topic, TopicScript, unseen_words
from training.nano.sheet import Sheet

Drawer = Callable[[random.Random, Script, tuple[str, ...]], Sheet]
WORD_LIST = Path("/usr/share/dict/words")
PRINTED_FILE = "printed.json"  # the words of each sheet, which have no text layer
TOPIC = 30  # pages that share a topic's words


def sheets(
    draw: Drawer, fonts: Path, listing: Path, pages: int, seed: int
) -> Iterator[tuple[Image.Image, str, np.ndarray, dict[str, str]]]:
    """Pictures in unseen fonts and words, symbols, boxes `(n, 4)`, questions by kind; TOPIC pages share their words."""
    unseen = synth.latin_fonts(fonts, held_out=True)
    nouns, names = unseen_words(listing, set(WordIndex.load(WEIGHTS).words))
    for number in range(pages):
        topic = Topic(random.Random(f"{seed}/{number // TOPIC}"), nouns, names)
        rng = random.Random(f"{seed}/{number // TOPIC}/{number % TOPIC}")
        script = TopicScript(rng, topic)
        image, symbols, boxes = draw(rng, script, unseen).labelled()
        yield image, symbols, boxes, script.questions(set(group_words(symbols, boxes).texts))


def run(parser: argparse.ArgumentParser, draw: Drawer, kind: str) -> None:
    """The command line of a measuring set."""
    parser.add_argument("fonts", type=Path)
    parser.add_argument("to", type=Path)
    parser.add_argument("--pages", type=int, default=300)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--words", type=Path, default=WORD_LIST, help="a list of words, such as Debian's wamerican")
    arguments = parser.parse_args()
    (arguments.to / PAGES_FOLDER).mkdir(parents=True, exist_ok=True)
    lines, printed = [], {}
    drawn = sheets(draw, arguments.fonts, arguments.words, arguments.pages, arguments.seed)
    for number, (image, symbols, boxes, questions) in enumerate(drawn):
        name = f"{kind}-{number:03}.jpg"
        printed[name] = group_words(symbols, boxes).texts
        image.save(arguments.to / PAGES_FOLDER / name, quality=random.Random(name).randint(60, 92))
        lines += [
            json.dumps({"id": f"{kind}-{number}-{part}", "text": text, "relevant": [[name, 0]], "kind": part})
            for part, text in questions.items()
        ]
    (arguments.to / PRINTED_FILE).write_text(json.dumps(printed))
    (arguments.to / QUERIES_FILE).write_text("\n".join(lines) + "\n")
    print(f"{arguments.pages} pages, {len(lines)} questions in {arguments.to}")
