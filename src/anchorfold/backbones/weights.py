"""Model weights: strict loading, safe file formats, fingerprints, and the calibration file that belongs to them.

transformers initialises missing weights at random and drops unknown ones with a log message. An encoder loaded that way
runs and returns meaningless vectors, so checkpoints must match exactly. This module does not import torch.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from anchorfold.attention.layer_settings import CALIBRATION_FILE
from anchorfold.errors import AnchorFoldError, CheckpointError

# transformers reports neither non-persistent buffers (`rotary_emb.inv_freq`, `position_ids`) nor declared tied weights.
MAY_BE_MISSING = (r"\.num_batches_tracked$",)  # step counter of batch normalisation
MAY_BE_MISSING_IN_TEXT_ENCODERS = (r"(^|\.)pooler\.",)  # single-vector head; late interaction uses the tokens
UNUSED = (r"(^|\.)lm_head\.weight$",)  # next-token prediction, often tied to the embeddings
MAX_KEYS = 3  # keys listed in an error message
PICKLED = ("pytorch_model*.bin", "adapter_model*.bin")
FINGERPRINT_VALUES = 16  # per weight: enough to distinguish trainings, without reading all of a large model
CACHE_VARIABLE = "ANCHORFOLD_CACHE"


def load_strictly(cls: Any, name: str, *, unused: Collection[str] = (), **options: Any) -> Any:
    """Call `cls.from_pretrained(name, **options)` and raise CheckpointError if weights do not match.

    Args:
        cls: transformers model class.
        name: folder or hub name.
        unused: patterns of weights that the checkpoint may contain although the encoder does not use them.
        options: options of `from_pretrained`.
    """
    # Shape mismatches are reported with the rest instead of raised as a page of text.
    model, report = cls.from_pretrained(name, **options, output_loading_info=True, ignore_mismatched_sizes=True)
    check_report(name, report, unused)
    return model


def check_loaded(model: Any, name: str, **options: Any) -> None:
    """Raise CheckpointError if weights of a model that another library loaded were missing in its checkpoint.

    Unexpected weights are accepted: the checkpoint may contain those of further modules.
    """
    report = type(model).from_pretrained(
        model.name_or_path, config=model.config, device_map="meta", output_loading_info=True, **options
    )[1]  # on the meta device: names and shapes are compared without reading weights again
    check_report(name, {"missing_keys": _without(report["missing_keys"], MAY_BE_MISSING_IN_TEXT_ENCODERS)})


def check_report(name: str, report: Mapping[str, Any], unused: Collection[str] = ()) -> None:
    """Raise CheckpointError for the mismatches in transformers' `output_loading_info`."""
    if problems := weight_mismatches(report, unused):
        raise CheckpointError(
            f"{name} does not fit its architecture: {problems}. Give a complete checkpoint of a trained retriever (not "
            "of the bare language or vision model), or download it again; weights are never initialised at random."
        )


def weight_mismatches(report: Mapping[str, Any], unused: Collection[str] = ()) -> str:
    """Describe mismatched weights with their number and the first keys; empty if there are none.

    Args:
        report: `missing_keys`, `unexpected_keys`, `mismatched_keys` (key, saved and expected shape) and `error_msgs`.
        unused: patterns of unexpected weights that are accepted.
    """
    shapes = {f"{key} {list(saved)} for {list(expected)}" for key, saved, expected in report.get("mismatched_keys", ())}
    problems = [
        _count(_without(report.get("missing_keys", ()), MAY_BE_MISSING), "missing"),
        _count(_without(report.get("unexpected_keys", ()), [*UNUSED, *unused]), "unexpected"),
        _count(shapes, "of another shape"),
        *report.get("error_msgs", ()),
    ]
    return "; ".join(problem for problem in problems if problem)


def _without(keys: Collection[str], patterns: Collection[str]) -> list[str]:
    return [key for key in keys if not any(re.search(pattern, key) for pattern in patterns)]


def _count(keys: Collection[str], problem: str) -> str:
    """Return `72 weights missing (a, b, c, ...)`, or an empty string without keys."""
    if not keys:
        return ""
    names = ", ".join(sorted(keys)[:MAX_KEYS] + ["..."] * (len(keys) > MAX_KEYS))
    return f"{len(keys)} weight{'s' if len(keys) > 1 else ''} {problem} ({names})"


