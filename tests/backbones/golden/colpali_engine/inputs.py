"""Pages and queries of the golden vectors."""

import numpy as np
from PIL import Image

QUERIES = ["net revenue by region", "table"]
SIZES = [(64, 64), (90, 50)]


def pages() -> list[Image.Image]:
    """Return pages of noise."""
    noise = np.random.RandomState(7)
    return [Image.fromarray(noise.randint(0, 256, (height, width, 3), np.uint8)) for width, height in SIZES]
