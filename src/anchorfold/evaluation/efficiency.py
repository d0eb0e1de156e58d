"""Latency protocol of appendix E: the time that a method adds to indexing a page.

30 warm-up pages, then three passes over a fixed sample of 200 pages (equal shares per data set, seed 42), one page per
forward pass, one subprocess per method. Inputs are on the device before timing, and outputs stay there. Encoding ends
with the retrieval projection. Attention capture inside the layers is measured apart from the rest of the forward
pass; compression begins when the backbone's outputs are available, as in the paper. The three sum to the total. CUDA
is synchronized around the forward pass and around compression.
"""

from __future__ import annotations

import json
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

from anchorfold.attention.capture_time import measure_capture_time
from anchorfold.backbones.base import BackboneEncoder
from anchorfold.compressors import Compressor
from anchorfold.errors import AnchorFoldError, CausalBackboneWarning, UncalibratedWarning
from anchorfold.evaluation.benchmarks import find_corpora
from anchorfold.evaluation.corpus import local_corpus
from anchorfold.evaluation.held_out_pages import calibrated_compressors, find_held_out, sample_pages
from anchorfold.evaluation.layer_choice import choose_layers
from anchorfold.evaluation.methods import Method

EFFICIENCY_FILE = "efficiency.json"


@dataclass(frozen=True)
class Latency:
    """Milliseconds per page: means over all pages, SD of the means of the passes, 95th percentile of the total.

    The total is encoding (without capture), capture and compression. `vectors` is the number of vectors of the sample
    in the full index, `realised` the share kept in percent, `megabytes` the peak memory.
    """

    method: str
    encoding: float
    encoding_sd: float
    capture: float
    capture_sd: float
    compression: float
    compression_sd: float
    total: float
    total_sd: float
    p95: float
    vectors: int
    realised: float
    megabytes: float


def synchronize(device: torch.device) -> None:
    """Wait until the GPU has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.no_grad()
def time_method(
    model: BackboneEncoder, label: str, compressor: Compressor, images: Sequence[Image.Image], warm_up: int, passes: int
) -> Latency:
    """Run the protocol for one method in this process."""
    signals = list(compressor.signals(model.layer_settings))
    if signals:
        model.warn_if_causal()  # before timing
    batches = [model.prepare_pages([image]) for image in images]
    times: list[list[list[float]]] = []  # per pass and page: encoding, capture, compression
    vectors = stored = 0
    for number in range(passes + 1):
        vectors = stored = 0
        pages = []
        for batch in batches[:warm_up] if number == 0 else batches:
            with measure_capture_time() as capture:
                synchronize(model.device)
                began = time.perf_counter()
                (state,) = model.prepared_states(batch, signals)
                full = state.embeddings  # projection is part of encoding
                synchronize(model.device)
                encoded = time.perf_counter()
                small = compressor.compress(state, model.layer_settings).vectors
                synchronize(model.device)
                ended = time.perf_counter()
            seconds = (encoded - began - capture.seconds, capture.seconds, ended - encoded)
            pages.append([1000 * s for s in seconds])
            vectors, stored = vectors + len(full), stored + len(small)
        if number:
            times.append(pages)
    if model.device.type == "cuda":
        memory = torch.cuda.max_memory_allocated(model.device) / 1e6
    else:
        import resource  # not on Windows

        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1_000_000 if sys.platform == "darwin" else 1000)
    spread = statistics.stdev if passes > 1 else (lambda _: 0.0)
    means = [[statistics.fmean(part) for part in zip(*pages, strict=True)] for pages in times]
    parts = [*zip(*means, strict=True), [sum(parts) for parts in means]]
    ordered = sorted(sum(page) for pages in times for page in pages)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    names = ("encoding", "capture", "compression", "total")
    figures = {name: statistics.fmean(part) for name, part in zip(names, parts, strict=True)}
    figures |= {f"{name}_sd": spread(part) for name, part in zip(names, parts, strict=True)}
    realised = 100 * stored / max(vectors, 1)
    return Latency(label, **figures, p95=p95, vectors=vectors, realised=realised, megabytes=memory)


def run_in_subprocess(job: dict[str, Any]) -> tuple[Latency, dict[str, Any]]:
    """Run the protocol for one method in a subprocess.

    Returns the latency and a description of the model.

    Args:
        job: `model`, load `options`, `corpus`, `method`, layer `settings`, `sizes` (pages, warm-up, passes),
            `calibration` source, and `store`, the cache file of calibrated options.
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


def run_in_process(job: dict[str, Any]) -> tuple[Latency, dict[str, Any]]:
    """Run the protocol for one method in this process; see `run_in_subprocess`."""
    from anchorfold.backbones import load

    model = load(job["model"], **job["options"])
    sample, warm_up, passes = job["sizes"]
    corpora = find_corpora(job["corpus"]) or [local_corpus(job["corpus"])]
    choose_layers(model, job["settings"], corpora)
    method = Method(**job["method"])
    held_out = find_held_out(job["calibration"], corpora, model.page_pixels) if not method.make().ready else None
    compressors, calibrated_on = calibrated_compressors([method], model, held_out, Path(job["store"]), batch=1)
    images = [image.convert("RGB") for image in sample_pages(corpora, model.page_pixels, sample)]
    latency = time_method(model, method.label, compressors[method.label], images, warm_up, passes)
    header = {
        "model": model.name, "family": model.family, "fingerprint": model.fingerprint, "device": str(model.device),
        "dtype": str(model.dtype), "pages": len(images), "calibrated_on": calibrated_on,
        "layer_settings": str(model.layer_settings),
    }  # fmt: skip
    return latency, header


def main() -> None:
    """Time one method, given as JSON; print its latency and the model's warnings as JSON."""
    with warnings.catch_warnings(record=True) as caught:
        latency, header = run_in_process(json.loads(sys.argv[1]))
    ours = [str(w.message) for w in caught if issubclass(w.category, (CausalBackboneWarning, UncalibratedWarning))]
    print(json.dumps({"latency": asdict(latency), "header": header, "warnings": ours}))


if __name__ == "__main__":
    main()
