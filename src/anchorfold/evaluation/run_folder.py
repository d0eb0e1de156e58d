"""Run folders: resumable result files, and the key of everything that their scores depend on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from anchorfold import __version__
from anchorfold.backbones.base import BackboneEncoder
from anchorfold.compressors import Compressor
from anchorfold.errors import MismatchError
from anchorfold.evaluation.corpus import Corpus

STATE = "state.json"


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("w") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


class RunFolder:
    """Append-only files of a run, truncated to the last saved state.

    Args:
        folder: the folder, created if it does not exist.
        key: `run_key` of the run; a folder with another key is refused.
        names: file names.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any], names: Iterable[str]) -> None:
        self.folder = folder
        self.state = self._resume_or_create(dict(key))
        with ExitStack() as opening:
            self._files = {
                name: opening.enter_context(_open_truncated(folder / name, self.state["sizes"].get(name, 0)))
                for name in names
            }
            self._open = opening.pop_all()
        self.save()  # files never exist without a state

    @property
    def pages(self) -> list[str]:
        """Names of the finished pages."""
        names: list[str] = self.state["pages"]
        return names

    def append(self, name: str, data: bytes) -> None:
        """Append bytes to a file; they are part of the run after `save`."""
        self._files[name].write(data)

    def save(self) -> None:
        """Sync the files and save the state."""
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

    def _resume_or_create(self, key: dict[str, Any]) -> dict[str, Any]:
        """Return the state of an earlier run with the same key, or a new state."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / STATE
        if not path.exists():
            return {"key": key, "pages": [], "sizes": {}}
        try:
            state: dict[str, Any] = json.loads(path.read_text())
        except ValueError as error:
            raise MismatchError(f"{path} cannot be read ({error}). Choose another folder (--output).") from error
        if different := differences(state.get("key", {}), key):
            raise MismatchError(f"{self.folder} contains another run: {different}. Choose another folder (--output).")
        return state


def _open_truncated(path: Path, size: int) -> BinaryIO:
    """Open a file for appending, truncated to the saved size."""
    path.touch()
    if path.stat().st_size < size:
        raise MismatchError(f"{path} is shorter than its saved state. Choose another folder (--output).")
    file = path.open("r+b")
    file.truncate(size)
    file.seek(size)
    return file


NAMED = 3  # differences listed in a message


def run_key(
    corpus: Corpus, model: BackboneEncoder, compressors: Mapping[str, Compressor], calibrated_on: str = ""
) -> dict[str, Any]:
    """Return everything that determines the scores of a run, as JSON of at most two levels."""
    layers = {name: value for name, value in asdict(model.layer_settings).items() if name != "source"}
    key = {
        "anchorfold": __version__,
        "model": f"{model.family} {model.fingerprint} in {model.dtype} on {model.device.type}",
        "layers": layers,
        "pixels of a page": model.page_pixels,
        "calibration": calibrated_on,
        "method": {label: f"{c.name} {c.options}" for label, c in compressors.items()},
        **corpus.lazy_pages.origin(),
        "queries": digest_of([vars(query) for query in corpus.queries]),
    }
    stored: dict[str, Any] = json.loads(json.dumps(key))  # normalise tuples to lists
    return stored


def digest_of(items: list[Any]) -> str:
    """Return the number of items and a digest of them."""
    return f"{len(items)}, digest {hashlib.blake2b(json.dumps(items).encode(), digest_size=12).hexdigest()}"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe the differences between two keys; empty if there are none.

    >>> differences({"model": "a", "layers": {"steps": 6}}, {"model": "a", "layers": {"steps": 2}})
    'layers steps was 6, is 2 now'
    """
    old, new = _flatten(before), _flatten(now)
    names = [name for name in {**new, **old} if old.get(name) != new.get(name)]
    spelt = [f"{name} was {old.get(name, 'absent')}, is {new.get(name, 'absent')} now" for name in names[:NAMED]]
    return "; ".join([*spelt, *([f"and {len(names) - NAMED} more"] if len(names) > NAMED else [])])


def _flatten(key: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in key.items():
        flat |= {f"{name} {part}": v for part, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat
