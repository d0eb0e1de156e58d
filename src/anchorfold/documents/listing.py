"""The documents among some files and folders, found in one walk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anchorfold.documents.files import Document, find_documents, printable, source_of
from anchorfold.documents.kinds import endings
from anchorfold.errors import AnchorFoldError

NO_EXTENSION = "(no extension)"
EXTENSIONS_SHOWN = 8


@dataclass(frozen=True)
class Listing:
    """What was found below `roots` (absolute, as text); `skipped` are names and why each was left out.

    `ignored` counts files of unsupported kinds in folders by extension, most frequent first.
    """

    roots: tuple[str, ...]
    documents: tuple[Document, ...]
    skipped: tuple[tuple[str, str], ...]
    ignored: Mapping[str, int] = field(default_factory=dict)

    def require_some(self) -> None:
        """Say what is wrong if there is no document at all."""
        if self.documents:
            return
        if self.skipped:
            raise AnchorFoldError("; ".join(f"{n}: {why}" for n, why in self.skipped[:5]) + ": nothing to index.")
        names = ", ".join(self.roots)
        summary = f" {ignored_summary(self.ignored)}" if self.ignored else ""
        raise AnchorFoldError(f"{names} holds no document: give PDFs or images ({', '.join(endings())}).{summary}")


def list_documents(paths: str | Path | Sequence[str | Path], exclude: Path | None = None) -> Listing:
    """Walk files and folders once; `exclude` is a folder that is not looked into, such as the index itself."""
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    skipped: list[tuple[str, str]] = []
    ignored: set[str] = set()
    documents = tuple(find_documents(given, lambda name, why: skipped.append((name, why)), exclude, ignored))
    return Listing(tuple(map(source_of, given)), documents, tuple(skipped), count_extensions(ignored))


def count_extensions(paths: Iterable[str]) -> dict[str, int]:
    """Count files by extension, most frequent first.

    Examples:
        >>> count_extensions(["a.docx", "notes", "b.DOCX"])
        {'.docx': 2, '(no extension)': 1}
    """
    counts = Counter(printable(Path(path).suffix.lower()) or NO_EXTENSION for path in paths)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def ignored_summary(ignored: Mapping[str, int]) -> str:
    """Summarise ignored files in one sentence.

    Examples:
        >>> ignored_summary({".docx": 3, ".pptx": 1})
        'Ignored 4 files: 3 .docx, 1 .pptx.'
    """
    total, counts = sum(ignored.values()), list(ignored.items())
    parts = [f"{count:,} {extension}" for extension, count in counts[:EXTENSIONS_SHOWN]]
    if rest := sum(count for _, count in counts[EXTENSIONS_SHOWN:]):
        parts.append(f"{rest:,} others")
    return f"Ignored {total:,} file{'' if total == 1 else 's'}: {', '.join(parts)}."
