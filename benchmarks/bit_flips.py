"""Flip single bits in all files of an index.

After each flip:

- `check` reports damage, or the visible content is unchanged and the index is writable,
- a visual search (also filtered, and with posting lists) returns the correct pages, names and metadata, or raises
  AnchorFoldError; a text search raises no other error,
- `repair` succeeds and loses at most one page, or one text, one thumbnail or the metadata of one document, which it
  reports; `check` is clean afterwards.

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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from anchorfold.errors import AnchorFoldError
from anchorfold.filters.values import Plain
from anchorfold.retrieval import candidate_files, scan
from anchorfold.retrieval.embedded_store import EmbeddedStore, check_index
from anchorfold.storage.hits import SearchRequest
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
    (candidate_files, "FIRST_PAGES", 10),
    (candidate_files, "LISTED_ROWS", 5),
    (scan, "CANDIDATES", 20),
)
LOST_PAGES = 1  # maximum per flip: pages have their own checksums, and what they depend on is stored twice


def use_small_limits() -> None:
    """Build posting lists for small indexes."""
    for module, name, value in LIMITS:
        setattr(module, name, value)


def make_flippable(folder: Path) -> None:
    """Create an index with posting lists in two vector files, small files, metadata and a removed document."""
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
    """Results of visual searches by name: hits, or an error message."""

    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, store: EmbeddedStore | None = None, scan_all: bool = False, top_k: int = 5) -> Answers:
        """Search an index, with `scan_all` without posting lists; errors other than AnchorFoldError are raised."""
        answers = cls()
        queries = [page_vectors(name, 1, 2) for name in ("document03", "document17", "gone")]
        try:
            store = store or EmbeddedStore.open(folder)
        except AnchorFoldError as error:
            answers.values = {name: _sentence(error) for name in ("exact", "candidates", "documents")}
            return answers
        for name, selection, exact in (
            ("exact", SearchRequest(), True),
            ("candidates", SearchRequest(), None),
            ("documents", SearchRequest(documents="*1*"), None),
            ("filter", SearchRequest(where="year >= 2002 and team = 'sales'"), None),
            ("page filter", SearchRequest(where="page = 2 or kind = 'pdf' and year = 2001"), None),
        ):
            try:
                rankings = store.search_visual(
                    replace(selection, vectors=queries, top_k=top_k, exact=exact or scan_all)
                )
                answers.values[name] = [
                    [(h.page_id, h.source, h.page, round(h.score, 3), h.document, h.metadata) for h in hits]
                    for hits in rankings
                ]
            except AnchorFoldError as error:
                answers.values[name] = _sentence(error)
        try:
            store.search_text(SearchRequest(["common", "document03r1p1"], where="year >= 2002"))
        except AnchorFoldError as error:
            _sentence(error)
        return answers

    def wrong(self, *right: Answers) -> list[str]:
        """Return the names of searches whose result is neither correct nor an error."""
        return [
            name
            for name, value in self.values.items()
            if not isinstance(value, str) and all(value != answers.values[name] for answers in right)
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
    """Return flips over all files: half in proportion to file size, half evenly per file."""
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
        self.right = Answers.of(self.template)
        # Damaged derived files are ignored: the results are then those of an index without the file.
        self.without: dict[str, Answers] = {}
        for path in sorted(self.template.rglob("*.ivf")):
            shutil.copytree(self.template, self.case)
            name = str(path.relative_to(self.template))
            (self.case / name).unlink()
            self.without[name] = Answers.of(self.case)
            shutil.rmtree(self.case)
        self.before = observe(store)
        self.outcomes: Counter[str] = Counter()

    def violations(self, flip: Flip) -> list[str]:
        """Apply a flip to a copy and return the violations."""
        shutil.rmtree(self.case, ignore_errors=True)
        shutil.copytree(self.template, self.case)
        reader = EmbeddedStore.open(self.case)
        Answers.of(self.case, reader)
        flip.apply(self.case)
        found = []
        for name, store in (("fresh", None), ("open", reader)):
            answers = Answers.of(self.case, store)
            if wrong := answers.wrong(self.right, self.without.get(flip.name, self.right)):
                found.append(f"a {name} store returns wrong answers: {wrong}")
        damages = check_index(self.case)
        if not damages:
            found += self._unchanged()
        self.outcomes["no effect" if not damages else damages[0].file.split(".")[-1]] += 1
        if damages:
            found += self._repaired()
        return found

    def _unchanged(self) -> list[str]:
        """Return the differences that `check` does not report."""
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
            reports = check_index(self.case, fix=True)
        except AnchorFoldError as error:
            return [f"repair: {error}"]
        found = [f"check after repair reports {left}" for left in check_index(self.case)[:1]]
        store = EmbeddedStore.open(self.case)
        now = observe(store)
        lost = [key for key in self.before["pages"] if key not in now["pages"]]
        lost_documents = {path for path, _ in lost}
        if len(lost) > LOST_PAGES:
            found.append(f"repair lost {len(lost)} of {len(self.before['pages'])} pages")
        for key, page in now["pages"].items():
            if key not in self.before["pages"]:
                self.outcomes["restored documents"] += 1
            elif page[1:3] != self.before["pages"][key][1:3] and key[0] not in lost_documents:
                found.append(f"repair changed the vectors of {key}")
        kept = [key for key in now["pages"] if key in self.before["pages"]]
        for position, name in ((3, "thumbnail"), (4, "text"), (5, "metadata")):
            changed = [key for key in kept if now["pages"][key][position] != self.before["pages"][key][position]]
            if not changed:
                continue
            self.outcomes[f"flips that lost {name}"] += 1
            documents = {now["documents"][path][0] for path, _ in changed}
            if len(documents) > 1 or (name != "metadata" and len(changed) > 1):
                found.append(f"repair lost the {name} of {changed}")
            if not any(f"without {name}" in r.problem or documents & set(r.documents) for r in reports):
                found.append(f"repair does not report that it lost the {name} of {changed}")
        with store.writing():
            add_document(store, "written")
            store.finish()
        return found + [f"check after a commit reports {left}" for left in check_index(self.case)[:1]]


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
        for number, flip in enumerate(flips, 1):
            try:
                problems = flipper.violations(flip)
            except Exception as error:
                problems = [f"{type(error).__name__}: {error}"]
            failed += bool(problems)
            for problem in problems:
                print(f"VIOLATION {flip}: {problem}", flush=True)
            if number % 100 == 0:
                print(f"{number} flips, {failed} violations, {time.monotonic() - began:.0f} s", flush=True)
    print(f"outcomes: {dict(flipper.outcomes)}")
    print(f"{len(flips)} flips, {failed} violations, {time.monotonic() - began:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
