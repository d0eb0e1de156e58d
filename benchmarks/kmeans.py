"""k-means on the device: time and inertia against scikit-learn, and the initialisation by blocks for many clusters.

    anchorfold eval CORPUS --methods none --keep-vectors -o RUN
    python -m benchmarks.kmeans RUN                        # real vectors, against scikit-learn, one thread each
    python -m benchmarks.kmeans --page 2304 1152 3072      # N, m, d of a Nemotron page at ratio 0.5

The first: 1,024 vectors in 102 clusters, eight samples of the corpus, interleaved; the first round is a warm-up. The
second: random pages, initialised by blocks and one by one; a synchronization is a value that the host waits for.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode

from anchorfold.compressors import clustering
from anchorfold.compressors.clustering import cluster_means, kmeans
from anchorfold.evaluation.methods import FULL

PIECES, VECTORS, CLUSTERS, ROUNDS = 8, 1_024, 102, 4
PAGES = 2


class Synchronizations(TorchDispatchMode):
    """Count the tensors whose value the host reads."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--page", type=int, nargs=3, metavar=("N", "m", "d"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.page:
        compare_initialisations(*arguments.page)
    elif arguments.run:
        compare_with_sklearn(arguments.run)
    else:
        parser.error("give the folder of an evaluation, or --page.")


def inertia(x: Tensor, labels: Tensor, m: int) -> float:
    centres = cluster_means(x, labels, x[:m], None)
    return float((x - centres[labels]).square().sum())


def random_page(n: int, d: int, seed: int) -> Tensor:
    """Return unit vectors around n / 8 directions, a tenth of them equal as on blank paper."""
    g = torch.Generator().manual_seed(seed)
    topics = torch.randn(n // 8, d, generator=g)
    x = topics[torch.randint(0, len(topics), (n,), generator=g)] + 0.7 * torch.randn(n, d, generator=g)
    x[: n // 10] = x[0]
    return normalize(x, dim=1)


def compare_initialisations(n: int, m: int, d: int) -> None:
    measured: dict[str, list[tuple[float, float, float, int]]] = {"blocks": [], "one by one": []}
    for seed in range(PAGES):
        x = random_page(n, d, seed)
        for name, limit in (("blocks", clustering.MAX_SEQUENTIAL), ("one by one", n)):
            with patch.object(clustering, "MAX_SEQUENTIAL", limit):
                began = time.process_time()
                clustering.initial_centres(x - x.mean(0), m, seed)
                middle = time.process_time()
                with Synchronizations() as synchronizations:
                    labels = kmeans(x, m, seed)
                ended = time.process_time()
            measured[name].append((middle - began, ended - middle, inertia(x, labels, m), synchronizations.count))
    for name, pages in measured.items():
        start, whole, cost, count = (np.median(column) for column in zip(*pages, strict=True))
        print(
            f"{name}: initialisation {start:.2f} s, k-means {whole:.2f} s per page, {count:.0f} synchronizations, ",
            end="",
        )
        print(f"inertia {cost:.3f}")
    ratios = [a[2] / b[2] for a, b in zip(*measured.values(), strict=True)]
    print(f"inertia, blocks of one by one: mean {np.mean(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})")


def compare_with_sklearn(run: Path) -> None:
    (path,) = run.rglob(f"{FULL}.vectors")
    stored = np.fromfile(path, np.float16, PIECES * VECTORS * 128, offset=100_000 * 256)
    pieces = torch.from_numpy(stored.astype(np.float32)).view(PIECES, VECTORS, 128)
    times, inertias = [], []
    with threadpool_limits(1):
        for number in range(ROUNDS):
            for piece in pieces:
                began = time.process_time()
                labels = kmeans(piece, CLUSTERS)
                ours = time.process_time() - began
                began = time.process_time()
                theirs = KMeans(CLUSTERS, n_init=1, random_state=0).fit(piece.numpy())
                if number:
                    times.append(ours / (time.process_time() - began))
                inertias.append(inertia(piece, labels, CLUSTERS) / theirs.inertia_)
    print(f"time, of scikit-learn's: median {np.median(times):.2f} ({min(times):.2f} to {max(times):.2f}); ", end="")
    print(f"inertia: mean {np.mean(inertias):.3f}")


if __name__ == "__main__":
    main()
