"""The documents of the soak test: files with numbered pages that change in every way that files change.

The world remembers what every file held since the last check, so that an answer of an index that was read meanwhile
can be judged: it must fit one of these versions.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.soak_pages import document_bytes

ROOT = "documents"
FOLDERS = ("", "a", "b", "b/deep", "c d", "e'f")
SUFFIXES = (".pdf", ".pdf", ".pdf", ".tiff", ".png", ".jpg", ".webp")
MAX_DOCUMENTS = 24


@dataclass(frozen=True)
class Version:
    """Content of a file: the numbers on its pages; none if it cannot be read."""

    numbers: tuple[int, ...] = ()

    @property
    def readable(self) -> bool:
        return bool(self.numbers)


@dataclass
class History:
    """What a file held since the last check: versions in order, None where it was not there.

    `torn` if it was rewritten in place, so that whoever read it meanwhile may have seen parts of two versions.
    """

    versions: list[Version | None]
    torn: bool = False

    @property
    def steady(self) -> bool:
        return len(self.versions) == 1 and not self.torn

    @property
    def always(self) -> bool:
        """Whether the index held the file at the last check, and nobody took it away since."""
        return None not in self.versions and not self.torn


@dataclass
class World:
    """Files below `home/documents`; names are relative to `home`, sources absolute."""

    folder: Path
    home: Path = field(init=False)
    files: dict[str, Version] = field(default_factory=dict)
    locked: set[str] = field(default_factory=set)  # folders that nobody may look into
    histories: dict[str, History] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _names: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.home = self.folder / "home-1"
        (self.home / ROOT).mkdir(parents=True)

    # What is there.

    def source(self, name: str) -> str:
        return os.path.abspath(self.home / name)

    def readable(self) -> dict[str, Version]:
        """Documents that an index must hold."""
        return {n: v for n, v in self.files.items() if v.readable and not self.is_locked(n)}

    def skipped(self) -> set[str]:
        """Files and folders that an index must say it cannot read."""
        return {n for n, v in self.files.items() if not v.readable and not self.is_locked(n)} | self.locked

    def is_locked(self, name: str) -> bool:
        return any(name.startswith(folder + "/") for folder in self.locked)

    def must_stay(self, source: str) -> bool:
        """Whether an index cannot know of a file that was here, or elsewhere before all were moved, if it is gone."""
        name = os.path.relpath(source, self.folder).partition("/")[2]
        return self.is_locked(name) or (name in self.files and name not in self.readable())

    def start_round(self, indexed: dict[str, Version]) -> None:
        """Begin a new history with what the index holds now, by source, and what is on the disk if that differs."""
        self.histories = {source: History([version]) for source, version in indexed.items()}
        now = {self.source(name): version for name, version in self.files.items()}
        for source in [*now, *indexed]:
            history = self.history(source)
            if history.versions[-1] != now.get(source):
                history.versions.append(now.get(source))

    def history(self, source: str) -> History:
        return self.histories.setdefault(source, History([None]))

    def removed_from_index(self, pattern: str) -> None:
        """Note that documents of this name, path, folder or pattern may be taken out of the index."""
        for name in self.files:
            if pattern in (name, self.source(name)) or name.startswith(pattern + "/") or fnmatch(name, pattern):
                self.history(self.source(name)).versions.append(None)

    # What changes.

    def change(self, rng: random.Random) -> str:
        """Change something; what was done, in words."""
        names = sorted(self.readable())
        # What an index keeps of a file that was torn and then spoiled nobody can know.
        untorn = [n for n in names if not self.history(self.source(n)).torn] or names[:1]
        others = [n for n in sorted(self.files) if not self.is_locked(n)]
        if len(names) < 4 or (len(self.files) < MAX_DOCUMENTS and rng.random() < 0.25):
            return self.new_file(rng)
        changes: list[tuple[int, Callable[[], str]]] = [
            (4, lambda: self.replace(rng.choice(others), rng)),
            (3, lambda: self.rewrite(rng.choice(names), rng)),
            (2, lambda: self.flicker(rng.choice(names), rng)),
            (3, lambda: self.touch(rng.choice(names))),
            (2, lambda: self.rename(rng.choice(names), rng)),
            (1, lambda: self.rename_folder(rng)),
            (3, lambda: self.remove(rng.choice(others))),
            (3, lambda: self.spoil(rng.choice(untorn), rng)),
            (1, lambda: self.lock_folder(rng)),
            (2, self.unlock_folders),
        ]
        weights, functions = zip(*changes, strict=True)
        return rng.choices(functions, weights)[0]()

    def _content(self, suffix: str, rng: random.Random) -> tuple[Version, bytes]:
        pages = rng.choice([1, 2, 3, 5, 8, 14]) if suffix in (".pdf", ".tiff") else 1
        numbers = tuple(itertools.islice(self._numbers, pages))
        return Version(numbers), document_bytes(suffix, numbers)

    def _write(self, name: str, data: bytes, version: Version) -> None:
        """A file in one step: whoever has the old one open goes on reading it."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(data)
        self._note(name, version)
        part.rename(path)

    def _note(self, name: str, version: Version | None) -> None:
        # Told before the file changes: a reader may see the new one at once.
        self.history(self.source(name)).versions.append(version)
        if version is None:
            self.files.pop(name, None)
        else:
            self.files[name] = version

    def new_file(self, rng: random.Random) -> str:
        suffix = rng.choice(SUFFIXES)
        folder = rng.choice([f for f in FOLDERS if not self.is_locked(f"{ROOT}/{f}/")])
        name = os.path.normpath(f"{ROOT}/{folder}/{next(self._names)}{suffix}")
        version, data = self._content(suffix, rng)
        self._write(name, data, version)
        return f"new {name} {version.numbers}"

    def replace(self, name: str, rng: random.Random) -> str:
        version, data = self._content(Path(name).suffix, rng)
        self._write(name, data, version)
        return f"replace {name} by {version.numbers}"

    def rewrite(self, name: str, rng: random.Random) -> str:
        version, data = self._content(Path(name).suffix, rng)
        self.history(self.source(name)).torn = True
        self._note(name, version)
        with open(self.home / name, "wb", buffering=0) as file:
            for start in range(0, len(data), 1 + len(data) // 3):
                file.write(data[start : start + 1 + len(data) // 3])
                time.sleep(rng.uniform(0, 0.02))
        return f"rewrite {name} in place by {version.numbers}"

    def flicker(self, name: str, rng: random.Random) -> str:
        before, data = self.files[name], (self.home / name).read_bytes()
        self.replace(name, rng)
        between = self.files[name]
        time.sleep(rng.uniform(0, 0.3))
        self._write(name, data, before)
        return f"replace {name} by {between.numbers} and back by {before.numbers}"

    def touch(self, name: str) -> str:
        os.utime(self.home / name)
        return f"touch {name}"

    def rename(self, name: str, rng: random.Random) -> str:
        folder = rng.choice([f for f in FOLDERS if not self.is_locked(f"{ROOT}/{f}/")])
        new = os.path.normpath(f"{ROOT}/{folder}/{next(self._names)}{Path(name).suffix}")
        (self.home / new).parent.mkdir(parents=True, exist_ok=True)
        version = self.files[name]
        self._note(new, version)
        self._note(name, None)
        (self.home / name).rename(self.home / new)
        return f"rename {name} to {new}"

    def rename_folder(self, rng: random.Random) -> str:
        folders = [f for f in ("a", "b/deep", "c d") if (self.home / ROOT / f).is_dir()]
        folders = [f for f in folders if not self.is_locked(f"{ROOT}/{f}/")]
        if not folders:
            return "no folder to rename"
        old = f"{ROOT}/{rng.choice(folders)}"
        new = f"{ROOT}/folder {next(self._names)}"
        for name in [n for n in self.files if n.startswith(old + "/")]:
            self._note(new + name.removeprefix(old), self.files[name])
            self._note(name, None)
        (self.home / old).rename(self.home / new)
        return f"rename {old} to {new}"

    def remove(self, name: str) -> str:
        self._note(name, None)
        (self.home / name).unlink()
        return f"remove {name}"

    def spoil(self, name: str, rng: random.Random) -> str:
        defect = rng.choice(["empty", "garbage", "half a header", "permission", "broken link"])
        path = self.home / name
        if defect == "permission":
            self._note(name, Version())
            path.chmod(0)
        elif defect == "broken link":
            self._note(name, None)  # the document is gone, what stands for it cannot be read
            self._note(name, Version())
            path.unlink()
            path.symlink_to("nowhere")
        else:
            data = {"empty": b"", "garbage": rng.randbytes(3000), "half a header": b"%PDF-1.7\n" + rng.randbytes(50)}
            self._write(name, data[defect], Version())
        return f"spoil {name}: {defect}"

    def lock_folder(self, rng: random.Random) -> str:
        folder = f"{ROOT}/{rng.choice(['a', 'b', 'c d'])}"
        inside = [n for n in self.files if n.startswith(folder + "/")]
        if self.locked or not inside or any(self.history(self.source(n)).torn for n in inside):
            return self.unlock_folders()
        self.locked.add(folder)
        (self.home / folder).chmod(0)
        return f"take away the permission to read {folder}"

    def unlock_folders(self) -> str:
        for name in filter(self.is_locked, self.files):
            self.history(self.source(name)).versions.append(self.files[name])  # whoever read before saw it locked
        for folder in self.locked:
            (self.home / folder).chmod(0o755)
        text = f"give back the permission to read {', '.join(sorted(self.locked)) or 'nothing'}"
        self.locked.clear()
        return text

    def move_home(self) -> str:
        """Move all documents to another folder."""
        new = self.folder / f"home-{int(self.home.name.split('-')[1]) + 1}"
        # An index takes documents that are gone along with their folder, until it is told to drop them.
        missing = [
            os.path.relpath(s, self.home) for s in self.histories if s.startswith(f"{os.path.abspath(self.home)}/")
        ]
        for name in dict.fromkeys([*self.files, *missing]):
            old = self.history(self.source(name))
            versions = [None, *old.versions, self.files.get(name)]
            self.histories[os.path.abspath(new / name)] = History(versions, old.torn)
            old.versions.append(None)
        self.home.rename(new)
        self.home = new
        return f"move all documents to {new}"

    def copy_to(self, folder: Path) -> None:
        shutil.copytree(self.home, folder, symlinks=True)
