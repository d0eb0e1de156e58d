"""k-means on the device against scikit-learn's: time and tightness on real vectors, one thread each.

    anchorfold eval CORPUS --methods none --keep-vectors --to RUN
    python -m benchmarks.kmeans RUN

1,024 vectors into 102 clusters, eight pieces of the corpus, interleaved; the first round warms up.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from anchorfold.compressors.kmeans import kmeans, means
from anchorfold.evaluation.methods import FULL

PIECES, VECTORS, CLUSTERS, ROUNDS = 8, 1_024, 102, 4


def main() -> None:
    (path,) = Path(sys.argv[1]).rglob(f"{FULL}.vectors")
    stored = np.fromfile(path, np.float16, PIECES * VECTORS * 128, offset=100_000 * 256)
    pieces = torch.from_numpy(stored.astype(np.float32)).view(PIECES, VECTORS, 128)
    torch.set_num_threads(1)
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
                centres = means(piece, labels, piece[:CLUSTERS], None)
                inertias.append(float((piece - centres[labels]).square().sum()) / theirs.inertia_)
    print(f"time, of scikit-learn's: median {np.median(times):.2f} ({min(times):.2f} to {max(times):.2f}); ", end="")
    print(f"inertia: mean {np.mean(inertias):.3f}")


if __name__ == "__main__":
    main()
