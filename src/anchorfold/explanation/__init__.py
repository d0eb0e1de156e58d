"""Explanation of matches: the score contribution of each query word and patch, and heatmaps."""

from anchorfold.explanation.evidence import Evidence, compute_evidence, rasterize
from anchorfold.explanation.heatmap import Explanation, draw_explanation, explain, overlay_heatmap

__all__ = ["Evidence", "Explanation", "compute_evidence", "draw_explanation", "explain", "overlay_heatmap", "rasterize"]
