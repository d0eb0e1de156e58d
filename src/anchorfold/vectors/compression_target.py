"""Targets of compressed vectors: an index, or an export written from an intermediate index."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from anchorfold.backbones.weights import cache_folder
from anchorfold.compressors import Compressor
from anchorfold.databases.urls import is_url, without_password
from anchorfold.errors import AnchorFoldError
from anchorfold.exporters import EXPORTERS, CollectionSize
from anchorfold.indexes.index import Index
from anchorfold.indexes.locations import STORES, Location
from anchorfold.storage.database import is_index
from anchorfold.storage.lock import writer_lock
from anchorfold.vectors.vector_source import VectorSource

MAX_NAME = 64  # characters of the address in a folder name


@dataclass(frozen=True)
class CompressionTarget:
    """An index (`exporter` None) or an export: `address` is its folder, file or URL.

    An export is written from an intermediate index, which makes it resumable and limits memory. It is stored beside
    the file, or in the cache folder for a database, and is removed once the export is complete.
    """

    address: str
    exporter: str | None = None
    collection: str | None = None
    quantization: str | None = None

    @property
    def is_file(self) -> bool:
        """Whether the target is a file."""
        return self.exporter is not None and EXPORTERS[self.exporter].is_file

    def folder(self, source: VectorSource, compressor: Compressor, bits: int | None) -> Location:
        """Return the index to compress into; an export has one per combination of settings.

        Raises:
            AnchorFoldError: the target cannot store that many bits per vector component.
        """
        if self.exporter is None:
            return self.address if is_url(self.address) else Path(self.address)
        supported = EXPORTERS[self.exporter].bits
        if bits is not None and bits not in supported:
            instead = "use --quantization" if "quantization" in EXPORTERS[self.exporter].options else "omit --bits"
            raise AnchorFoldError(
                f"--bits {bits} cannot be stored in {without_password(self.address)}: {self.exporter} supports "
                f"{' or '.join(map(str, supported))} bits per vector component. Instead, {instead}, or compress into "
                "an index (-o NAME.index)."
            )
        parts = [source.identity, repr(source.fields), compressor.name, repr(compressor.options), bits]
        if self.is_file:
            return Path(f"{self.address}.{_key(parts)}.unfinished")
        is_address = is_url(self.address)
        address = self.address if is_address else os.path.abspath(self.address)
        host = urlsplit(self.address).hostname if is_address else os.path.basename(address)  # no user and password
        name = re.sub(r"[^A-Za-z0-9.]+", "-", host or "")[:MAX_NAME]
        return cache_folder() / "unfinished" / f"{name}.{_key([*parts, address, self.collection])}"

    def discard_empty(self, folder: Location) -> int:
        """Remove an intermediate index without pages after an unfinished run; return its number of pages.

        Raises:
            LockedError: another process is writing to it.
        """
        if self.exporter is None or not os.path.exists(folder):
            return 0
        with writer_lock(Path(folder), 0):
            pages = Index.open(folder).info().pages if is_index(folder) else 0
            if not pages:
                shutil.rmtree(folder)
        return pages

    def export(
        self,
        folder: Location,
        progress: Callable[[int], None] | None = None,
        announce: Callable[[CollectionSize], None] | None = None,
    ) -> int:
        """Export an intermediate index, remove it, and return the number of pages.

        Args:
            folder: the intermediate index.
            progress: called with the number of pages so far.
            announce: called with the size that a collection will take, if the target estimates it.
        """
        if self.exporter is None:
            raise AnchorFoldError(f"{without_password(self.address)} is an index and needs no export.")
        exporter = EXPORTERS[self.exporter]
        options = exporter.require_options({"quantization": self.quantization})
        if "announce" in exporter.options:
            options["announce"] = announce
        if exporter.has_collections and self.collection is not None:
            options["collection"] = self.collection
        written = Index.open(folder).export(self.exporter, self.address, progress=progress, **options)
        shutil.rmtree(folder)
        return written


def _key(parts: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=4).hexdigest()


def choose_target(
    address: str, exporter: str | None = None, collection: str | None = None, quantization: str | None = None
) -> CompressionTarget:
    """Choose the target: `exporter` if given, a file by its extension, a database by its URL; else an index.

    Examples:
        >>> choose_target("small.parquet").exporter, choose_target("http://localhost:6333").exporter
        ('parquet', 'qdrant')
        >>> choose_target("small.index").exporter is None
        True
    """
    if exporter is None:
        extension = Path(address).suffix.lower().removeprefix(".")
        if is_url(address):
            exporter = None if address.partition("://")[0] in STORES else "qdrant"
        elif extension in EXPORTERS.names() and EXPORTERS[extension].is_file:
            exporter = extension
    elif exporter == "index":
        exporter = None
    else:
        _ = EXPORTERS[exporter]  # raises an error that lists the exporters
    if collection is not None and (exporter is None or not EXPORTERS[exporter].has_collections):
        folder = (
            ", or add --format qdrant for a folder of its client" if exporter is None and not is_url(address) else ""
        )
        shown = without_password(address)
        raise AnchorFoldError(f"{shown} has no collections: omit --target-collection{folder}.")
    if quantization is not None:
        if exporter is None:
            raise AnchorFoldError(
                f"--quantization cannot be used with the index {without_password(address)}: use --bits."
            )
        EXPORTERS[exporter].require_options({"quantization": quantization})
    return CompressionTarget(address, exporter, collection, quantization)
