"""Embedded backbone: a small late-interaction retriever whose weights are part of the package."""
