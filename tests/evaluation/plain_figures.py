"""What a report says, by other code: numpy, one page and query at a time."""

from functools import cache
from statistics import fmean

import numpy as np
from PIL import Image

import anchorfold
from anchorfold.evaluation.benchmarks import BENCHMARKS
from anchorfold.evaluation.methods import Method
from tests.evaluation.tiny_suites import NUMBERS, WORDS, answers_of, images_of, queries_of

FULL = Method("none", 1.0)


@cache
def loaded(folder):
    return anchorfold.load(folder, device="cpu")


def plain_scores(queries, pages):
    return np.array([[np.sum(np.max(q @ p.T, axis=1)) for p in pages] for q in queries])


def plain_ndcg(scores, answers):
    values = []
    for row, relevant in zip(scores, answers, strict=True):
        ranked = [f"p{i}" for i in np.argsort(-row)[:5]]
        gain = sum(1 / np.log2(rank + 2) for rank, page in enumerate(ranked) if page in relevant)
        values.append(gain / sum(1 / np.log2(rank + 2) for rank in range(min(5, len(relevant)))))
    return 100 * float(np.mean(values))


@cache
def page_states(folder, number, signals):
    return list(loaded(folder).page_states(images_of(number), signals))


@cache
def plain_result(folder, task, method, held_out):
    """NDCG@5 of a method on a data set with a checkpoint."""
    model, number = loaded(folder), NUMBERS[task]
    compressor = method.make()
    if not compressor.ready:
        images = [Image.fromarray(a) for a in held_out_images(held_out)]
        compressor.calibrate_on(model, images)
    states = page_states(folder, number, tuple(compressor.signals(model.settings)))
    pages = [model.compress(state, compressor).vectors.half().float().numpy() for state in states]
    queries = [q.numpy() for q in model.encode_queries(list(queries_of(number).values()))]
    return plain_ndcg(plain_scores(queries, pages), list(answers_of(number).values()))


@cache
def held_out_images(folder):
    corpus = anchorfold.evaluation.corpus.local_corpus(folder)
    return [np.asarray(image) for _, image in corpus.pages(2_000_000)]


def plain_suite(held_out, folder, suite, method):
    """NDCG@5 of a method on a suite: the mean over its data sets."""
    return fmean(plain_result(folder, t.name, method, held_out) for t in BENCHMARKS[suite].values())


def pair_retention(model, held_out, row, steps):
    """Mean of compressed over full MaxSim of the held-out pairs."""
    values = []
    fold = anchorfold.AnchorFold(0.2, window=tuple(row["window"]), steps=steps)
    for array, text in zip(held_out_images(held_out), WORDS, strict=False):
        image = Image.fromarray(array)
        (query,), (full,), (small,) = (
            model.encode_queries([text]), model.encode_pages([image]), model.encode_pages([image], fold)
        )  # fmt: skip
        before, after = plain_scores([query.numpy()], [full.vectors.numpy(), small.vectors.numpy()])[0]
        values.append(100 * after / before)
    return fmean(values)
