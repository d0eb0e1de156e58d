"""What must hold of an index: its rows against the files, its folder, and every answer that was read meanwhile."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from anchorfold.index import Index
from anchorfold.index.store.checking import check
from anchorfold.index.store.lock import writer_lock
from anchorfold.index.store.pages import StoredPage
from anchorfold.index.store.table import PageTable
from benchmarks.soak_pages import MarkReader, expected_page, expected_score, read_number, same_vectors
from benchmarks.soak_world import History, Version, World

SCORE_TOLERANCE = {32: 1e-4, 16: 3e-3, 8: 3e-2}  # by bits
TEMPORARY = re.compile(r"#|\.tmp|\.part$|^new-|^tmp")
# What an error must say, by what was done to cause it; nothing may fail if nothing was done.
WORDS = {
    "full disk": r"disk is full|no space left",
    "descriptors": r"too many open files|no file descriptors",
    "writer": r"is writing to",
    "moved": r"does not exist|no such file|not found|moved",
    "unmade": r"does not exist|not an index|cut short",
    "nothing to remove": r"holds no document",
    "no such page": r"holds no page",
    "interrupted": r"^$",
}
NEVER = re.compile(r"damaged|backup|remove the folder|delete", re.IGNORECASE)


@dataclass(frozen=True)
class Violation:
    """Something that must not be: `kind` groups those of one cause."""

    kind: str
    detail: str


def judge(what: str, answer: Mapping[str, Any], troubles: Iterable[str], signals: Iterable[int] = ()) -> Iterator[Violation]:  # fmt: skip  # noqa: E501
    """Whether a command ended as it may: done, by an error that names the trouble, or by the signal that was sent."""
    troubles = list(troubles)
    if "late" in answer:
        yield Violation(f"hang: {what}", f"no answer after {answer['late']} seconds")
    elif "ended" in answer and -answer["ended"] not in signals:
        yield Violation(f"death: {what} by {answer['ended']} in {troubles}", answer.get("log", ""))
    elif "error" in answer:
        message = answer["message"]
        text = f"{answer['error']}: {message}\n{answer.get('trace', '')}"
        label = f"{what} in {troubles or 'no trouble'}: {answer['error']}"
        if "interrupted" in troubles and answer["error"] == "KeyboardInterrupt":
            return
        if NEVER.search(message):
            yield Violation(f"'damaged' said of a healthy index: {label}", text)
        elif not any(re.search(WORDS[t], message, re.IGNORECASE) for t in troubles):
            yield Violation(f"error: {label}", text)
        elif not answer["clean"]:
            yield Violation(f"error that is no sentence: {label}", text)


def check_skipped(report: Mapping[str, Any], world: World, troubles: Iterable[str]) -> Iterator[Violation]:
    """Nothing healthy may be skipped, unless for the trouble of the moment, which must be named."""
    reasons = "|".join(WORDS[t] for t in troubles) or "(?!)"
    for name, why in report["skipped"]:
        file = re.sub(r" page \d+$", "", name)
        history = world.histories.get(world.source(file))
        if history is not None and history.steady and file in world.readable() and not re.search(reasons, why, re.I):
            yield Violation("a healthy file was skipped", f"{name}: {why}")


# The table against the files.


def check_table(index: Path, world: World, bits: int) -> tuple[list[Violation], dict[str, Version], int]:
    """Violations, what the index holds by source, and how many pages were compared with their files."""
    violations: list[Violation] = []
    rows: dict[str, dict[int, StoredPage]] = defaultdict(dict)
    table = PageTable.open(index)
    violations += [Violation("damage", str(damage)) for damage in check(index)]
    for stored in table.pages(live=False):
        source, page = stored.source, stored.page
        if not stored.version.live:
            violations.append(Violation("staged row left over", f"page {page} of {source}"))
        elif page in rows[source]:
            violations.append(Violation("page stored twice", f"page {page} of {source}"))
        rows[source][page] = stored
    versions: dict[str, Version] = {}
    for source, name in {world.source(n): n for n in world.files}.items():
        if name in world.readable():
            violations += check_document(name, world.home / name, rows.pop(source, {}), world.files[name], bits)
            versions[source] = world.files[name]
        else:
            rows.setdefault(source, {})
    for source, pages in rows.items():  # of files that are gone or cannot be read
        numbers = {p: stored_number(row) for p, row in pages.items()}
        old = fitting(numbers, world.history(source))
        if not world.must_stay(source):
            violations.append(Violation("pages of a file that is gone", f"{source}: {numbers}"))
        elif old is None:
            violations.append(Violation("an unreadable file or folder lost what was stored of it", f"{source}: {numbers}, {world.history(source)}"))  # fmt: skip  # noqa: E501
        elif old.readable:
            versions[source] = old
    return violations, versions, sum(len(v.numbers) for v in versions.values())


def check_document(
    name: str, path: Path, pages: Mapping[int, StoredPage], version: Version, bits: int
) -> Iterator[Violation]:
    """The stored pages of one readable file with the file."""
    numbers = {p: stored_number(row) for p, row in pages.items()}
    expected = dict(enumerate(version.numbers, 1))
    if numbers != expected:
        kind = "pages missing" if numbers.items() < expected.items() else "stale or wrong pages"
        yield Violation(kind, f"{name}: stored {numbers}, on disk {expected}")
        return
    status = path.stat()
    facts = {
        "document": name, "pages": len(expected), "size": status.st_size, "modified": status.st_mtime_ns,
        "digest": hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest(), "problem": None,
    }  # fmt: skip
    for page, number in expected.items():
        stored, encoded, right = pages[page].details(), pages[page].encoded(), expected_page(number)
        for column, fact in facts.items():
            if stored[column] != fact:
                yield Violation(f"wrong {column} stored", f"page {page} of {name}: {stored[column]}, not {fact}")
        if not same_vectors(encoded.vectors, number, bits):
            yield Violation("wrong vectors stored", f"page {page} of {name}, number {number}")
        if not (torch.equal(encoded.groups, right.groups) and torch.equal(encoded.anchors, right.anchors)):
            yield Violation("wrong groups or anchors stored", f"page {page} of {name}, number {number}")


def stored_number(page: StoredPage) -> int:
    """The number of a stored page by its picture, -1 if there is none or it cannot be read."""
    try:
        return read_number(Image.open(io.BytesIO(page.thumbnail)))
    except (OSError, ValueError):
        return -1


def fitting(numbers: Mapping[int, int], history: History) -> Version | None:
    """The version of a file's history that stored pages are; an empty one if there are none and need not be any."""
    for version in reversed(history.versions):
        if version is not None and version.readable and numbers == dict(enumerate(version.numbers, 1)):
            return version
    if not numbers and (not history.always or not any(v and v.readable for v in history.versions)):
        return Version()
    if history.always:
        return None
    # First indexed in this round, and spoiled before all of its pages were stored.
    partly = (v for v in history.versions if v and numbers.items() <= dict(enumerate(v.numbers, 1)).items())
    return next((Version(tuple(numbers.values())) for _ in partly), None)


