"""Flip single bits in all files of an index.

After each flip:

- `check` reports damage, or nothing that a user sees has changed and the index can be written,
- a visual search (also filtered, and with posting lists) returns the right answer or raises one AnchorFoldError,
- `repair` succeeds, `check` is clean afterwards, and documents that were not hit keep their pages.

    python -m benchmarks.bit_flips --flips 2000
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anchorfold.errors import AnchorFoldError
from anchorfold.index import candidate_files, scan
from anchorfold.index.embedded import EmbeddedStore, check_index
from anchorfold.index.hits import Selection
from anchorfold.index.store import column_file
from anchorfold.index.store.records import Plain
from anchorfold.index.store.segment import Segment
from benchmarks.small_index import (
    add_document,
    create_store,
    document_rows,
    index_settings,
    observe,
    page_vectors,
    source,
)

DOCUMENTS = [f"document{number:02}" for number in range(24)]
LIMITS = (
    (column_file, "BLOCK", 128),
    (candidate_files, "FIRST_PAGES", 10),
    (candidate_files, "LISTED_ROWS", 5),
    (scan, "CANDIDATES", 20),
    (scan, "FEW_PAGES", 2),
)
FILTERED = ("documents", "filter")
LOST_PAGES = 12  # of all pages, at most: one flip damages one block of one vector file


def use_small_limits() -> None:
    """Build posting lists for small indexes, and cover few pages by one checksum."""
    for module, name, value in LIMITS:
        setattr(module, name, value)


def make_flippable(folder: Path) -> None:
    """An index with two vector files with posting lists, small ones without, metadata, a removed document."""
    store = create_store(folder, index_settings(bits=8))
    with store.writing():
        rows = [row for name in DOCUMENTS for row in document_rows(name, vectors=8)]
        store.append(rows[:36])
        store.append(rows[36:])
        store.append(document_rows("removed") + document_rows("gone") + document_rows("small"))
        values: dict[str, dict[str, Plain | None]] = {
            source(name): {"year": 2000 + i % 5, "team": "sales"} for i, name in enumerate(DOCUMENTS)
        }
        store.set_metadata(values, {"year": "integer", "team": "text"})
        store.remove([source("removed"), source("gone")])
        add_document(store, DOCUMENTS[0], 2)
        store.finish()


@dataclass
class Answers:
    """Answers of visual searches by name: hits, or the message of an error."""

    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, store: EmbeddedStore | None = None, scan_all: bool = False, top: int = 5) -> Answers:
        """Search an index, with `scan_all` without posting lists; errors other than AnchorFoldError are raised."""
        answers = cls()
        queries = [page_vectors(name, 1, 2) for name in ("document03", "document17", "gone")]
        try:
            store = store or EmbeddedStore.open(folder)
        except AnchorFoldError as error:
            answers.values = {name: _sentence(error) for name in ("exact", "candidates", "documents")}
            return answers
        for name, selection, exact in (
            ("exact", Selection(), True),
            ("candidates", Selection(), None),
            ("documents", Selection(documents="*1*"), None),
            ("filter", Selection(where="year >= 2002 and team = 'sales'"), None),
        ):
            try:
                rankings = store.search(queries, top, selection, exact or scan_all)
                answers.values[name] = [[(h.source, h.page, round(h.score, 3)) for h in hits] for hits in rankings]
            except AnchorFoldError as error:
                answers.values[name] = _sentence(error)
        return answers

    def wrong(self, *right: Answers) -> list[str]:
        """Names of searches that returned something else than a right answer or an error."""
        return [
            name
            for name, value in self.values.items()
            if not isinstance(value, str) and all(value != answers.values[name] for answers in right)
        ]

    def not_in(self, ranking: set[tuple[str, int, float]]) -> list[str]:
        """Names of searches with a hit that is not in the ranking of a full scan, with its score."""
        return [
            name
            for name, value in self.values.items()
            if not isinstance(value, str) and any(hit not in ranking for hits in value for hit in hits)
        ]


def _sentence(error: AnchorFoldError) -> str:
    message = str(error)
    assert "\n" not in message, f"an error of several lines: {message!r}"
    return message


@dataclass(frozen=True)
class Flip:
    """A bit of a file."""

    name: str
    byte: int
    bit: int

    def apply(self, folder: Path) -> None:
        path = folder / self.name
        with open(path, "r+b") as file:
            file.seek(self.byte)
            value = file.read(1)[0]
            file.seek(self.byte)
            file.write(bytes([value ^ 1 << self.bit]))


def choose_flips(folder: Path, count: int, seed: int) -> list[Flip]:
    """Flips spread over all files: half by size, half evenly over the files."""
    rng = random.Random(seed)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    sizes = [path.stat().st_size for path in files]
    flips = []
    for number in range(count):
        path = rng.choices(files, sizes)[0] if number % 2 else files[number // 2 % len(files)]
        size = path.stat().st_size
        header = path.name == "index.db" and rng.random() < 0.1
        flips.append(Flip(str(path.relative_to(folder)), rng.randrange(100 if header else size), rng.randrange(8)))
    return flips


class Flipper:
    """Applies flips to copies of an index."""

    def __init__(self, root: Path) -> None:
        self.template, self.case = root / "template.index", root / "case.index"
        make_flippable(self.template)
        store = EmbeddedStore.open(self.template)
        # Posting lists that are damaged are ignored: then the answer is that of a full scan.
        self.right, self.scanned = Answers.of(self.template), Answers.of(self.template, scan_all=True)
        self.ranking = {hit for hits in Answers.of(self.template, top=200).values["exact"] for hit in hits}
        self.before = observe(store)
        self.outcomes: Counter[str] = Counter()

    def violations(self, flip: Flip) -> list[str]:
        """Apply a flip to a copy; returns what is wrong."""
        shutil.rmtree(self.case, ignore_errors=True)
        shutil.copytree(self.template, self.case)
        reader = EmbeddedStore.open(self.case)
        Answers.of(self.case, reader)
        flip.apply(self.case)
        found = []
        for name, store in (("fresh", None), ("open", reader)):
            answers = Answers.of(self.case, store)
            if flip.name.endswith(".ivf"):
                wrong = answers.not_in(self.ranking)
            else:
                wrong = answers.wrong(self.right, self.scanned)
            if flip.name == "index.db" and (filtered := [name for name in wrong if name in FILTERED]):
                # Filters and names are evaluated in SQL, which does not verify the checksums of rows.
                self.outcomes["wrong answers of filters"] += 1
                wrong = [name for name in wrong if name not in filtered]
            if wrong:
                found.append(f"a {name} store returns wrong answers: {wrong}")
        damages = check_index(self.case)
        if not damages:
            found += self._unchanged()
        self.outcomes["no effect" if not damages else damages[0].file.split(".")[-1]] += 1
        if damages:
            found += self._repaired()
        return found

    def _unchanged(self) -> list[str]:
        """What differs although `check` is clean."""
        try:
            store = EmbeddedStore.open(self.case)
            now = observe(store)
            changed = [name for name, value in now.items() if value != self.before[name]]
            if changed:
                return [f"check is clean, and these changed: {changed}"]
            with store.writing():
                add_document(store, "written")
                store.finish()
            left = check_index(self.case)
            return [f"check was clean; after a commit it reports {left}"] if left else []
        except AnchorFoldError as error:
            return [f"check is clean: {error}"]

    def _repaired(self) -> list[str]:
        try:
            check_index(self.case, fix=True)
        except AnchorFoldError as error:
            return [f"repair: {error}"]
        found = [f"check after repair reports {left}" for left in check_index(self.case)[:1]]
        store = EmbeddedStore.open(self.case)
        now = observe(store)
        lost = [key for key in self.before["pages"] if key not in now["pages"]]
        lost_documents = {path for path, _ in lost}
        if len(lost) > LOST_PAGES and not self._segment_unreadable():
            found.append(f"repair lost {len(lost)} of {len(self.before['pages'])} pages")
        for key, page in now["pages"].items():
            if key not in self.before["pages"]:
                self.outcomes["restored documents"] += 1
            elif page[1:3] != self.before["pages"][key][1:3] and key[0] not in lost_documents:
                found.append(f"repair changed the vectors of {key}")
        kept = [key for key in now["pages"] if key in self.before["pages"]]
        for position, name in ((3, "thumbnails"), (4, "texts"), (5, "metadata")):
            changed = sum(now["pages"][key][position] != self.before["pages"][key][position] for key in kept)
            if changed:
                self.outcomes[f"flips that lost {name}"] += 1
                self.outcomes[f"pages that lost {name}"] += changed
        with store.writing():
            add_document(store, "written")
            store.finish()
        return found + [f"check after a commit reports {left}" for left in check_index(self.case)[:1]]

    def _segment_unreadable(self) -> bool:
        """Whether a file that cannot be opened at all was moved away: all of its pages are lost."""
        for path in (self.case / "lost").glob("*.seg"):
            try:
                Segment(path)
            except (AnchorFoldError, ValueError, KeyError):
                return True
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=int, default=2000, help="Number of bits.")
    parser.add_argument("--seed", type=int, default=0, help="Seed.")
    options = parser.parse_args()
    use_small_limits()
    logging.disable(logging.WARNING)
    memory, began, failed = Path("/dev/shm"), time.monotonic(), 0
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as root:
        flipper = Flipper(Path(root))
        flips = choose_flips(flipper.template, options.flips, options.seed)
        print(f"files: {dict(Counter(Path(flip.name).suffix or flip.name for flip in flips))}")
        for flip in flips:
            try:
                problems = flipper.violations(flip)
            except Exception as error:
                problems = [f"{type(error).__name__}: {error}"]
            failed += bool(problems)
            for problem in problems:
                print(f"VIOLATION {flip}: {problem}", flush=True)
    print(f"outcomes: {dict(flipper.outcomes)}")
    print(f"{len(flips)} flips, {failed} violations, {time.monotonic() - began:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
