"""What a report says, by other code: numpy, one page and query at a time."""

from functools import cache
from statistics import fmean

import numpy as np
from PIL import Image

import anchorfold
from anchorfold.attention.signals import Signal
from anchorfold.compressors import required_signals
from anchorfold.evaluation.benchmarks import BENCHMARKS
from anchorfold.evaluation.corpus import local_corpus
from anchorfold.evaluation.methods import Method, paper_methods
from anchorfold.page import PageState
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


_states: dict[tuple[str, int], tuple[set[Signal], list[PageState]]] = {}


def page_states(folder, number, signals):
    """The pages of a data set with these signals at least: those of the paper's methods come in one pass."""
    known, states = _states.get((folder, number), (set(), []))
    if not states or not set(signals) <= known:
        model = loaded(folder)
        papers = [Method(name, 0.5).make() for name in paper_methods()]
        known = {*known, *signals, *required_signals(papers, model.layer_settings)}
        states = list(model.page_states(images_of(number), known))
        _states[folder, number] = known, states
    return states


@cache
def plain_queries(folder, number):
    return [q.numpy() for q in loaded(folder).encode_queries(list(queries_of(number).values()))]


@cache
def ready_compressor(folder, method, held_out):
    compressor = method.make()
    if not compressor.ready:
        compressor.calibrate_on(loaded(folder), [Image.fromarray(a) for a in held_out_images(held_out)])
    return compressor


@cache
def plain_result(folder, task, method, held_out):
    """NDCG@5 of a method on a data set with a checkpoint."""
    model, number = loaded(folder), NUMBERS[task]
    compressor = ready_compressor(folder, method, held_out)
    states = page_states(folder, number, compressor.signals(model.layer_settings))
    pages = [model.compress_page(state, compressor).vectors.half().float().numpy() for state in states]
    return plain_ndcg(plain_scores(plain_queries(folder, number), pages), list(answers_of(number).values()))


@cache
def held_out_images(folder):
    corpus = local_corpus(folder)
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
            model.encode_queries([text]), model.encode_documents([image]), model.encode_documents([image], fold)
        )  # fmt: skip
        before, after = plain_scores([query.numpy()], [full.vectors.numpy(), small.vectors.numpy()])[0]
        values.append(100 * after / before)
    return fmean(values)
