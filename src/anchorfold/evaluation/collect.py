"""One encoding pass: each page once, every method's vectors appended to files; an interrupted run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from anchorfold.backbones.base import Retriever
from anchorfold.compressors import Compressor, DocPruner, wanted_signals
from anchorfold.errors import MismatchError
from anchorfold.evaluation.corpus import Corpus
from anchorfold.evaluation.methods import Method

STATE, SAVE_EVERY, CALIBRATION_PAGES = "state.json", 16, 128


@dataclass(frozen=True)
class Collected:
    """A finished pass: page ids in order, and each method's vectors in files of `folder`."""

    folder: Path
    pages: list[str]
    dim: int

    def vectors(self, label: str) -> tuple[np.ndarray, np.ndarray]:
        """`(V, d)` float16, memory-mapped, and `(P,)` vectors a page."""
        lengths = np.fromfile(self.folder / f"{label}.lengths", np.int32)
        path = self.folder / f"{label}.vectors"
        return np.memmap(path, np.float16, "r", shape=(int(lengths.sum()), self.dim)), lengths


def collect(
    corpus: Corpus,
    model: Retriever,
    methods: Sequence[Method],
    folder: Path,
    progress: Callable[[int], None] | None = None,
) -> Collected:
    """Encode the corpus once and compress every page with every method.

    Args:
        corpus: pages and queries.
        model: the backbone.
        methods: what to compare; the full index must be among them.
        folder: where vectors go; a run that was cut short there is taken up.
        progress: told the number of pages done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    about = {"corpus": corpus.name, "model": model.name, "fingerprint": model.fingerprint, "dim": model.dim,
             "window": list(model.settings.window), "steps": model.settings.steps, "methods": [m.label for m in methods]}  # fmt: skip  # noqa: E501
    state = _take_up(folder, about)
    compressors = {m.label: m.make() for m in methods}
    _calibrate_docpruners(compressors, corpus, model, state)
    signals = wanted_signals(compressors.values(), model.settings)
    files = {(label, kind): open(folder / f"{label}.{kind}", "ab") for label in compressors for kind in ("vectors", "lengths")}  # fmt: skip  # noqa: E501, SIM115
    try:
        remaining = corpus.pages(model.page_pixels, skip=len(state["pages"]))
        while batch := list(islice(remaining, SAVE_EVERY)):
            pages = model.page_states((image for _, image in batch), signals)
            for (identity, _), page in zip(batch, pages, strict=True):
                for label, each in compressors.items():
                    vectors = model.compress(page, each).vectors.numpy().astype(np.float16)
                    files[label, "vectors"].write(vectors.tobytes())
                    files[label, "lengths"].write(np.int32(len(vectors)).tobytes())
                state["pages"].append(identity)
                if progress is not None:
                    progress(len(state["pages"]))
            for file in files.values():
                file.flush()
            state["sizes"] = {f"{label}.{kind}": file.tell() for (label, kind), file in files.items()}
            _save(folder, state)
    finally:
        for file in files.values():
            file.close()
    return Collected(folder, state["pages"], model.dim)


def _take_up(folder: Path, about: dict[str, object]) -> dict:
    """The state of an earlier run, its files cut back to what it had saved; a fresh state if there is none."""
    path = folder / STATE
    if not path.exists():
        return {"about": about, "pages": [], "sizes": {}, "thresholds": {}}
    state = json.loads(path.read_text())
    if state["about"] != about:
        different = next(k for k in about if state["about"].get(k) != about[k])
        raise MismatchError(
            f"{folder} holds a run with another {different} ({state['about'].get(different)}, now {about[different]}): "
            "choose another folder for this one."
        )
    for name, size in state["sizes"].items():
        os.truncate(folder / name, size)
    return state


def _calibrate_docpruners(compressors: dict[str, Compressor], corpus: Corpus, model: Retriever, state: dict) -> None:
    """DocPruner's thresholds from the first 128 pages of the corpus, found once a run."""
    waiting = {label: c for label, c in compressors.items() if isinstance(c, DocPruner)}
    if not waiting:
        return
    if not state["thresholds"]:
        wanted = next(iter(waiting.values())).signals(model.settings)
        images = (image for _, image in islice(corpus.pages(model.page_pixels), CALIBRATION_PAGES))
        found = [s.mean_signal(wanted) for s in model.page_states(images, wanted)]
        for label, each in waiting.items():
            state["thresholds"][label] = each.calibrate(iter(found)).threshold
    for label, each in waiting.items():
        each.threshold = state["thresholds"][label]


def _save(folder: Path, state: dict) -> None:
    part = folder / f"{STATE}.part"
    part.write_text(json.dumps(state))
    os.replace(part, folder / STATE)
