"""Is every byte of an index what was written? And if not: which documents are affected, and what is left without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from anchorfold.errors import DamagedError, StoreError
from anchorfold.index.store.catalogue import (
    LOGS,
    Catalogue,
    FileEntry,
    Patch,
    State,
    first_state,
    log_number,
    next_state,
    unsealed,
)
from anchorfold.index.store.faults import damaged, is_there, storage_errors
from anchorfold.index.store.lock import writer_lock
from anchorfold.index.store.merging import write_rows
from anchorfold.index.store.segment import BLOBS, Segment
from anchorfold.index.store.snapshot import OpenSegments, segment_path
from anchorfold.index.store.table import PageTable, is_old
from anchorfold.index.store.texts import FILE, PageTexts


@dataclass(frozen=True)
class Damage:
    """Something in an index that is not what was written: where, and the names of the documents that it touches."""

    file: str
    problem: str
    documents: tuple[str, ...] = ()


def check(folder: Path) -> list[Damage]:
    """Verify every checksum, count and reference; nothing is changed. Errors are those of `PageTable.open`."""
    try:
        table = PageTable.open(folder)
    except DamagedError as error:
        return [Damage("head or log", _reason(error, folder))]
    state = table.state
    return [*_damages(state, folder).values(), *_extra_damages(state, folder).values(), *_text_damages(state, folder)]


def _damages(state: State, folder: Path) -> dict[int, Damage]:
    """What is wrong with the segments of a version, by their number."""
    damages: dict[int, Damage] = {}
    files = OpenSegments(folder)
    pages: set[tuple[int, int]] = set()
    for number, entry in state.segments.items():
        name, segment = f"segments/{number:08}.segment", None
        try:
            segment = files.get(number, entry, state)
            problem = next(_problems(segment, state, pages), None)
        except DamagedError as error:
            problem = _reason(error, folder)
        if problem is not None:
            owners = np.unique(segment.document[~_intact(segment)]).tolist() if segment is not None else []
            names = {state.documents[n].name for n in owners if n in state.documents}
            damages[number] = Damage(name, problem, tuple(sorted(names)))
    lost = {number for number in damages if not files.is_open(number)}
    missing = _without_pages(state, files, set(damages)) if lost else ()
    return {n: replace(d, documents=missing) if n in lost else d for n, d in damages.items()}


def _intact(segment: Segment) -> np.ndarray:
    """`(n,)` true for pages of a damaged segment that are as they were written."""
    try:
        return segment.intact()
    except DamagedError:
        return np.zeros(len(segment), bool)


def _extra_damages(state: State, folder: Path) -> dict[str, Damage]:
    """What is wrong with files that were made from segments, by their name: no document is lost with them."""
    damages: dict[str, Damage] = {}
    files = OpenSegments(folder)
    for name in state.extras:
        try:
            extra = files.extra(name, state)
            for column in extra.names():
                extra.column(column)
        except DamagedError as error:
            damages[name] = Damage(f"segments/{name}", _reason(error, folder))
    return damages


def _text_damages(state: State, folder: Path) -> list[Damage]:
    """What is wrong with the texts of pages: no page is lost with them, and the next run of indexing reads them."""
    texts = PageTexts(folder)
    if not state.settings.text or (not texts and not state.segments):
        return []
    problem = texts.problem() if texts else "it is missing"
    return [] if problem is None else [Damage(FILE, problem)]


def _problems(segment: Segment, state: State, pages: set[tuple[int, int]]) -> Iterator[str]:
    for name in segment.names():
        segment.column(name)  # raises if it does not match its checksum
    if len(segment) != segment.entry.rows:
        yield f"it has {len(segment)} pages, the log says {segment.entry.rows}"
    if len(segment.codes) != segment.starts[-1]:
        yield f"it has {len(segment.codes)} vectors, its pages have {segment.starts[-1]}"
    for name in BLOBS:
        if segment.blob_starts(name)[-1] != len(segment.blobs(name)):
            yield f"the lengths of its blobs do not add up: {name}"
    for key in _keys(segment):
        if key[0] in state.documents:
            if key in pages:
                yield f"page {key[1]} of {state.documents[key[0]].name} is stored twice"
            pages.add(key)


def _without_pages(state: State, files: OpenSegments, broken: set[int]) -> tuple[str, ...]:
    """Names of documents that have fewer pages in the other segments than they should."""
    have: dict[int, int] = {}
    for number, entry in state.segments.items():
        if number in broken:
            continue
        owners, counts = np.unique(files.get(number, entry, state).document, return_counts=True)
        for owner, count in zip(owners.tolist(), counts.tolist(), strict=True):
            have[owner] = have.get(owner, 0) + count
    return tuple(sorted(v.name for n, v in state.documents.items() if v.live and have.get(n, 0) < v.pages))


def repair_index(folder: Path) -> list[Damage]:
    """`repair`, when no other process is writing."""
    if not is_there(folder) or is_old(folder):
        PageTable.open(folder)  # says what it is instead
    with writer_lock(folder, -1):
        return repair(folder)


def repair(folder: Path) -> list[Damage]:
    """Drop what is broken: the next `anchorfold index` reads these pages again. The caller holds the writer's lock.

    Lines of the log that are not as they were written are left out, and so are segments that no line is left to name.
    Of a damaged segment the pages that are whole are written anew.
    """
    damages = []
    with storage_errors(folder):
        catalogue = Catalogue(folder)
        try:
            state = catalogue.read()
        except DamagedError as error:
            damages.append(Damage("head or log", _reason(error, folder)))
            state = catalogue.write_anew(salvaged(catalogue))
        broken, extras = _damages(state, folder), _extra_damages(state, folder)
        if broken or extras:
            mended = _mended(state, folder, list(broken))
            lists = [name for name in state.extras if name.partition("-")[0] in {f"{n:08}" for n in broken}]
            catalogue.commit(state, Patch({}, {**dict.fromkeys(broken), **mended}, dict.fromkeys([*extras, *lists])))
        if texts := _text_damages(state, folder):
            PageTexts(folder).rebuild(state.documents)
    PageTable.open(folder).remove_left_overs()
    return [*damages, *broken.values(), *extras.values(), *texts]


def _mended(state: State, folder: Path, broken: list[int]) -> dict[int, FileEntry | None]:
    """New segments, by number, with the pages of broken ones that are whole and not stored elsewhere."""
    mended: dict[int, FileEntry | None] = {}
    files = OpenSegments(folder)
    there = {key for n, entry in state.segments.items() if n not in broken for key in _keys(files.get(n, entry, state))}
    for number in broken:
        try:
            segment = files.get(number, state.segments[number], state)
            keys = _keys(segment)
        except DamagedError:
            continue
        chosen = [row for row in np.flatnonzero(_intact(segment)).tolist()
                  if keys[row][0] in state.documents and keys[row] not in there]  # fmt: skip
        there.update(keys[row] for row in chosen)
        after = state.next_segment + len(mended)
        if entry := write_rows(segment_path(folder, after), [segment], [np.array(chosen, np.int64)]):
            mended[after] = entry
    return mended


def _keys(segment: Segment) -> list[tuple[int, int]]:
    return list(zip(segment.document.tolist(), segment.page.tolist(), strict=True))


def salvaged(catalogue: Catalogue) -> State:
    """What the newest log says, without the lines that are not as they were written."""
    folder = catalogue.folder
    logs = sorted((folder / LOGS).glob("*.log"), key=log_number)
    for path in reversed(logs):
        state: State | None = None
        lost = False
        for line in path.read_bytes().splitlines(keepends=True):
            try:
                record = unsealed(line)
                if state is None:
                    state = first_state(record)
                else:
                    state = next_state(replace(state, version=record["version"] - 1), record)
            except (ValueError, KeyError, TypeError):
                lost = True
                continue
        if state is not None:
            # Numbers that stood in a lost line must not be given out again: rows of old segments bear them.
            further = 1_000_000 if lost else 0
            return replace(
                state, version=state.version + 1, next_document=state.next_document + further,
                next_segment=state.next_segment + further, log=log_number(logs[-1]),
            )  # fmt: skip
    raise damaged(folder, "no line of its log is left that says what it was made with")


def _reason(error: StoreError, folder: Path) -> str:
    """What stands between the brackets of a message about damage."""
    text = str(error)
    return text.partition("(")[2].rpartition("):")[0].partition("; it holds pages of")[0] or text
