"""Control experiment for AGC: NDCG@5 with trained tokens, untrained tokens and random anchors.

    python -m training.colqwen25.controls AGC_MODEL PLAIN_MODEL CORPUS --cap 4

Trained tokens: the model trained with universal tokens. Untrained tokens: the model trained without them, with the same
number of random tokens. Random anchors: random centroids and weights, on the vectors of either model. Clustering and
averaging are those of AGC in all cases.
"""

from __future__ import annotations

import argparse
import tempfile
import zlib
from pathlib import Path

import torch

import anchorfold
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones.colqwen import ColQwen
from anchorfold.compressors import AGC
from anchorfold.compressors.agc import cluster
from anchorfold.compressors.base import BudgetCompressor
from anchorfold.core.fold import CompressedPage
from anchorfold.page import PageState
from training.colqwen25.pairs import Validation, corpus_rows, validation_of
from training.colqwen25.validation import ndcg_at_5


class RandomAnchors(BudgetCompressor):
    """AGC with random saliency, deterministic per page."""

    name = "random-anchors"

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> CompressedPage:
        """Cluster around random centroids with random weights."""
        seed = zlib.crc32(page.embeddings.numpy().tobytes())
        saliency = torch.rand(len(page), generator=torch.Generator().manual_seed(seed))
        return cluster(page.embeddings, saliency, m)


def controlled_ndcg(agc: Path, plain: Path, validation: Validation, cap: int, batch_size: int = 16) -> dict[str, float]:
    """Compute NDCG@5 of models trained with and without universal tokens, and of random anchors on both."""
    trained, untrained = (anchorfold.load(folder, device="cpu") for folder in (agc, plain))
    assert isinstance(untrained, ColQwen)
    untrained.add_universal_tokens(trained.layer_settings.universal)
    columns = {
        "trained tokens": (trained, AGC(cap=cap)),
        "untrained tokens": (untrained, AGC(cap=cap)),
        "random anchors, model trained with tokens": (trained, RandomAnchors(cap=cap)),
        "random anchors, model trained without": (untrained, RandomAnchors(cap=cap)),
    }
    return {name: ndcg_at_5(model, validation, method, batch_size) for name, (model, method) in columns.items()}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agc", type=Path)
    parser.add_argument("plain", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--cap", type=int, default=128)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        validation = validation_of(corpus_rows(arguments.corpus, Path(folder), pixels=2_000_000))
        for name, value in controlled_ndcg(arguments.agc, arguments.plain, validation, arguments.cap).items():
            print(f"{value:.3f}  {name}")


if __name__ == "__main__":
    main()
