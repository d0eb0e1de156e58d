"""Why a page matches: the evidence of each word, where it lies on the page, and a picture of it."""

from anchorfold.documents.originals import find_image, is_unchanged
from anchorfold.explain.evidence import Evidence, evidence, raster
from anchorfold.explain.pictures import Explanation, draw, explain, light

__all__ = ["Evidence", "Explanation", "draw", "evidence", "explain", "find_image", "is_unchanged", "light", "raster"]
