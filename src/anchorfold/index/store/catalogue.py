"""What an index holds, as a log of patches: documents and segments that came, changed or went.

`head` says which log counts and up to which byte; replacing it is the commit. Every line, and `head` itself, carries
its checksum. Readers take no lock: they read `head`, then the lines that are new to them.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from anchorfold.errors import NotAnIndexError
from anchorfold.index.store.durable import replace_synced, sync_folder, to_disk, write_synced
from anchorfold.index.store.faults import damaged, is_there, moved
from anchorfold.index.store.layered import Layered
from anchorfold.index.store.metadata import Metadata
from anchorfold.index.store.settings import IndexSettings

HEAD, LOGS = "head", "logs"
SPARE = 1 << 16  # bytes of log that are not worth writing it anew
RETRIES = 50  # a writer that commits without a pause moves on a few times while one reads


@dataclass(frozen=True, slots=True)
class Document:
    """One version of a file. `name` is as the user gave it, `pages` how many it has; a staged one is not live yet."""

    source: str
    name: str
    digest: str
    size: int
    modified: int
    pages: int
    live: bool


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file that belongs to the index: its `rows`, its `bytes`, and the `checksum` of its footer."""

    rows: int
    bytes: int
    checksum: int


@dataclass(frozen=True)
class Patch:
    """What a commit changes: None takes a document, a segment or an extra file away.

    `metadata` is by the number of the document, with which it goes; `columns` are the types of the columns in it.
    """

    documents: Mapping[int, Document | None] = field(default_factory=dict)
    segments: Mapping[int, FileEntry | None] = field(default_factory=dict)
    extras: Mapping[str, FileEntry | None] = field(default_factory=dict)
    metadata: Mapping[int, Metadata | None] = field(default_factory=dict)
    columns: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """One version of an index. Numbers of documents and segments are never used again.

    `numbers` are those of all versions of a document, by its source;
    `extras` are files that were made from segments and could be made again, by name, such as lists for searching;
    `metadata` is by the number of the document, `columns` are the types of what people gave;
    `log` and `bytes` say where in which log it ends, `base` how long that log was when it was written anew.
    """

    version: int
    settings: IndexSettings
    documents: Layered[int, Document] = field(default_factory=Layered)
    segments: Layered[int, FileEntry] = field(default_factory=Layered)
    extras: Layered[str, FileEntry] = field(default_factory=Layered)
    next_document: int = 1
    next_segment: int = 1
    log: int = 1
    bytes: int = 0
    base: int = 0
    numbers: Layered[str, tuple[int, ...]] = field(default_factory=Layered)
    metadata: Layered[int, Metadata] = field(default_factory=Layered)
    columns: Layered[str, str] = field(default_factory=Layered)

    def patched(self, patch: Patch) -> State:
        """The next version."""
        gone = {number: None for number, version in patch.documents.items() if version is None}
        return replace(
            self,
            version=self.version + 1,
            documents=self.documents.changed(patch.documents),
            segments=self.segments.changed(patch.segments),
            extras=self.extras.changed(patch.extras),
            numbers=self.numbers.changed(self._renumbered(patch.documents)),
            metadata=self.metadata.changed({**patch.metadata, **gone}),
            columns=self.columns.changed(patch.columns),
            next_document=max([self.next_document, *(n + 1 for n in patch.documents)]),
            next_segment=max([self.next_segment, *(n + 1 for n in patch.segments)]),
        )

    def _renumbered(self, patch: Mapping[int, Document | None]) -> dict[str, tuple[int, ...] | None]:
        """The numbers of all sources that a patch touches; None for those that have none left."""
        numbers: dict[str, tuple[int, ...] | None] = {}
        for number, after in patch.items():
            before = self.documents.get(number)
            if before is not None and (after is None or after.source != before.source):
                others = numbers.get(before.source, self.numbers.get(before.source)) or ()
                numbers[before.source] = tuple(n for n in others if n != number) or None
            if after is not None and (before is None or after.source != before.source):
                others = numbers.get(after.source, self.numbers.get(after.source)) or ()
                numbers[after.source] = (*others, number)
        return numbers

    def versions(self, source: str) -> dict[int, Document]:
        """The live and the staged versions of a document by number."""
        return {number: self.documents[number] for number in self.numbers.get(source, ())}


class Catalogue:
    """The head and the logs of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def log_path(self, number: int) -> Path:
        """A log by its number."""
        return self.folder / LOGS / f"{number:08}.log"

    # Writing: the caller holds the lock.

    def create(self, settings: IndexSettings) -> State:
        """Version 1 of an index that holds nothing."""
        (self.folder / LOGS).mkdir(parents=True, exist_ok=True)
        sync_folder(self.folder)
        return self.write_anew(State(1, settings, log=0))

    def commit(self, state: State, patch: Patch) -> State:
        """Make a patch the newest version."""
        after = state.patched(patch)
        line = sealed({"version": after.version, **_plain(patch)})
        with open(self.log_path(state.log), "r+b") as file:
            file.truncate(state.bytes)  # what a writer that died left beyond the end
            file.seek(state.bytes)
            file.write(line)
            file.flush()
            to_disk(file.fileno())
        after = replace(after, bytes=state.bytes + len(line))
        self._point_to(after)
        if after.bytes > 2 * after.base + SPARE:
            with suppress(OSError):  # the commit stands; a shorter log can wait until there is room
                after = self.write_anew(after)
        return after

    def write_anew(self, state: State) -> State:
        """The same version as the only line of a new log."""
        line = sealed(
            {
                "version": state.version, "settings": asdict(state.settings),
                "next": [state.next_document, state.next_segment], **_plain(state),
            }
        )  # fmt: skip
        after = replace(state, log=state.log + 1, bytes=len(line), base=len(line))
        write_synced(self.log_path(after.log), [line])
        self._point_to(after)
        self.log_path(state.log).unlink(missing_ok=True)
        return after

    def _point_to(self, state: State) -> None:
        head = {"version": state.version, "log": state.log, "bytes": state.bytes, "base": state.base}
        replace_synced(self.folder / HEAD, sealed(head))

    def remove_others(self, state: State) -> None:
        """Remove logs that count no more, left by writers that died."""
        for path in (self.folder / LOGS).iterdir():
            if path != self.log_path(state.log):
                path.unlink(missing_ok=True)

    # Reading.

    def read(self, before: State | None = None) -> State:
        """The newest version; `before` is one that was read earlier, from which it goes on."""
        head = self.read_head()
        for _ in range(RETRIES):
            if before is not None and before.version == head["version"]:
                return before
            goes_on = before is not None and before.log == head["log"] and before.bytes <= head["bytes"]
            try:
                return self._replayed(head, before if goes_on else None)
            except FileNotFoundError as error:
                again = self.read_head()
                if again == head:
                    raise damaged(self.folder, "its log is missing") from error
                head = again  # the log was written anew meanwhile
        raise damaged(self.folder, "its log is missing")

    def read_head(self) -> dict[str, int]:
        """What `head` says."""
        try:
            line = (self.folder / HEAD).read_bytes()
        except FileNotFoundError as error:
            if not is_there(self.folder):
                raise moved(self.folder) from error
            raise NotAnIndexError(f"{self.folder} is not an index, or its making was cut short.") from error
        try:
            head: dict[str, int] = unsealed(line)
        except ValueError as error:
            raise damaged(self.folder, "its head does not match its checksum") from error
        return head

    def _replayed(self, head: Mapping[str, int], before: State | None) -> State:
        start = 0 if before is None else before.bytes
        with open(self.log_path(head["log"]), "rb") as file:
            file.seek(start)
            data = file.read(head["bytes"] - start)
        state = before
        try:
            if len(data) != head["bytes"] - start:
                raise ValueError("it is too short")
            for record in records(data):
                state = first_state(record) if state is None else next_state(state, record)
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(self.folder, f"its log does not match its checksums: {error}") from error
        if state is None or state.version != head["version"]:
            raise damaged(self.folder, "its log does not reach the version that its head names")
        return replace(state, log=head["log"], bytes=head["bytes"], base=head["base"])


def sealed(content: Mapping[str, Any]) -> bytes:
    """A line with its checksum."""
    text = json.dumps(content, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def unsealed(line: bytes) -> Any:
    """What a line says; ValueError if it is not as it was written."""
    if len(line) < 10 or line[8:9] != b" " or line[-1:] != b"\n" or line[:8] != b"%08x" % zlib.crc32(line[9:-1]):
        raise ValueError("a line is not as it was written")
    return json.loads(line[9:-1])


def records(data: bytes) -> Iterator[dict[str, Any]]:
    """The lines of a log."""
    for line in data.splitlines(keepends=True):
        yield unsealed(line)


def first_state(record: Mapping[str, Any]) -> State:
    """What the first line of a log says."""
    empty = State(record["version"] - 1, IndexSettings.from_dict(record["settings"]))
    next_document, next_segment = record["next"]
    return replace(empty.patched(_patch(record)), next_document=next_document, next_segment=next_segment)


def next_state(state: State, record: Mapping[str, Any]) -> State:
    """What a later line adds."""
    if record["version"] != state.version + 1:
        raise ValueError("a line is missing")
    return state.patched(_patch(record))


def _plain(content: Patch | State) -> dict[str, Any]:
    dictionaries: dict[str, Mapping[Any, Any]] = {
        "documents": content.documents, "segments": content.segments, "extras": content.extras,
        "metadata": content.metadata,
    }  # fmt: skip
    plain: dict[str, Any] = {
        name: {key: None if value is None else asdict(value) for key, value in values.items()}
        for name, values in dictionaries.items()
        if values or name in ("documents", "segments")
    }
    return {**plain, "columns": dict(content.columns)} if content.columns else plain


def _patch(record: Mapping[str, Any]) -> Patch:
    return Patch(
        {int(n): None if d is None else Document(**d) for n, d in record["documents"].items()},
        {int(n): None if s is None else FileEntry(**s) for n, s in record["segments"].items()},
        {name: None if e is None else FileEntry(**e) for name, e in record.get("extras", {}).items()},
        {int(n): None if m is None else Metadata(**m) for n, m in record.get("metadata", {}).items()},
        record.get("columns", {}),
    )


def log_number(path: Path) -> int:
    """The number of a log by its path; 0 if it is none."""
    stem = os.path.basename(path).removesuffix(".log")
    return int(stem) if stem.isdigit() else 0