def require_safetensors(name: str, revision: str | None = None) -> None:
    """Raise AnchorFoldError if a folder or hub model has weights in pickle files only, which can execute code."""
    folder = Path(name)
    files = _relative_files(folder) if folder.is_dir() else _hub_files(name, revision)
    if pickled := pickled_only(files):
        raise AnchorFoldError(
            f"{name} has weights in a pickle file ({pickled[0]}), which can execute code when loaded: convert it to "
            "safetensors, or, if you trust its source, use --allow-pickle on the command line or allow_pickle=True in "
            "Python."
        )


def pickled_only(files: Iterable[str]) -> list[str]:
    """Return the pickled weights among a checkpoint's files that have no safetensors in the same folder."""
    paths = sorted(map(PurePosixPath, files))
    safe = {p.parent for p in paths if p.suffix == ".safetensors"}
    return [str(p) for p in paths if p.parent not in safe and any(fnmatch(p.name, pattern) for pattern in PICKLED)]


def _relative_files(folder: Path) -> list[str]:
    return [p.relative_to(folder).as_posix() for p in folder.rglob("*")]


def _hub_files(name: str, revision: str | None) -> list[str]:
    """Return the cached files of a hub model if its weights are cached, else the hub's listing; empty if offline."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    files: list[str] = []
    with suppress(LocalEntryNotFoundError):
        files = _relative_files(Path(snapshot_download(name, revision=revision, local_files_only=True)))
    if not any(file.endswith((".safetensors", ".bin")) for file in files):
        with suppress(Exception):  # the download that follows reports network errors
            files = [file.rfilename for file in HfApi().model_info(name, revision=revision).siblings or []]
    return files


def weights_fingerprint(kind: str, weights: Mapping[str, Any]) -> str:
    """Return a digest of weights that is the same on every device and in every precision.

    It includes the names, shapes and some values of all tensors or arrays, and `kind` (see `model_kind`).
    """
    digest = hashlib.blake2b(kind.encode(), digest_size=12)
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(as_bfloat16(_sample(weight)).tobytes())
    return digest.hexdigest()


def _sample(weight: Any) -> np.ndarray:
    flat = weight.reshape(-1) if isinstance(weight, np.ndarray) else weight.detach().reshape(-1)
    sample = flat[:: max(1, len(flat) // FINGERPRINT_VALUES)][:FINGERPRINT_VALUES]
    return sample.astype(np.float32) if isinstance(sample, np.ndarray) else np.asarray(sample.float().cpu())


def as_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16 precision: to the nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


def model_kind(family: str, causal: bool, dim: int | None = None) -> str:
    """Return the part of a fingerprint that weights do not contain: family, causal mask, truncated dimension."""
    return f"{family} causal={causal}" + (f" dim={dim}" if dim else "")


def cache_folder() -> Path:
    """Return `$ANCHORFOLD_CACHE`, or the user's cache folder."""
    from platformdirs import user_cache_path

    return Path(os.environ.get(CACHE_VARIABLE) or user_cache_path("anchorfold", appauthor=False))


def calibration_folder(name: str) -> Path:
    """Return the cache folder for calibrations of a model that is not a local folder."""
    return cache_folder() / "calibrations" / name.replace("/", "--")


def calibration_file(
    name: str, weights: Mapping[str, Any], revision: str | None = None, bidirectional: bool | None = None
) -> Path:
    """Return the path of a model's calibration: next to local weights or adapters, else in the user's cache.

    Args:
        name: folder, or name of a model on the hub or in this package.
        weights: weights of the model; other weights under the same name have another calibration.
        revision: revision of a hub model.
        bidirectional: the option of `load`; attention differs without the causal mask.
    """
    if Path(name).is_absolute() and Path(name).is_dir():
        return Path(name) / CALIBRATION_FILE
    # Merging adapters changes all weights except those of the adapters.
    adapters = {key: weight for key, weight in weights.items() if ".lora_" in key}
    digest = weights_fingerprint(f"bidirectional={bidirectional}", adapters or weights)
    return calibration_folder(name) / f"{(revision or 'main').replace('/', '--')}-{digest}.json"
