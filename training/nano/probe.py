"""Measure a run on a few held-out pages of every type.

    python -m training.nano.probe DATA_FOLDER FONT_FOLDER --stage mixed --start WEIGHTS --pages 10 \\
        --corpus SETS/slides@60 --corpus SETS/scanned_debian@developers-reference

Exports the averaged weights of the checkpoint and appends one line of JSON to DATA_FOLDER/probes.jsonl: step and core
hours; reading accuracy among 5,000 words and false matches per type of page; NDCG@5 and score retention per corpus (its
first files, or the named ones) without compression and at 5x, 10x and 20x. Without --stage it measures WEIGHTS.
`training.nano.figures` plots the file.
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
from training.nano import checkpoint, evaluation_set
from training.nano.evaluate import generate_pages, label_patches, load_evaluation_pages, read_patches
from training.nano.export import export
from training.nano.false_matches import embed_texts, measure_patches

PROBES_FILE = "probes.jsonl"
RATIOS = (0.2, 0.1, 0.05)
SEED = 5


def measure_pages(model: Nano, data: Path, fonts: Path, words: Path, count: int) -> dict[str, dict[str, float]]:
    """Measure reading accuracy (`words`) and false matches in percent over `count` pages per type."""
    rng, known = random.Random(SEED), embed_texts(model, model.vocabulary.words).detach()
    images = generate_pages(data, fonts, count, SEED)
    ordinary = itertools.takewhile(lambda page: page[0] == "unseen ordinary fonts", images)
    correct: dict[str, list[bool]] = defaultdict(list)
    false: dict[str, list[float]] = defaultdict(list)
    for kind, image, symbols, boxes in itertools.chain(
        ordinary, load_evaluation_pages(data, fonts, words, count, SEED)
    ):
        labels = label_patches(model.processor, image, symbols, boxes)
        (page,) = model.encode_documents([image])
        if len(labels[1]):
            correct[kind] += [reading.correct for reading in read_patches(model, page.vectors, *labels, rng)]
        rates = measure_patches(model, page.vectors, image, labels[0], labels[1], known, rng)
        if rates is not None:
            false[kind].append(rates[0])
    return {
        "words": {kind: 100 * float(np.mean(values)) for kind, values in correct.items()},
        "false_matches": {kind: 100 * float(np.mean(rates)) for kind, rates in false.items()},
    }


def load_corpus_subset(text: str) -> Corpus:
    """Load `FOLDER`, the first 60 files (`FOLDER@60`), or named files (`FOLDER@one,two`)."""
    folder, _, part = text.partition("@")
    if part.isdigit():
        names = sorted(path.name for path in (Path(folder) / PAGES_FOLDER).iterdir())[: int(part)]
        return local_corpus(folder, names)
    return local_corpus(folder, part.split(",") if part else None)


def measure_corpora(model: Nano, corpora: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """Measure NDCG@5 and score retention in percent per corpus: without compression, then at each of `RATIOS`."""
    methods = choose_methods("anchorfold", RATIOS)
    results = {}
    for text in corpora:
        with tempfile.TemporaryDirectory() as folder:
            rows = evaluate(
                load_corpus_subset(text),
                model,
                methods,
                {m.label: m.make() for m in methods},
                Path(folder),
                lambda _: None,
            )
        results[Path(text.partition("@")[0]).name] = {
            "ndcg": [row.ndcg for row in rows],
            "score_retention": [row.score_retention for row in rows],
        }
    return results


def probe(
    data: Path,
    fonts: Path,
    words: Path,
    start: Path,
    stage: str | None,
    minimum_weight: float | None,
    count: int,
    corpora: Sequence[str],
) -> dict[str, Any]:
    """Measure a checkpoint, or `start` without a stage; return one line of the file."""
    state = checkpoint.load(data / f"{stage}.pt") if stage else None
    with tempfile.TemporaryDirectory() as folder:
        export(data, stage, Path(folder), start, minimum_weight)
        model = anchorfold.load(folder)
        assert isinstance(model, Nano)
        hours, step = (state["seconds"] / 3600, state["step"]) if state else (0.0, 0)
        line = {"stage": stage, "step": step, "hours": hours, "minimum_weight": minimum_weight}
        return line | measure_pages(model, data, fonts, words, count) | {"corpora": measure_corpora(model, corpora)}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--stage", help="run whose checkpoint is measured")
    parser.add_argument("--start", type=Path, required=True, help="exported model that the run continued from")
    parser.add_argument("--minimum-weight", type=float, help="as in `training.nano.export`")
    parser.add_argument("--pages", type=int, default=10, help="pages per type")
    parser.add_argument("--corpus", action="append", default=[], help="FOLDER, FOLDER@60 or FOLDER@one,two")
    parser.add_argument("--words", type=Path, default=evaluation_set.WORD_LIST)
    arguments = parser.parse_args()
    line = probe(
        arguments.data, arguments.fonts, arguments.words, arguments.start, arguments.stage,
        arguments.minimum_weight, arguments.pages, arguments.corpus,
    )  # fmt: skip
    text = json.dumps(line)
    with open(arguments.data / PROBES_FILE, "a") as out:
        out.write(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
