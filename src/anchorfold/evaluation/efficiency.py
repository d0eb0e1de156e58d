"""Appendix E's latency protocol: what a method adds to indexing a page.

Thirty pages warm up, then three passes over a fixed sample of 200 pages (seed 42), each method in a process of its own.
Inputs are prepared and on the device before the clock runs. Compression is timed apart from the whole, from the moment
that the backbone's outputs are there; what the attention tap does inside the layers is part of the whole. CUDA is
synchronised around both.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from PIL import Image

from anchorfold.attention.layer_settings import UncalibratedWarning
from anchorfold.backbones.base import CausalBackboneWarning, Retriever
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.benchmarks import find_corpora
from anchorfold.evaluation.corpus import Corpus, local_corpus
from anchorfold.evaluation.methods import Method

WARM_UP, SAMPLE, PASSES, SEED = 30, 200, 3, 42


@dataclass(frozen=True)
class Latency:
    """Milliseconds a page: mean over all, SD of the passes' means, 95th percentile; peak memory in megabytes."""

    method: str
    compression: float
    compression_sd: float
    total: float
    total_sd: float
    p95: float
    megabytes: float


def sample_pages(corpora: Sequence[Corpus], pixels: int, count: int = SAMPLE) -> list[Image.Image]:
    """The manifest: a fixed choice of as many pages from each data set, in its own order."""
    found = []
    for corpus, share in zip(corpora, even_shares(count, len(corpora)), strict=True):
        ids = corpus.ids()
        chosen = set(random.Random(SEED).sample(ids, min(share, len(ids))))
        found += [image for _, image in corpus.pages(pixels, only=chosen)]
    return found


def even_shares(count: int, parts: int) -> list[int]:
    """`count` as `parts` numbers that differ by at most one."""
    return [count // parts + (i < count % parts) for i in range(parts)]


def synchronise(device: torch.device) -> None:
    """Wait for a GPU's work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_method(model: Retriever, method: Method, images: Sequence[Image.Image], warm_up: int, passes: int) -> Latency:
    """Run the protocol for one method in this process."""
    each = method.make()
    if not each.ready:
        each.calibrate_on(model, images[: each.calibration_pages])
    signals = list(each.signals(model.settings))
    if signals:
        model.warn_if_causal()  # before the clock runs
    batches = [model.prepare_pages([image]) for image in images]
    totals: list[list[float]] = []
    folds: list[list[float]] = []
    for number in range(passes + 1):
        total, fold = [], []
        for batch in batches[:warm_up] if number == 0 else batches:
            synchronise(model.device)
            began = time.perf_counter()
            (state,) = model.prepared_states(batch, signals)
            synchronise(model.device)
            encoded = time.perf_counter()
            model.compress(state, each)
            synchronise(model.device)
            ended = time.perf_counter()
            total.append(1000 * (ended - began))
            fold.append(1000 * (ended - encoded))
        if number:
            totals.append(total)
            folds.append(fold)
    if model.device.type == "cuda":
        memory = torch.cuda.max_memory_allocated(model.device) / 1e6
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1_000_000 if sys.platform == "darwin" else 1000)
    means, fold_means = [statistics.fmean(t) for t in totals], [statistics.fmean(f) for f in folds]
    spread = statistics.stdev if passes > 1 else (lambda _: 0.0)
    every = sorted(t for each_pass in totals for t in each_pass)
    return Latency(
        method.label, statistics.fmean(fold_means), spread(fold_means), statistics.fmean(means), spread(means),
        every[min(len(every) - 1, int(0.95 * len(every)))], memory,
    )  # fmt: skip


def run_apart(model: str, corpus: str, method: Method, sizes: tuple[int, int, int], options: dict[str, Any]) -> Latency:
    """The same in a process of its own."""
    job = json.dumps({"model": model, "corpus": corpus, "method": asdict(method), "sizes": sizes, "options": options})
    done = subprocess.run(
        [sys.executable, "-m", "anchorfold.evaluation.efficiency", job], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AnchorFoldError(
            f"timing {method.label} failed: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}"
        )
    result = json.loads(done.stdout.splitlines()[-1])
    for text in result["warnings"]:
        warnings.warn(text, stacklevel=2)
    return Latency(**result["latency"])


def main() -> None:
    """Time one method, given as JSON; prints its latency, and what the model warns of, as JSON."""
    from anchorfold.backbones import load

    job = json.loads(sys.argv[1])
    with warnings.catch_warnings(record=True) as caught:
        model = load(job["model"], **job["options"])
        sample, warm_up, passes = job["sizes"]
        corpora = find_corpora(job["corpus"]) or [local_corpus(job["corpus"])]
        images = [image.convert("RGB") for image in sample_pages(corpora, model.page_pixels, sample)]
        latency = time_method(model, Method(**job["method"]), images, warm_up, passes)
    ours = [str(w.message) for w in caught if issubclass(w.category, (CausalBackboneWarning, UncalibratedWarning))]
    print(json.dumps({"latency": asdict(latency), "warnings": ours}))


if __name__ == "__main__":
    main()
