"""Discovery of documents in files and folders."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anchorfold.documents.conversion import missing_converter
from anchorfold.documents.files import Document, escape_path, source_of
from anchorfold.documents.formats import extensions, is_supported
from anchorfold.errors import AnchorFoldError, os_reason

NO_EXTENSION = "(no extension)"
EXTENSIONS_SHOWN = 8


@dataclass(frozen=True)
class DocumentListing:
    """Documents below `roots` (absolute paths as text).

    `skipped` contains (name, reason) of unusable files, `ignored` the number of files of unsupported formats in folders
    by extension, most frequent first.
    """

    roots: tuple[str, ...]
    documents: tuple[Document, ...]
    skipped: tuple[tuple[str, str], ...]
    ignored: Mapping[str, int] = field(default_factory=dict)

    def require_documents(self) -> None:
        """Raise AnchorFoldError with the reason if there are no documents."""
        if self.documents:
            return
        if self.skipped:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.skipped[:5])
            raise AnchorFoldError(f"no documents to index: {reasons}.")
        summary = f" {ignored_summary(self.ignored)}" if self.ignored else ""
        raise AnchorFoldError(
            f"no documents in {', '.join(self.roots)}: supported formats are {', '.join(extensions())}.{summary}"
        )


def list_documents(paths: str | Path | Sequence[str | Path], exclude: str | Path | None = None) -> DocumentListing:
    """List documents in files and folders (recursively), each once, sorted by name within a folder.

    Args:
        paths: files or folders. A file is always tried, unless its format is unsupported; hidden files in folders are
            ignored.
        exclude: folder to exclude, such as the index itself.
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    scan = _FolderScan(os.path.realpath(exclude) if exclude is not None else None)
    documents = tuple(document for path in given for document in scan.documents(os.path.normpath(path)))
    roots, ignored = tuple(map(source_of, given)), count_extensions(scan.ignored)
    return DocumentListing(roots, documents, tuple(scan.skipped), ignored)


class _FolderScan:
    def __init__(self, exclude: str | None) -> None:
        self.exclude = exclude
        self.skipped: list[tuple[str, str]] = []
        self.ignored: set[str] = set()  # resolved paths: one per file, even if folders are given twice
        self._names: dict[str, str] = {}  # by resolved path

    def documents(self, root: str) -> Iterator[Document]:
        for path in self._walk(root, frozenset()):
            name, real = escape_path(path), os.path.realpath(path)
            if path == root and not is_supported(path):
                self._skip(path, f"unsupported format (supported: {', '.join(extensions())})")
            elif real in self._names:
                if self._names[real] != name:
                    self._skip(path, f"the same file as {self._names[real]}")
            else:
                self._names[real] = name
                try:
                    status = os.stat(path)
                    if not os.access(path, os.R_OK):
                        raise PermissionError(13, "permission denied")
                except OSError as error:
                    self._skip(path, os_reason(error))
                else:
                    yield Document(name, Path(os.path.abspath(path)), status.st_size, status.st_mtime_ns)

    def _skip(self, path: str, reason: str) -> None:
        self.skipped.append((escape_path(path), reason))

    def _walk(self, path: str, parents: frozenset[str]) -> Iterator[str]:
        if not os.path.isdir(path):
            try:
                os.stat(path)
            except FileNotFoundError:
                self._skip(path, "broken link" if os.path.islink(path) else "no such file or folder")
            except OSError as error:  # no permission for its folder
                self._skip(path, os_reason(error))
            else:
                yield path
            return
        real = os.path.realpath(path)
        if real == self.exclude:
            return
        if real in parents:
            return self._skip(path, "link to a parent folder")
        try:
            entries = sorted(os.listdir(path))
        except OSError as error:
            return self._skip(path, os_reason(error))
        for entry in entries:
            child = os.path.join(path, entry)
            if entry.startswith("."):
                continue
            if os.path.isdir(child) or is_supported(entry):
                yield from self._walk(child, parents | {real})
            elif os.path.isfile(child):
                self.ignored.add(os.path.join(real, entry))


def count_extensions(paths: Iterable[str]) -> dict[str, int]:
    """Count files by extension, most frequent first.

    Examples:
        >>> count_extensions(["a.docx", "notes", "b.DOCX"])
        {'.docx': 2, '(no extension)': 1}
    """
    counts = Counter(escape_path(Path(path).suffix.lower()) or NO_EXTENSION for path in paths)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def ignored_summary(ignored: Mapping[str, int]) -> str:
    """Summarise ignored files in one sentence.

    Examples:
        >>> ignored_summary({".docx": 3, ".pptx": 1})
        'Ignored 4 files: 3 .docx, 1 .pptx.'

    Formats that could be read with a converter are named with what to install.
    """
    total, counts = sum(ignored.values()), list(ignored.items())
    parts = [f"{count:,} {extension}" for extension, count in counts[:EXTENSIONS_SHOWN]]
    if rest := sum(count for _, count in counts[EXTENSIONS_SHOWN:]):
        parts.append(f"{rest:,} others")
    sentences = [f"Ignored {total:,} file{'' if total == 1 else 's'}: {', '.join(parts)}."]
    missing: dict[str, list[str]] = {}
    for extension, _ in counts:
        if (converter := missing_converter(extension.removeprefix("."))) is not None:
            missing.setdefault(converter, []).append(extension)
    sentences += [f"Install {converter} to index {', '.join(names)}." for converter, names in missing.items()]
    return " ".join(sentences)
