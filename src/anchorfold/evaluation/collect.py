"""One encoding pass: each page once, every method's vectors appended to files; an interrupted run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from anchorfold.backbones.base import Retriever
from anchorfold.compressors import Compressor, wanted_signals
from anchorfold.errors import MismatchError
from anchorfold.evaluation.corpus import Corpus
from anchorfold.evaluation.methods import Method
from anchorfold.evaluation.run_key import differences, run_key
from anchorfold.page import PageState

STATE, SAVE_EVERY = "state.json", 16
KINDS = ("vectors", "lengths")  # of files, one each a method


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
    compressors = {m.label: m.make() for m in methods}
    state = _take_up(folder, run_key(corpus, model, compressors))
    compressors |= _calibrated(compressors, corpus, model, state)
    signals = wanted_signals(compressors.values(), model.settings)
    names = {(label, kind): f"{label}.{kind}" for label in compressors for kind in KINDS}
    with ExitStack() as stack:
        files = {
            key: stack.enter_context(_cut_back(folder / name, state["sizes"].get(name, 0)))
            for key, name in names.items()
        }
        _save(folder, state)  # before the first vector: files never lie there without a state
        remaining = corpus.pages(model.page_pixels, skip=len(state["pages"]))
        while batch := list(islice(remaining, SAVE_EVERY)):
            pages = model.page_states((image for _, image in batch), signals)
            for (identity, _), page in zip(batch, pages, strict=True):
                for label, compressor in compressors.items():
                    vectors = model.compress(page, compressor).vectors.numpy().astype(np.float16)
                    files[label, "vectors"].write(vectors.tobytes())
                    files[label, "lengths"].write(np.int32(len(vectors)).tobytes())
                state["pages"].append(identity)
                if progress is not None:
                    progress(len(state["pages"]))
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
            state["sizes"] = {name: files[key].tell() for key, name in names.items()}
            _save(folder, state)
    return Collected(folder, state["pages"], model.dim)


def _take_up(folder: Path, key: dict[str, Any]) -> dict[str, Any]:
    """The state of an earlier run with the same key; a fresh one if there is none."""
    path = folder / STATE
    if not path.exists():
        return {"key": key, "pages": [], "sizes": {}, "calibrated": {}}
    try:
        state = json.loads(path.read_text())
    except ValueError as error:
        raise MismatchError(f"{path} cannot be read ({error}): choose another folder for this run (--to).") from error
    if different := differences(state.get("key", {}), key):
        raise MismatchError(f"{folder} holds another run: {different}. Choose another folder for this one (--to).")
    return state


def _cut_back(path: Path, size: int) -> BinaryIO:
    """A file open at its end, without what was written after the state was saved."""
    path.touch()
    if path.stat().st_size < size:
        raise MismatchError(f"{path} is shorter than its run has saved: choose another folder for this one (--to).")
    file = path.open("r+b")
    file.truncate(size)
    file.seek(size)
    return file


def _calibrated(
    compressors: dict[str, Compressor], corpus: Corpus, model: Retriever, state: dict[str, Any]
) -> dict[str, Compressor]:
    """Compressors that want held-out pages first, ready: from the first pages of the corpus, found once a run."""
    waiting = {label: c for label, c in compressors.items() if not c.ready}
    if waiting and not state["calibrated"]:
        count = max(c.calibration_pages for c in waiting.values())
        images = (image for _, image in islice(corpus.pages(model.page_pixels), count))
        states = model.page_states(images, wanted_signals(waiting.values(), model.settings))
        held_out = [_off_device(state) for state in states]
        for label, compressor in waiting.items():
            pages = held_out[: compressor.calibration_pages]
            state["calibrated"][label] = compressor.calibrate(pages, model.settings).options
    return {label: type(c)(**state["calibrated"][label]) for label, c in waiting.items()}


def _off_device(state: PageState) -> PageState:
    """A page in main memory, where a hundred of them have room."""
    device, project = state.hidden.device, state.project
    signals = {signal: values.cpu() for signal, values in state.signals.items()}
    return PageState(state.hidden.cpu(), lambda z: project(z.to(device)).cpu(), signals, state.grid)


def _save(folder: Path, state: dict[str, Any]) -> None:
    part = folder / f"{STATE}.part"
    with part.open("w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, folder / STATE)
