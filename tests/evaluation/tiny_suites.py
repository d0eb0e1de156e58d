"""The paper's suites with six pages of noise a data set, of mteb's own task class."""

from functools import cache

import numpy as np
import pytest
from PIL import Image

from anchorfold.evaluation.benchmarks import BENCHMARKS, PAPER_SUITES

datasets = pytest.importorskip("datasets")
pytest.importorskip("mteb")

from mteb.abstasks.retrieval import AbsTaskRetrieval  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402

PAGES = 6
WORDS = ["net revenue", "table by region", "user report", "the page", "a b c", "image d e"]


def page_image(seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (64, 64, 3), np.uint8))


class TinyTask(AbsTaskRetrieval):
    """Six pages of noise; four queries, the last of which two pages answer. `number` makes them differ."""

    number = 0

    def load_data(self, num_proc=None, **_):
        pages = {"id": [f"p{i}" for i in range(PAGES)], "image": images_of(self.number)}
        corpus = datasets.Dataset.from_dict(pages).cast_column("image", datasets.Image())
        texts = queries_of(self.number)
        queries = datasets.Dataset.from_dict({"id": list(texts), "text": list(texts.values())})
        self.corpus, self.queries = {"test": corpus}, {"test": queries}
        self.relevant_docs = {"test": {q: dict.fromkeys(r, 1) for q, r in answers_of(self.number).items()}}
        self.data_loaded = True


@cache
def images_of(number):
    return [page_image(100 * number + i) for i in range(PAGES)]


def queries_of(number):
    return {f"q{i}": WORDS[(number + i) % len(WORDS)] for i in range(4)}


def answers_of(number):
    answers = {f"q{i}": [f"p{(i + number) % PAGES}"] for i in range(3)}
    return {**answers, "q3": ["p0", "p4"]}


def tiny_task(name, number):
    metadata = TaskMetadata(
        name=name, description="tiny", dataset={"path": "here", "revision": "1"}, type="DocumentUnderstanding",
        category="t2i", eval_splits=["test"], eval_langs=["eng-Latn"], main_score="ndcg_at_5",
        modalities=["text", "image"],
    )  # fmt: skip
    return type(name, (TinyTask,), {"metadata": metadata, "number": number, "__module__": __name__})()


NUMBERS = {task.name: i for i, task in enumerate(t for suite in PAPER_SUITES for t in BENCHMARKS[suite].values())}
