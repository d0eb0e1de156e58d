"""What training AGC is worth: NDCG@5 of a trained model beside the same one without what it learnt.

    python -m training.colqwen25.controls MODEL CORPUS --cap 4

Trained: the model as it is. Untrained tokens: its universal tokens drawn anew. Random anchors: centroids and weights by
chance, on the trained model's vectors; clustering and averaging are AGC's in all three.
"""

from __future__ import annotations

import argparse
import tempfile
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

import anchorfold
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones.universal import draw_rows, universal_token
from anchorfold.compressors import AGC
from anchorfold.compressors.agc import cluster
from anchorfold.compressors.base import BudgetCompressor
from anchorfold.fold import Folded
from anchorfold.page import PageState
from training.colqwen25.pairs import Validation, corpus_rows, validation_of
from training.colqwen25.validation import ndcg_at_5


class RandomAnchors(BudgetCompressor):
    """AGC with saliency by chance, the same for the same page."""

    name = "random-anchors"

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> Folded:
        """Random centroids, random weights."""
        seed = zlib.crc32(page.embeddings.numpy().tobytes())
        saliency = torch.rand(len(page), generator=torch.Generator().manual_seed(seed))
        return cluster(page.embeddings, saliency, m)


@torch.no_grad()
def forget_tokens(retriever: Any) -> None:
    """Draw the universal tokens of a loaded model anew, in place."""
    count = retriever.settings.universal
    ids = retriever.tokenizer.convert_tokens_to_ids([universal_token(number) for number in range(count)])
    # Adapters wrap the embedding.
    embedding = next(m for m in retriever.model.get_input_embeddings().modules() if isinstance(m, nn.Embedding))
    embedding.weight[ids] = draw_rows(count, embedding.embedding_dim).to(embedding.weight)


def compare(model: Path, validation: Validation, cap: int, batch_size: int = 16) -> dict[str, float]:
    """NDCG@5 of the three."""
    retriever = anchorfold.load(model, device="cpu")
    figures = {
        "trained": ndcg_at_5(retriever, validation, AGC(cap=cap), batch_size),
        "random anchors": ndcg_at_5(retriever, validation, RandomAnchors(cap=cap), batch_size),
    }
    forget_tokens(retriever)
    return {**figures, "untrained tokens": ndcg_at_5(retriever, validation, AGC(cap=cap), batch_size)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--cap", type=int, default=128)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = corpus_rows(arguments.corpus, Path(folder), pixels=2_000_000)
        for name, value in compare(arguments.model, validation_of(rows), arguments.cap).items():
            print(f"{name:16}  {value:.3f}")


if __name__ == "__main__":
    main()
