"""Appendix E's latency protocol: what a method adds to indexing a page.

Thirty pages warm up, then three passes over a fixed sample of 200 pages (as many of each data set, seed 42), one page
at a time, each method in a process of its own. Inputs are prepared and on the device before the clock runs, and what
is made stays there. Encoding ends with the retrieval projection. Compression is what the method does after that, and
what the attention tap does for it inside the layers. CUDA is synchronised around both.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from anchorfold.attention.layer_settings import UncalibratedWarning
from anchorfold.attention.listening_time import measured_listening
from anchorfold.backbones.base import Retriever
from anchorfold.backbones.causality import CausalBackboneWarning
from anchorfold.compressors import Compressor
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.benchmarks import find_corpora
from anchorfold.evaluation.corpus import local_corpus
from anchorfold.evaluation.held_out import find_held_out, ready_compressors, sample_pages
from anchorfold.evaluation.methods import Method

EFFICIENCY_FILE = "efficiency.json"


@dataclass(frozen=True)
class Latency:
    """Milliseconds a page: mean over all, SD of the passes' means, 95th percentile of the total.

    `realised` is the share of vectors that was kept on the sample, in percent; `megabytes` peak memory.
    """

    method: str
    compression: float
    compression_sd: float
    total: float
    total_sd: float
    p95: float
    realised: float
    megabytes: float


def synchronise(device: torch.device) -> None:
    """Wait for a GPU's work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.no_grad()
def time_method(
    model: Retriever, label: str, compressor: Compressor, images: Sequence[Image.Image], warm_up: int, passes: int
) -> Latency:
    """Run the protocol for one method in this process."""
    signals = list(compressor.signals(model.settings))
    if signals:
        model.warn_if_causal()  # before the clock runs
    batches = [model.prepare_pages([image]) for image in images]
    totals: list[list[float]] = []
    compressions: list[list[float]] = []
    vectors = stored = 0
    for number in range(passes + 1):
        total, compression = [], []
        for batch in batches[:warm_up] if number == 0 else batches:
            with measured_listening() as listened:
                synchronise(model.device)
                began = time.perf_counter()
                (state,) = model.prepared_states(batch, signals)
                full = state.embeddings  # the projection belongs to encoding, whichever method asks for it first
                synchronise(model.device)
                encoded = time.perf_counter()
                small = compressor.compress(state, model.settings).vectors
                synchronise(model.device)
                ended = time.perf_counter()
            total.append(1000 * (ended - began))
            compression.append(1000 * (ended - encoded + listened.seconds))
            vectors, stored = vectors + len(full), stored + len(small)
        if number:
            totals.append(total)
            compressions.append(compression)
        else:
            vectors = stored = 0
    if model.device.type == "cuda":
        memory = torch.cuda.max_memory_allocated(model.device) / 1e6
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1_000_000 if sys.platform == "darwin" else 1000)
    spread = statistics.stdev if passes > 1 else (lambda _: 0.0)
    means, compression_means = ([statistics.fmean(p) for p in times] for times in (totals, compressions))
    ordered = sorted(t for times in totals for t in times)
    return Latency(
        label, statistics.fmean(compression_means), spread(compression_means), statistics.fmean(means), spread(means),
        ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 100 * stored / max(vectors, 1), memory,
    )  # fmt: skip


def run_apart(job: dict[str, Any]) -> tuple[Latency, dict[str, Any]]:
    """The protocol for one method in a process of its own, and what the model says of itself.

    Args:
        job: `model` with `options` to load it, `corpus`, `method`, `sizes` (pages, warm-up, passes), `calibration`, and
            `store`, a file for what calibration finds.
    """
    done = subprocess.run(
        [sys.executable, "-m", "anchorfold.evaluation.efficiency", json.dumps(job)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise AnchorFoldError(f"timing {Method(**job['method']).label} failed: {reason}")
    answer = json.loads(done.stdout.splitlines()[-1])
    for text in answer["warnings"]:
        warnings.warn(text, stacklevel=2)
    return Latency(**answer["latency"]), answer["header"]


def run_job(job: dict[str, Any]) -> tuple[Latency, dict[str, Any]]:
    """As `run_apart`, in this process."""
    from anchorfold.backbones import load

    model = load(job["model"], **job["options"])
    sample, warm_up, passes = job["sizes"]
    corpora = find_corpora(job["corpus"]) or [local_corpus(job["corpus"])]
    method = Method(**job["method"])
    held_out = find_held_out(job["calibration"], corpora, model.page_pixels) if not method.make().ready else None
    compressors, calibrated_on = ready_compressors([method], model, held_out, Path(job["store"]))
    images = [image.convert("RGB") for image in sample_pages(corpora, model.page_pixels, sample)]
    latency = time_method(model, method.label, compressors[method.label], images, warm_up, passes)
    header = {
        "model": model.name, "family": model.family, "fingerprint": model.fingerprint, "device": str(model.device),
        "dtype": str(model.dtype), "pages": len(images), "calibrated_on": calibrated_on,
        "layer_settings": str(model.settings),
    }  # fmt: skip
    return latency, header


def main() -> None:
    """Time one method, given as JSON; prints its latency, and what the model warns of, as JSON."""
    with warnings.catch_warnings(record=True) as caught:
        latency, header = run_job(json.loads(sys.argv[1]))
    ours = [str(w.message) for w in caught if issubclass(w.category, (CausalBackboneWarning, UncalibratedWarning))]
    print(json.dumps({"latency": asdict(latency), "header": header, "warnings": ours}))


if __name__ == "__main__":
    main()
