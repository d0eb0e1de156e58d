"""Backbones: what each retriever's pages, queries, layers and projection look like."""

from anchorfold.backbones.base import CausalBackboneWarning, Retriever
from anchorfold.backbones.loading import load

__all__ = ["CausalBackboneWarning", "Retriever", "load"]
