"""Held-out pages: what methods such as DocPruner are calibrated on, once for all data sets of an evaluation."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from anchorfold.backbones.base import Retriever
from anchorfold.compressors import COMPRESSORS, Compressor, wanted_signals
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.benchmarks import find_corpora
from anchorfold.evaluation.corpus import QUERIES_FILE, Corpus, local_corpus
from anchorfold.evaluation.methods import Method
from anchorfold.evaluation.run_folder import write_json
from anchorfold.evaluation.training_set import SEED, TRAINING_SET, training_images
from anchorfold.page import PageState


@dataclass(frozen=True)
class HeldOut:
    """Some pages. `source` says which, for the report; `evaluated` that they are among those that are evaluated."""

    source: str
    images: Callable[[int], Iterator[Image.Image]]
    evaluated: bool = False


def find_held_out(source: str | None, corpora: Sequence[Corpus], pixels: int) -> HeldOut:
    """Pages of a folder, a benchmark or a data set.

    Args:
        source: which; None for the ColPali training set or, where no hub can be reached, the evaluated pages.
        corpora: what is evaluated.
        pixels: of a page, about.
    """
    if source is not None:
        held_out = find_corpora(source)
        if held_out is None and (Path(source) / QUERIES_FILE).is_file():
            held_out = [local_corpus(source)]
        if held_out is None:
            return HeldOut(source, lambda count: training_images(source, count))
        return HeldOut(source, lambda count: iter(sample_pages(held_out, pixels, count)))
    try:
        next(training_images(TRAINING_SET, 1))
    except AnchorFoldError:
        return HeldOut("the evaluated pages", lambda count: iter(sample_pages(corpora, pixels, count)), evaluated=True)
    return HeldOut(TRAINING_SET, lambda count: training_images(TRAINING_SET, count))


def sample_pages(corpora: Sequence[Corpus], pixels: int, count: int, seed: int = SEED) -> list[Image.Image]:
    """A fixed choice of as many pages from each corpus, uniformly without replacement, in its own order."""
    images = []
    for corpus, share in zip(corpora, even_shares(count, len(corpora)), strict=True):
        names = corpus.names()
        chosen = set(random.Random(seed).sample(names, min(share, len(names))))
        images += [image for _, image in corpus.pages(pixels, only=chosen)]
    return images


def even_shares(count: int, parts: int) -> list[int]:
    """`count` as `parts` numbers that differ by at most one.

    >>> even_shares(10, 4)
    [3, 3, 2, 2]
    """
    return [count // parts + (i < count % parts) for i in range(parts)]


def ready_compressors(
    methods: Sequence[Method], model: Retriever, held_out: HeldOut | None, store: Path
) -> tuple[dict[str, Compressor], str]:
    """Every method's compressor by its label, ready for the first page; and what was calibrated on, if anything was.

    Args:
        methods: which.
        model: the backbone.
        held_out: pages for those that want some.
        store: a file that keeps what was found, so that a run that goes on need not find it again.
    """
    compressors = {method.label: method.make() for method in methods}
    waiting = {label: c for label, c in compressors.items() if not c.ready}
    if not waiting:
        return compressors, ""
    if held_out is None:
        raise AnchorFoldError(f"{', '.join(waiting)} needs held-out pages: name some (--calibration).")
    count = max(c.calibration_pages for c in waiting.values())
    key = {
        "model": f"{model.family} {model.fingerprint} in {model.dtype} on {model.device.type}",
        "layers": model.settings.layers,
        "pages": [held_out.source, count, SEED],
        "methods": {label: [c.name, c.options] for label, c in waiting.items()},
    }
    options = _stored(store, key)
    if options is None:
        signals = wanted_signals(waiting.values(), model.settings)
        states = [_off_device(state) for state in model.page_states(held_out.images(count), signals)]
        for compressor in waiting.values():
            compressor.calibrate(states[: compressor.calibration_pages], model.settings)
        options = {label: c.options for label, c in waiting.items()}
        write_json(store, {"key": key, "options": options})
    restored = {label: COMPRESSORS[c.name](**options[label]) for label, c in waiting.items()}
    return compressors | restored, held_out.source


def _stored(store: Path, key: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    if not store.is_file():
        return None
    try:
        stored = json.loads(store.read_text())
    except ValueError:
        return None
    return stored["options"] if stored.get("key") == json.loads(json.dumps(key)) else None


def _off_device(state: PageState) -> PageState:
    """A page in main memory, where a hundred of them have room."""
    device, project = state.hidden.device, state.project
    signals = {signal: values.cpu() for signal, values in state.signals.items()}
    return PageState(state.hidden.cpu(), lambda z: project(z.to(device)).cpu(), signals, state.grid)
