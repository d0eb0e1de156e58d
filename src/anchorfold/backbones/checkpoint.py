"""A model on disk or on the hub, and how it is wanted: what a backbone needs to load it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from anchorfold._registry import Registry
from anchorfold.attention.layer_settings import (
    CALIBRATION_FILE,
    LayerSettings,
    read_settings,
    require_depth,
    settings_for,
)
from anchorfold.backbones.calibrations import calibration_file
from anchorfold.backbones.encoder import PageEncoder
from anchorfold.backbones.pickled import require_safetensors
from anchorfold.backbones.strict import load_strictly


@dataclass(frozen=True)
class Checkpoint:
    """`name` is a folder or a hub name; the rest are the options of `anchorfold.load`."""

    name: str
    device: torch.device
    dtype: torch.dtype
    revision: str | None = None
    trust_remote_code: bool = False
    bidirectional: bool | None = None
    merge_adapters: bool = True
    allow_pickle: bool = False
    settings: LayerSettings | Path | None = None

    @cached_property
    def folder(self) -> Path | None:
        """Where it is, unless it is on the hub."""
        return Path(self.name) if Path(self.name).is_dir() else None

    @cached_property
    def config(self) -> dict[str, Any]:
        """The checkpoint's `config.json` or, for adapters, `adapter_config.json`."""
        if self.folder is None and (self.name.startswith((".", "/", "~")) or self.name.count("/") != 1):
            raise FileNotFoundError(
                f"there is no model folder {self.name!r}: {did_you_mean(self.name)}give a folder, or a hub name such "
                "as owner/model."
            )
        offline = False
        for file in ("adapter_config.json", "config.json"):
            try:
                content = self._read(file, offline)
            except ConnectionError:
                if file == "config.json":
                    raise
                offline = True  # the next request would wait as long: look into the cache only
                continue
            if content is not None:
                return content
        raise FileNotFoundError(f"{self.name} holds no config.json: it is not a model checkpoint.")

    @property
    def model_type(self) -> str:
        """What transformers calls its architecture."""
        return str(self.config.get("model_type", ""))

    def base(self, name: str, revision: str | None = None) -> Checkpoint:
        """The model that adapters are for, wanted in the same way."""
        return replace(self, name=name, revision=revision)

    def json(self, file: str) -> dict[str, Any] | None:
        """One of its JSON files; None if it has no such file, or, but for config.json, the hub cannot be reached."""
        try:
            return self._read(file)
        except ConnectionError:
            if file == "config.json":
                raise
            return None

    def _read(self, file: str, cached: bool = False) -> dict[str, Any] | None:
        path = self.folder / file if self.folder else _from_hub(self.name, file, self.revision, cached)
        if path is None or not path.is_file():
            return None
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return content

    def pretrained(self, model_class: Any, **options: Any) -> Any:
        """A transformers model with all of its weights, on the device."""
        if not self.allow_pickle:
            require_safetensors(self.name, self.revision)
            options["use_safetensors"] = True
        try:
            model = load_strictly(model_class, self.name, revision=self.revision, dtype=self.dtype, **options)
        except OSError as error:
            raise FileNotFoundError(f"{self.name} cannot be loaded: {str(error).splitlines()[0]}") from error
        return model.to(self.device)

    def layer_settings(self, family: str, layers: int, model: Any = None, shipped: Path | None = None) -> LayerSettings:
        """What `load` was given, the model's calibration, the paper's, or a guess.

        Args:
            family: of the model.
            layers: its depth.
            model: with all of its weights, by which a hub model's calibration is found; None leaves that one out.
            shipped: the calibration file that comes with it.
        """
        if isinstance(self.settings, LayerSettings):
            return require_depth(self.settings, layers)
        if self.settings is not None:
            return read_settings(self.settings, layers)
        files = [self.folder / CALIBRATION_FILE] if self.folder else []
        if model is not None:
            files = [calibration_file(self.name, model.state_dict(), self.revision, self.bidirectional)]
        return settings_for(family, layers, *files, shipped=shipped)


@dataclass(frozen=True)
class Backbone:
    """A family of models.

    Args:
        load: makes an encoder of a checkpoint.
        claims: whether a checkpoint is of this family, by its configuration; None if it is known by its name alone.
        has_name: whether its name in the register is that of a model, which a folder of that name does not hide.
    """

    load: Callable[[Checkpoint], PageEncoder]
    claims: Callable[[Checkpoint], bool] | None = None
    has_name: bool = False


_OURS = {
    "nano": "nano.retriever:BACKBONE",
    "colpali": "retrieval_heads:COLPALI",
    "colqwen2": "retrieval_heads:COLQWEN2",
    "colmodernvbert": "retrieval_heads:COLMODERNVBERT",
    "colqwen": "colqwen_backbone:BACKBONE",
    "nemotron": "nemotron:BACKBONE",
    "given-vectors": "given_vectors:BACKBONE",
}
# A package that brings a family of models, or one that needs no checkpoint, names it in this entry point group.
BACKBONES: Registry[Backbone] = Registry(
    "anchorfold.backbones", "backbone", {name: f"anchorfold.backbones.{where}" for name, where in _OURS.items()}
)


def did_you_mean(name: str) -> str:
    """Return a question that suggests published models with a similar name, or an empty string."""
    from anchorfold.backbones.catalogue import similar_models

    models = similar_models(name)
    return f"did you mean {' or '.join(models)}? If not, " if models else ""


def _from_hub(name: str, file: str, revision: str | None, cached: bool = False) -> Path | None:
    """Return a file of a hub model, or None if the model does not have it.

    Args:
        name: of the model.
        file: its path in the model's repository.
        revision: of the model.
        cached: whether to look into the local cache only.

    Raises:
        FileNotFoundError: the hub has no such model.
        ConnectionError: the hub cannot be reached, and the file is not in the cache.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(hf_hub_download(name, file, revision=revision, local_files_only=cached))
    except RepositoryNotFoundError:
        raise FileNotFoundError(
            f"the model hub has no public model {name!r}: {did_you_mean(name)}check the name, or log in."
        ) from None
    except (LocalEntryNotFoundError, OSError) as error:
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            return None
        raise ConnectionError(
            f"cannot reach the model hub for {name!r}, and it is not in the local cache: connect to the network once, "
            "or give a local folder."
        ) from None
