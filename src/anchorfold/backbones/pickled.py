"""Weights in pickle files can run code when they are opened: only safetensors are, unless the caller says otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from anchorfold.errors import AnchorFoldError

PICKLED = ("pytorch_model*.bin", "adapter_model*.bin")


def require_safetensors(name: str, revision: str | None = None) -> None:
    """Refuse a checkpoint, a folder or a hub model, whose weights or those of one of its parts are pickled only."""
    folder = Path(name)
    local = folder.is_dir()
    files = [p.relative_to(folder).as_posix() for p in folder.rglob("*")] if local else _hub_files(name, revision)
    pickled = pickled_only(files)
    if pickled:
        raise AnchorFoldError(
            f"{name} keeps weights in a pickle file ({pickled[0]}), which could run code when it is opened: convert it "
            "to safetensors, or, if you trust its source, use --allow-pickle on the command line or allow_pickle=True "
            "in Python."
        )


def pickled_only(files: Iterable[str]) -> list[str]:
    """Pickled weights among a checkpoint's files, without those that have safetensors beside them."""
    paths = sorted(map(PurePosixPath, files))
    safe = {p.parent for p in paths if p.suffix == ".safetensors"}
    return [str(p) for p in paths if p.parent not in safe and any(fnmatch(p.name, pattern) for pattern in PICKLED)]


def _hub_files(name: str, revision: str | None) -> list[str]:
    """What is cached of a hub model if its weights are, else what the hub says that it holds; nothing if offline."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(name, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        files = []
    else:
        files = [p.relative_to(cached).as_posix() for p in cached.rglob("*")]
    if not any(file.endswith((".safetensors", ".bin")) for file in files):
        with suppress(Exception):  # whoever downloads the weights next says what is wrong with the network
            files = [file.rfilename for file in HfApi().model_info(name, revision=revision).siblings or []]
    return files
