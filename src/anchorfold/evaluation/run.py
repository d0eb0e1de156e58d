"""Evaluation of methods on one corpus with one backbone: score, measure, save."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from anchorfold.backbones.base import BackboneEncoder
from anchorfold.compressors import Compressor
from anchorfold.evaluation.corpus import Corpus
from anchorfold.evaluation.methods import FULL, Method
from anchorfold.evaluation.metrics import measure
from anchorfold.evaluation.results import RESULTS_FILE, Row, save, summarize
from anchorfold.evaluation.score_pages import score_pages

SURE = 8  # pages before the first estimate


@dataclass(frozen=True)
class RunPlan:
    """Size of a run on one corpus."""

    corpus: str
    pages: int
    queries: int
    methods: int

    @classmethod
    def of(cls, corpus: Corpus, methods: int) -> RunPlan:
        """Plan a run without rendering pages."""
        return cls(corpus.name, len(corpus.names()), len(corpus.queries), methods)

    @property
    def bytes(self) -> int:
        """Bytes of the score files."""
        return 4 * self.methods * self.pages * (self.queries + 1)

    def __str__(self) -> str:
        return (
            f"{self.corpus}: {self.pages:,} pages x {self.queries:,} queries x {self.methods} methods, "
            f"{self.bytes / 1e6:,.0f} MB of scores"
        )


def progress_line(plan: RunPlan, clock: Callable[[], float] = time.monotonic) -> Callable[[int], str]:
    """Return a function that formats progress and the estimated time left."""
    first: list[tuple[int, float]] = []

    def line(done: int) -> str:
        now = clock()
        if not first:
            first.append((done, now))  # excludes resumed pages and the model's warm-up
        before, began = first[0]
        text = f"{plan.corpus}: {done:,} of {plan.pages:,} pages"
        if done - before < SURE or now <= began:
            return text
        pace = (done - before) / (now - began)
        return f"{text}, {pace:.2g} per second, {duration((plan.pages - done) / pace)} left"

    return line


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(40), duration(1500), duration(9000)
    ('about 40 s', 'about 25 min', 'about 2.5 h')
    """
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


CALIBRATED_FILE = "calibrated-methods.json"


def model_folder(base: Path, model: BackboneEncoder) -> Path:
    """Return the results folder of a model, unique per fingerprint."""
    return base / f"{slug(Path(model.name).name)}-{model.fingerprint[:8]}"


def slug(text: str) -> str:
    """Convert text to part of a file name.

    >>> slug("ESG Reports (Human)")
    'ESG-Reports-Human'
    """
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")


def describe_environment(model: BackboneEncoder) -> str:
    """Return the versions, the precision and the device of a run."""
    versions = [f"{name} {version(name)}" for name in ("anchorfold", "torch", "transformers")]
    is_gpu = model.device.type == "cuda"
    device = torch.cuda.get_device_name(model.device) if is_gpu else platform.processor() or platform.machine()
    dtype = str(model.dtype).removeprefix("torch.")
    return f"{', '.join(versions)}, Python {platform.python_version()}; {dtype} on {model.device.type} ({device})"


def evaluate(
    corpus: Corpus,
    model: BackboneEncoder,
    methods: Sequence[Method],
    compressors: Mapping[str, Compressor],
    folder: Path,
    report_progress: Callable[[str], None],
    *,
    calibrated_on: str = "",
    experiment: str = "methods",
    batch: int | None = None,
    loaders: int = 0,
    keep_vectors: bool = False,
) -> list[Row]:
    """Evaluate methods on a corpus; save the results in `folder` and return one row per method.

    Args:
        corpus: pages and queries.
        model: the backbone.
        methods: methods to compare, including the full index.
        compressors: calibrated compressors of the methods by label.
        folder: folder of this run.
        report_progress: called with progress messages.
        calibrated_on: source of the calibration pages.
        experiment: `methods`, `variants`, `windows` or `depths`.
        batch: as in `score_pages`.
        loaders: as in `score_pages`.
        keep_vectors: as in `score_pages`.
    """
    plan = RunPlan.of(corpus, len(methods))
    line = progress_line(plan)
    scored = score_pages(
        corpus, model, compressors, folder, calibrated_on=calibrated_on, batch=batch, loaders=loaders,
        keep_vectors=keep_vectors, progress=lambda done: report_progress(line(done)),
    )  # fmt: skip
    report_progress(f"{corpus.name}: measuring")
    measured = measure(scored, corpus.queries, [m.label for m in methods])
    rows = summarize(measured, methods, corpus, model.family)
    header = {
        "experiment": experiment, "corpus": corpus.name, "benchmark": corpus.benchmark, "model": model.name,
        "family": model.family, "fingerprint": model.fingerprint, "universal": model.layer_settings.universal,
        "layers": model.layer_settings.layers, "window": model.layer_settings.window,
        "sap_window": model.layer_settings.sap_window, "steps": model.layer_settings.steps,
        "source": model.layer_settings.source, "layer_settings": str(model.layer_settings),
        "calibrated_on": calibrated_on, "pages": len(scored.pages), "queries_asked": len(corpus.queries),
        "full_vectors": measured[FULL].vectors, "dim": scored.dim, "environment": describe_environment(model),
    }  # fmt: skip
    save(folder / RESULTS_FILE, header, rows, measured)
    return rows
