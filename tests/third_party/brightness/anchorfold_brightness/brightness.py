"""An encoder of another package: it needs no checkpoint and sees nothing but how bright a page is."""

import math

import numpy as np
import torch

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones import Backbone
from anchorfold.backbones.encoder import ExplainedQuery
from anchorfold.compressors import FullIndex
from anchorfold.page import EncodedPage, PageState, PatchGrid

SIDE = 4
WORDS = {"dark": 0.0, "bright": 1.0}


def vectors(brightness):
    """`(n, 2)` unit vectors: a quarter of a circle from dark to bright."""
    angles = torch.as_tensor(brightness, dtype=torch.float32).flatten() * math.pi / 2
    return torch.stack((angles.cos(), angles.sin()), 1)


class Brightness:
    """Satisfies `anchorfold.backbones.encoder.ComparableEncoder`."""

    name, fingerprint, dim, page_pixels, default_batch_size = "brightness", "brightness-1", 2, 4096, 8
    layer_settings = LayerSettings(window=(0, 0), sap_window=(0, 0), layers=1)

    def __init__(self):
        self.load_options = {}

    def warn_if_causal(self):
        """It has no attention at all."""

    def page_states(self, images, signals=(), batch_size=None):
        """`SIDE x SIDE` patches a page."""
        for image in images:
            grey = np.asarray(image.convert("L").resize((SIDE, SIDE)), np.float32) / 255
            yield PageState(vectors(grey), lambda z: z, {}, PatchGrid.single(SIDE, SIDE))

    def compress_page(self, state, compressor):
        """One page."""
        folded = compressor.compress(state, self.layer_settings)
        return EncodedPage(folded.vectors, folded.anchors, folded.groups, folded.weights, state.grid)

    def encode_documents(self, images, compressor=None, batch_size=None):
        """All of them."""
        return [self.compress_page(state, compressor or FullIndex()) for state in self.page_states(images)]

    def encode_queries(self, texts):
        """A vector for each word that it knows."""
        return [self.explain_query(text).vectors for text in texts]

    def explain_query(self, text):
        """Words that it does not know have no vector."""
        words = text.split()
        known = [(number, WORDS[word]) for number, word in enumerate(words) if word in WORDS]
        return ExplainedQuery(vectors([value for _, value in known]), words, [number for number, _ in known])


BACKBONE = Backbone(load=lambda checkpoint: Brightness())
