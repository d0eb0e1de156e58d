"""Selection of documents by name, path, folder or pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path


def as_names(names: str | Path | Sequence[str | Path]) -> list[str]:
    """One name or several as a list of strings."""
    return [str(names)] if isinstance(names, (str, Path)) else [str(name) for name in names]


def matching(name: str, documents: Mapping[str, str]) -> dict[str, str]:
    """Those of some documents, path to name, that a name refers to."""
    from anchorfold.documents.files import matches

    return {source: document for source, document in documents.items() if matches(name, document, source)}


def selector(names: str | Sequence[str], documents: Iterable[tuple[str, str]]) -> Callable[[str, str], bool]:
    """A predicate on name and path; a name that is exactly a document's name or path refers to that one only."""
    from anchorfold.documents.files import matches, require_name

    wanted = as_names(names)
    for name in wanted:
        require_name(name)
    exact = set(wanted)
    known = {text for document in documents for text in document}
    patterns = [name for name in wanted if name not in known]

    def selected(name: str, source: str) -> bool:
        return name in exact or source in exact or any(matches(pattern, name, source) for pattern in patterns)

    return selected
