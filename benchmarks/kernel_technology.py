"""Alternatives to the C library: Numba and NumKong, by CPU time, import time and installed size.

python -m benchmarks.kernel_technology          # needs numba and numkong
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import files
from itertools import pairwise
from pathlib import Path

import numba
import numkong
import numpy as np

from anchorfold.quantization.codec import Coding
from anchorfold.retrieval.kernels import LIBRARY, Tokens, maxsim
from benchmarks.invented_index import random_pages
from benchmarks.kernels import instruction_sets, random_query

PAGES, TOKENS, ROUNDS = 2_000, 8, 9


@numba.njit(parallel=True, fastmath=True, nogil=True)
def numba_maxsim(codes, scales, starts, tokens):
    """Score pages with int8 codes and float32 tokens."""
    scores = np.zeros(len(starts) - 1, np.float32)
    for page in numba.prange(len(starts) - 1):
        for t in range(len(tokens)):
            best = np.float32(-np.inf)
            for row in range(starts[page], starts[page + 1]):
                total = np.float32(0)
                for i in range(codes.shape[1]):
                    total += np.float32(codes[row, i]) * tokens[t, i]
                best = max(best, total * scales[row])
            scores[page] += best
    return scores


def import_seconds(module: str) -> float:
    """Return the median seconds of an import after NumPy, in a new process."""
    code = f"import time, numpy; a = time.perf_counter(); import {module}; print(time.perf_counter() - a)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    return statistics.median(float(run.stdout) for run in runs)


def installed_bytes(*packages: str) -> int:
    """Return the size of the installed files of packages."""
    paths = [Path(str(file.locate())) for package in packages for file in files(package) or ()]
    return sum(path.stat().st_size for path in paths if path.exists())


def main() -> None:
    print(instruction_sets())
    vectors, lengths = random_pages(PAGES, 128, 40, 80)
    starts = np.concatenate(([0], lengths.cumsum())).astype(np.int64)
    query = random_query(np.random.default_rng(0), TOKENS, 128)
    runs: dict[str, Callable[[], object]] = {}
    for bits in (16, 8, 4, 2, 1):
        coding = Coding(128, bits)
        encoded, tokens = coding.encode(vectors), Tokens.of([query], coding)
        runs[f"C, {bits} bits"] = partial(maxsim, coding, *encoded, starts, np.arange(PAGES), tokens)
    coding = Coding(128, 8)
    codes, scales = coding.encode(vectors)
    levels, floats, rotated = coding.unpack(codes), scales.astype(np.float32), coding.rotate_queries(query)
    runs["Numba, 8 bits"] = partial(numba_maxsim, levels, floats, starts, rotated)
    pages = [numkong.maxsim_pack(vectors[a:b]) for a, b in pairwise(starts.tolist())]
    packed = numkong.maxsim_pack(query)
    runs["NumKong, float32"] = lambda: [numkong.maxsim_packed(packed, page) for page in pages]
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS + 1):
        for name, run in runs.items():
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    for name, values in seconds.items():
        print(f"{name}: {1000 * statistics.median(values[1:]):.2f} ms CPU")
    print(f"import: numba {import_seconds('numba'):.2f} s, numkong {import_seconds('numkong'):.3f} s, "
          f"ours {import_seconds('anchorfold.retrieval.kernels'):.3f} s")  # fmt: skip
    print(f"installed: numba and llvmlite {installed_bytes('numba', 'llvmlite') / 1e6:.0f} MB, "
          f"numkong {installed_bytes('numkong') / 1e6:.1f} MB, ours {LIBRARY.stat().st_size / 1e6:.2f} MB")  # fmt: skip


if __name__ == "__main__":
    main()
