"""The documents among some files and folders, found in one walk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anchorfold.documents.files import Document, find_documents, source_of
from anchorfold.documents.kinds import endings
from anchorfold.errors import AnchorFoldError


@dataclass(frozen=True)
class Listing:
    """What was found below `roots` (absolute, as text); `skipped` are names and why each was left out."""

    roots: tuple[str, ...]
    documents: tuple[Document, ...]
    skipped: tuple[tuple[str, str], ...]

    def require_some(self) -> None:
        """Say what is wrong if there is no document at all."""
        if self.documents:
            return
        if self.skipped:
            raise AnchorFoldError("; ".join(f"{n}: {why}" for n, why in self.skipped[:5]) + ": nothing to index.")
        names = ", ".join(self.roots)
        raise AnchorFoldError(f"{names} holds no document: give PDFs or images ({', '.join(endings())}).")


def list_documents(paths: str | Path | Sequence[str | Path], exclude: Path | None = None) -> Listing:
    """Walk files and folders once; `exclude` is a folder that is not looked into, such as the index itself."""
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    skipped: list[tuple[str, str]] = []
    documents = tuple(find_documents(given, lambda name, why: skipped.append((name, why)), exclude))
    return Listing(tuple(map(source_of, given)), documents, tuple(skipped))
