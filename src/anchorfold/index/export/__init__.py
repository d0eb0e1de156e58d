"""An index into other tools: one file each."""

from anchorfold.index.export.exporter import EXPORTERS, Exporter

__all__ = ["EXPORTERS", "Exporter"]
