"""Room for what is unsaid: dimensions of the vectors in which no word lies, for `loudness` to turn patches into."""

from __future__ import annotations

import torch

from anchorfold.backbones.nano.model import NanoModel
from anchorfold.backbones.nano.query import WordIndex

SILENT = 8  # one dimension in so many


def silent_dimensions(model: NanoModel) -> int:
    """How many of a model's dimensions are left to what is unsaid."""
    return int(model.config.embedding_dim) // SILENT


@torch.no_grad()
def make_room(model: NanoModel, index: WordIndex) -> None:
    """Turn the space of a model until its last dimensions are those that words use least, and clear them.

    The turn changes no similarity; clearing an eighth of the dimensions does, by about a tenth of what words have in
    them, evenly spread. Nothing is done where they are clear: training leaves them so, as nothing pulls there.
    """
    silent = silent_dimensions(model)
    tables = model.words.weight, model.spelling.weight
    if not any(table[:, -silent:].any() for table in tables):
        return
    rows, features, offsets = index.lookup(index.words)
    # Known words, and how they would lie if only their spelling were known.
    lying = torch.cat([model.embed_words(r, features, offsets) for r in (rows, torch.full_like(rows, -1))]).double()
    turn = torch.linalg.eigh(lying.T @ lying).eigenvectors.flip(1).to(tables[0].dtype)
    for table in tables:
        table.copy_(table @ turn)
        table[:, -silent:] = 0
    projection = model.projection
    projection.weight.copy_(turn.T @ projection.weight)
    projection.bias.copy_(turn.T @ projection.bias)
    projection.weight[-silent:] = 0
    projection.bias[-silent:] = 0
