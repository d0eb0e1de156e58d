"""Generate evaluation sets of posters and slides: images and queries in the format of `anchorfold eval`."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from anchorfold.backbones.nano.query import WEIGHTS, Vocabulary
from anchorfold.evaluation.corpus import PAGES_FOLDER, QUERIES_FILE
from training.nano import synthetic_text
from training.nano.labels import group_words
from training.nano.sheet import Sheet
from training.nano.text_generator import TextGenerator, Topic, TopicTextGenerator, load_unseen_words

Drawer = Callable[[random.Random, TextGenerator, tuple[str, ...]], Sheet]
WORD_LIST = Path("/usr/share/dict/words")
PRINTED_FILE = "printed.json"  # words of each sheet, because images have no text layer
PAGES_PER_TOPIC = 30


def generate_sheets(
    draw: Drawer, fonts: Path, listing: Path, pages: int, seed: int
) -> Iterator[tuple[Image.Image, str, np.ndarray, dict[str, str]]]:
    """Yield sheets in held-out fonts and words: image, symbols, boxes `(n, 4)` and questions by kind."""
    unseen = synthetic_text.list_fonts(fonts, held_out=True)
    nouns, names = load_unseen_words(listing, set(Vocabulary.load(WEIGHTS).words))
    for number in range(pages):
        topic = Topic(random.Random(f"{seed}/{number // PAGES_PER_TOPIC}"), nouns, names)
        rng = random.Random(f"{seed}/{number // PAGES_PER_TOPIC}/{number % PAGES_PER_TOPIC}")
        script = TopicTextGenerator(rng, topic)
        image, symbols, boxes = draw(rng, script, unseen).export_labels()
        yield image, symbols, boxes, script.make_questions(set(group_words(symbols, boxes).texts))


def run_cli(parser: argparse.ArgumentParser, draw: Drawer, kind: str) -> None:
    """Run the command line of an evaluation set."""
    parser.add_argument("fonts", type=Path)
    parser.add_argument("to", type=Path)
    parser.add_argument("--pages", type=int, default=300)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--words", type=Path, default=WORD_LIST, help="word list, such as Debian's wamerican")
    arguments = parser.parse_args()
    (arguments.to / PAGES_FOLDER).mkdir(parents=True, exist_ok=True)
    lines, printed = [], {}
    drawn = generate_sheets(draw, arguments.fonts, arguments.words, arguments.pages, arguments.seed)
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