# The folder.


def snapshot(index: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file, without locks, which are opened by whoever writes."""
    paths = [Path(at, name) for at, _, names in os.walk(index) for name in names if not name.endswith(".lock")]
    return {str(p.relative_to(index)): (p.stat().st_size, p.stat().st_mtime_ns) for p in paths}


def check_folder(index: Path, versions: Mapping[str, Version]) -> Iterator[Violation]:
    """Nothing is left over, and `info` tells the size of the folder and what is in it."""
    info = Index.open(index, MarkReader()).info()
    files = snapshot(index)
    size = int(subprocess.run(["du", "-sb", index], capture_output=True, text=True, check=True).stdout.split()[0])
    if info.bytes != size:
        yield Violation("info tells another size", f"{info.bytes} bytes, the folder holds {size}")
    counts = (len(versions), sum(len(v.numbers) for v in versions.values()), 0)
    if (info.documents, info.pages, info.unreadable_pages) != counts:
        yield Violation("info tells other counts", f"{info}, not {counts}")
    for name in files:
        if any(TEMPORARY.search(part) for part in Path(name).parts):
            yield Violation(f"left over: {re.sub(r'[0-9a-f-]{8,}|new-.*/', '*', name)}", name)
    if (index / "writer.json").exists():
        yield Violation("left over: writer.json", (index / "writer.json").read_text())
    # Files of a killed writer that no version names wait for the next tidying, and must not outlive it.
    with writer_lock(index, 10):
        table = PageTable.open(index)
        table.tidy()
    named = {f"{number:08}.segment" for number in table.state.segments}
    for path in sorted((index / "segments").iterdir()):
        if path.name not in named:
            yield Violation("left over: segment that no version names", path.name)


# Answers that were read while others wrote.


def check_hits(query: int, hits: list[list[Any]], world: World, bits: int) -> Iterator[Violation]:
    """One answer of all pages: right scores, no page twice, documents whole and of one version."""
    scores: dict[str, dict[int, float]] = defaultdict(dict)
    for source, page, score in hits:
        if page in scores[source]:
            yield Violation("page answered twice", f"page {page} of {source}")
        scores[source][page] = score
    tolerance = SCORE_TOLERANCE[bits]
    for source, pages in scores.items():
        history = world.histories.get(source)
        versions = [v for v in history.versions if v is not None] if history else []
        fits = [{p for p, s in pages.items() if p <= len(v.numbers) and abs(expected_score(query, v.numbers[p - 1]) - s) <= tolerance} for v in versions]  # fmt: skip  # noqa: E501
        text = f"query {query}: {pages} of {source}, {history}"
        if history is not None and history.torn:
            continue  # a file that is rewritten in place holds anything for a moment, and so may the index
        if set(pages) != set().union(*fits):
            yield Violation("answer with a page or score that no version has", text)
        elif history is not None and set(pages) not in fits:
            yield Violation("answer with pages of two versions", text)
        elif history is not None and history.always and not any(f == set(pages) and len(f) == len(v.numbers) for f, v in zip(fits, versions, strict=True)):  # fmt: skip  # noqa: E501
            yield Violation("answer with part of a document", text)
    for source, history in world.histories.items():
        if history.always and any(v and v.readable for v in history.versions) and source not in scores:
            yield Violation("answer without a document that is there", f"query {query}: {source}, {history}")


def check_record(record: Mapping[str, Any], world: World, bits: int, troubles: Iterable[str]) -> Iterator[Violation]:
    """One call of a reader."""
    if "error" in record:
        history = world.histories.get(record.get("source", ""))
        if record["call"] == "page" and not (history and history.steady):
            troubles = [*troubles, "no such page"]
        yield from judge(f"reader's {record['call']}", record, troubles)
    elif "hits" in record:
        yield from check_hits(record["query"], record["hits"], world, bits)
    elif "number" in record:
        versions = world.history(record["source"]).versions
        if not any(v and v.numbers[record["page"] - 1 : record["page"]] == (record["number"],) for v in versions):
            yield Violation("page read that no version has", f"{record}, {versions}")
