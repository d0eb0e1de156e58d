"""How far a run is, measured on a few unseen pages of every kind.

    python -m training.nano.probe DATA_FOLDER FONT_FOLDER --stage mixed --start WEIGHTS --pages 10 \\
        --corpus SETS/slides@60 --corpus SETS/scanned_debian@developers-reference

Exports the averaged weights of the stage's checkpoint, and appends a line of JSON to DATA_FOLDER/probes.jsonl: step and
hours of one core; of each kind of page the patches that name their word first among 5,000 and the false matches; of
each corpus (its first so many files, or those named) NDCG@5 and the score kept, full and at 5x, 10x and 20x. Without
--stage it measures WEIGHTS as they are. `training.nano.pictures` draws the file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import anchorfold
from anchorfold.backbones.nano.retriever import Nano
from anchorfold.evaluation.corpus import PAGES_FOLDER, Corpus, local_corpus
from anchorfold.evaluation.methods import choose_methods
from anchorfold.evaluation.run import evaluate
from training.nano import checkpoint, measuring_set
from training.nano.evaluate import labelled_images, labelled_patches, read_patches
from training.nano.export import export
from training.nano.false_matches import patch_rates, vectors_of
from training.nano.kinds import labelled_pages

PROBES_FILE = "probes.jsonl"
RATIOS = (0.2, 0.1, 0.05)
SEED = 5


def measure_pages(model: Nano, data: Path, fonts: Path, words: Path, count: int) -> dict[str, dict[str, float]]:
    """`words` named first and `false` matches in percent, by kind, over `count` pages of each; none on fonts alone."""
    rng, known = random.Random(SEED), vectors_of(model, model.words.words).detach()
    images = labelled_images(data, fonts, count, SEED)
    ordinary = itertools.takewhile(lambda page: page[0] == "unseen ordinary fonts", images)
    right: dict[str, list[bool]] = defaultdict(list)
    false: dict[str, list[float]] = defaultdict(list)
    for kind, image, symbols, boxes in itertools.chain(ordinary, labelled_pages(data, fonts, words, count, SEED)):
        labels = labelled_patches(model.processor, image, symbols, boxes)
        (page,) = model.encode_pages([image])
        if len(labels[1]):
            right[kind] += [read.right for read in read_patches(model, page.vectors, *labels, rng)]
        rates = patch_rates(model, page.vectors, image, labels[0], labels[1], known, rng)
        if rates is not None:
            false[kind].append(rates[0])
    return {
        "words": {kind: 100 * float(np.mean(values)) for kind, values in right.items()},
        "false": {kind: 100 * float(np.mean(rates)) for kind, rates in false.items()},
    }


def chosen_corpus(text: str) -> Corpus:
    """`FOLDER`, `FOLDER@60` for its first sixty files, or `FOLDER@one,two` for those named."""
    folder, _, part = text.partition("@")
    if part.isdigit():
        names = sorted(path.name for path in (Path(folder) / PAGES_FOLDER).iterdir())[: int(part)]
        return local_corpus(folder, names)
    return local_corpus(folder, part.split(",") if part else None)


def measure_corpora(model: Nano, corpora: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """By corpus, `ndcg` and score `kept` in percent: full, then at each of RATIOS."""
    methods = choose_methods("anchorfold", RATIOS)
    results = {}
    for text in corpora:
        with tempfile.TemporaryDirectory() as folder:
            rows = evaluate(
                chosen_corpus(text), model, methods, {m.label: m.make() for m in methods}, Path(folder), lambda _: None
            )
        results[Path(text.partition("@")[0]).name] = {
            "ndcg": [row.ndcg for row in rows],
            "kept": [row.score_retention for row in rows],
        }
    return results


def probe(
    data: Path,
    fonts: Path,
    words: Path,
    start: Path,
    stage: str | None,
    quietest: float | None,
    count: int,
    corpora: Sequence[str],
) -> dict[str, Any]:
    """One line of the file, as an object."""
    state = checkpoint.load(data / f"{stage}.pt") if stage else None
    with tempfile.TemporaryDirectory() as folder:
        export(data, stage, Path(folder), start, quietest)
        model = anchorfold.load(folder)
        assert isinstance(model, Nano)
        hours, step = (state["seconds"] / 3600, state["step"]) if state else (0.0, 0)
        line = {"stage": stage, "step": step, "hours": hours, "quietest": quietest}
        return line | measure_pages(model, data, fonts, words, count) | {"corpora": measure_corpora(model, corpora)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--stage", help="whose checkpoint to measure")
    parser.add_argument("--start", type=Path, required=True, help="the exported model that the stage went on with")
    parser.add_argument("--quietest", type=float, help="as in `training.nano.export`")
    parser.add_argument("--pages", type=int, default=10, help="pages of each kind")
    parser.add_argument("--corpus", action="append", default=[], help="FOLDER, FOLDER@60 or FOLDER@one,two")
    parser.add_argument("--words", type=Path, default=measuring_set.WORD_LIST)
    arguments = parser.parse_args()
    line = probe(
        arguments.data, arguments.fonts, arguments.words, arguments.start, arguments.stage,
        arguments.quietest, arguments.pages, arguments.corpus,
    )  # fmt: skip
    text = json.dumps(line)
    with open(arguments.data / PROBES_FILE, "a") as out:
        out.write(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
