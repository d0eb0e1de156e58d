"""Attention capture: which values compressors require of attention, and how they are computed in the forward pass."""
