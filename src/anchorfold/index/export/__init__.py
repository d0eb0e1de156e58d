"""An index into other tools: one file each."""

from anchorfold.index.export.exporter import EXPORTERS, CollectionSize, Exporter

__all__ = ["EXPORTERS", "CollectionSize", "Exporter"]
