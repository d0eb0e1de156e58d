"""Compressed pages in mteb: run its visual retrieval tasks with a backbone and a compressor.

import mteb, anchorfold
from anchorfold.evaluation.mteb_model import FoldedSearch

model = FoldedSearch(anchorfold.load("nano"), anchorfold.AnchorFold(ratio=0.1))
mteb.evaluate(model, mteb.get_tasks(["VidoreDocVQARetrieval"]))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anchorfold.backbones.base import BackboneEncoder
from anchorfold.compressors import Compressor, FullIndex
from anchorfold.core.scoring import maxsim


class FoldedSearch:
    """mteb's search protocol: `index` compresses the pages once, `search` scores them by MaxSim."""

    def __init__(self, model: BackboneEncoder, compressor: Compressor | None = None) -> None:
        self.model, self.compressor = model, compressor or FullIndex()
        self._ids: list[str] = []
        self._pages: list[Tensor] = []

    @property
    def mteb_model_meta(self) -> Any:
        """Metadata that mteb stores with results."""
        from mteb.models.model_meta import ModelMeta

        changes = {
            "name": f"anchorfold/{Path(self.model.name).name}-{type(self.compressor).__name__}",
            "revision": self.model.fingerprint,
            "embed_dim": self.model.dim,
            "modalities": ["text", "image"],
        }
        return ModelMeta.create_empty().model_copy(update=changes)

    def index(self, corpus: Any, **_: Any) -> None:
        """Encode and compress the pages of a task."""
        self._ids = [str(i) for i in corpus["id"]]
        images = (row["image"].convert("RGB") for row in corpus)
        self._pages = [p.vectors.half() for p in self.model.encode_documents(images, self.compressor)]

    def search(self, queries: Any, *, top_k: int, top_ranked: Any = None, **_: Any) -> dict[str, dict[str, float]]:
        """Return the best pages per query as {query id: {page id: score}}."""
        encoded = self.model.encode_queries(list(queries["text"]))
        rankings: dict[str, dict[str, float]] = {}
        for identity, query in zip(queries["id"], encoded, strict=True):
            allowed = None if top_ranked is None else set(top_ranked[identity])
            chosen = [i for i, page in enumerate(self._ids) if allowed is None or page in allowed]
            scores = maxsim([query], [self._pages[i] for i in chosen])[0]
            best = torch.topk(scores, min(top_k, len(scores)))
            hits = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            rankings[str(identity)] = {self._ids[chosen[i]]: float(s) for i, s in hits}
        return rankings
