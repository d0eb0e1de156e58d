"""An index of documents on disk: planned, read, stored, searched, exported."""

from anchorfold.index.index import Hit, Index
from anchorfold.index.ingest import AddReport, Progress
from anchorfold.index.store.info import IndexInfo
from anchorfold.index.store.schema import IndexSettings

__all__ = ["AddReport", "Hit", "Index", "IndexInfo", "IndexSettings", "Progress"]
