"""Exporters of an index to other tools, one module each."""

from anchorfold.exporters.exporter import EXPORTERS, CollectionSize, Exporter

__all__ = ["EXPORTERS", "CollectionSize", "Exporter"]
