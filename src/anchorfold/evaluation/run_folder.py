"""The folder of a run: files that only grow, and a state that says how much of them counts. A killed run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from anchorfold.errors import MismatchError
from anchorfold.evaluation.run_key import differences

STATE = "state.json"


def write_json(path: Path, data: Any) -> None:
    """Replace a file in one step: a reader or a crash sees the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("w") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


class RunFolder:
    """Open files of one run, each at the end of what its state has saved.

    Args:
        folder: where they are, or will be.
        key: what the run depends on (`run_key`); another run's folder is refused, with the difference.
        names: of the files.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any], names: Iterable[str]) -> None:
        self.folder = folder
        self.state = self._take_up(dict(key))
        with ExitStack() as opening:
            self._files = {
                name: opening.enter_context(_cut_back(folder / name, self.state["sizes"].get(name, 0)))
                for name in names
            }
            self._open = opening.pop_all()
        self.save()  # before the first bytes: files never lie there without a state

    @property
    def pages(self) -> list[str]:
        """Names of the pages that are done."""
        names: list[str] = self.state["pages"]
        return names

    def append(self, name: str, data: bytes) -> None:
        """Bytes at the end of a file; they count once `save` has returned."""
        self._files[name].write(data)

    def save(self) -> None:
        """Everything appended so far counts, whatever happens now."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.state["sizes"] = {name: file.tell() for name, file in self._files.items()}
        write_json(self.folder / STATE, self.state)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _take_up(self, key: dict[str, Any]) -> dict[str, Any]:
        """The state of an earlier run with the same key; a fresh one if there is none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / STATE
        if not path.exists():
            return {"key": key, "pages": [], "sizes": {}}
        try:
            state: dict[str, Any] = json.loads(path.read_text())
        except ValueError as error:
            raise MismatchError(
                f"{path} cannot be read ({error}): choose another folder for this run (--to)."
            ) from error
        if different := differences(state.get("key", {}), key):
            raise MismatchError(
                f"{self.folder} holds another run: {different}. Choose another folder for this one (--to)."
            )
        return state


def _cut_back(path: Path, size: int) -> BinaryIO:
    """A file open at its end, without what was written after the state was saved."""
    path.touch()
    if path.stat().st_size < size:
        raise MismatchError(f"{path} is shorter than its run has saved: choose another folder for this one (--to).")
    file = path.open("r+b")
    file.truncate(size)
    file.seek(size)
    return file
