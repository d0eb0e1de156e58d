"""Which documents of an index a name means: as given, a path, a folder or a pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from anchorfold.index.store.catalogue import Document


def as_names(names: str | Path | Sequence[str | Path]) -> list[str]:
    """One name or several as a list of texts."""
    return [str(names)] if isinstance(names, (str, Path)) else [str(name) for name in names]


def matching(name: str, documents: Mapping[str, str]) -> dict[str, str]:
    """Those of some documents, source to name, that a name means."""
    from anchorfold.documents.files import matches

    return {source: document for source, document in documents.items() if matches(name, document, source)}


def selector(names: str | Sequence[str], documents: Iterable[Document]) -> Callable[[Document], bool]:
    """Whether a document is one of those named; a name that is a document's own means that one alone."""
    from anchorfold.documents.files import matches, require_name

    wanted = as_names(names)
    for name in wanted:
        require_name(name)
    exactly = set(wanted)
    known = {text for version in documents for text in (version.name, version.source)}
    patterns = [name for name in wanted if name not in known]

    def selected(version: Document) -> bool:
        return (
            version.name in exactly
            or version.source in exactly
            or any(matches(pattern, version.name, version.source) for pattern in patterns)
        )

    return selected
