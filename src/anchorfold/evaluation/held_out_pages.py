"""Held-out pages for the calibration of methods such as DocPruner, once per evaluation."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from anchorfold.backbones.base import BackboneEncoder
from anchorfold.compressors import COMPRESSORS, Compressor, required_signals
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.benchmarks import find_corpora
from anchorfold.evaluation.corpus import QUERIES_FILE, Corpus, local_corpus
from anchorfold.evaluation.methods import Method
from anchorfold.evaluation.run_folder import write_json
from anchorfold.evaluation.training_set import SEED, TRAINING_SET, Report, require_training_set, training_images
from anchorfold.page import PageState


@dataclass(frozen=True)
class HeldOutPages:
    """Pages from `source`; `evaluated` if they are among the evaluated pages."""

    source: str
    images: Callable[[int], Iterator[Image.Image]]
    evaluated: bool = False


def find_held_out(
    source: str | None, corpora: Sequence[Corpus], pixels: int, report: Report = lambda _: None
) -> HeldOutPages:
    """Find pages of a folder, a benchmark or a data set.

    Args:
        source: folder, benchmark or data set; None for the ColPali training set or, without a hub, the evaluated pages.
        corpora: the evaluated corpora.
        pixels: approximate pixels per page.
        report: as in `sample_rows`.
    """
    if source is not None:
        held_out = find_corpora(source)
        if held_out is None and (Path(source) / QUERIES_FILE).is_file():
            held_out = [local_corpus(source)]
        if held_out is None:
            return HeldOutPages(source, lambda count: training_images(source, count, report=report))
        return HeldOutPages(source, lambda count: iter(sample_pages(held_out, pixels, count)))
    try:
        require_training_set()
    except AnchorFoldError:
        return HeldOutPages(
            "the evaluated pages", lambda count: iter(sample_pages(corpora, pixels, count)), evaluated=True
        )
    return HeldOutPages(TRAINING_SET, lambda count: training_images(TRAINING_SET, count, report=report))


def sample_pages(corpora: Sequence[Corpus], pixels: int, count: int, seed: int = SEED) -> list[Image.Image]:
    """Sample an equal number of pages from each corpus without replacement, in corpus order."""
    images = []
    for corpus, share in zip(corpora, split_evenly(count, len(corpora)), strict=True):
        names = corpus.names()
        chosen = set(random.Random(seed).sample(names, min(share, len(names))))
        images += [image for _, image in corpus.pages(pixels, only=chosen)]
    return images


def split_evenly(count: int, parts: int) -> list[int]:
    """Split `count` into `parts` numbers that differ by at most one.

    >>> split_evenly(10, 4)
    [3, 3, 2, 2]
    """
    return [count // parts + (i < count % parts) for i in range(parts)]


def calibrated_compressors(
    methods: Sequence[Method],
    model: BackboneEncoder,
    held_out: HeldOutPages | None,
    store: Path,
    batch: int | None = None,
) -> tuple[dict[str, Compressor], str]:
    """Return calibrated compressors by label, and the source of the calibration pages.

    Args:
        methods: the methods.
        model: the backbone.
        held_out: pages for methods that need calibration.
        store: cache file of the calibrated options.
        batch: batch size in pages; the model's default if None.
    """
    compressors = {method.label: method.make() for method in methods}
    waiting = {label: c for label, c in compressors.items() if not c.ready}
    if not waiting:
        return compressors, ""
    if held_out is None:
        raise AnchorFoldError(f"{', '.join(waiting)} needs held-out pages: use --calibration.")
    count = max(c.calibration_pages for c in waiting.values())
    key = {
        "model": f"{model.family} {model.fingerprint} in {model.dtype} on {model.device.type}",
        "layers": model.layer_settings.layers,
        "pages": [held_out.source, count, SEED],
        "methods": {label: [c.name, c.options] for label, c in waiting.items()},
    }
    options = _stored(store, key)
    if options is None:
        signals = required_signals(waiting.values(), model.layer_settings)
        states = [state_on_cpu(state) for state in model.page_states(held_out.images(count), signals, batch)]
        for compressor in waiting.values():
            compressor.calibrate(states[: compressor.calibration_pages], model.layer_settings)
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


def state_on_cpu(state: PageState) -> PageState:
    """Copy a page to main memory."""
    device, project = state.hidden.device, state.project
    signals = {signal: values.cpu() for signal, values in state.signals.items()}
    return PageState(state.hidden.cpu(), lambda z: project(z.to(device)).cpu(), signals, state.grid)
