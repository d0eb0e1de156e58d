"""Checkpoints on disk or on the hub, and the registry of model families that load them."""

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
from anchorfold.backbones.encoder import Encoder
from anchorfold.backbones.weights import calibration_file, load_strictly, require_safetensors


@dataclass(frozen=True)
class Checkpoint:
    """A model to load: `name` is a folder or a hub name; the other fields are the options of `anchorfold.load`."""

    name: str
    device: torch.device
    dtype: torch.dtype
    revision: str | None = None
    trust_remote_code: bool = False
    bidirectional: bool | None = None
    merge_adapters: bool = True
    dim: int | None = None
    allow_pickle: bool = False
    layer_settings: LayerSettings | Path | None = None

    @cached_property
    def folder(self) -> Path | None:
        """Local folder, or None for a hub model."""
        return Path(self.name) if Path(self.name).is_dir() else None

    @cached_property
    def config(self) -> dict[str, Any]:
        """Content of `adapter_config.json`, or of `config.json` without adapters."""
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
                offline = True  # another request would take as long: use the local cache only
                continue
            if content is not None:
                return content
        raise FileNotFoundError(f"{self.name} has no config.json: it is not a model checkpoint.")

    @property
    def model_type(self) -> str:
        """Architecture name in transformers."""
        return str(self.config.get("model_type", ""))

    def base(self, name: str, revision: str | None = None) -> Checkpoint:
        """Return the base model of adapters, with the same options."""
        return replace(self, name=name, revision=revision)

    def json(self, file: str) -> dict[str, Any] | None:
        """Return a JSON file, or None if it does not exist or the hub is unreachable (except for config.json)."""
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
        """Load a transformers model with all of its weights onto the device."""
        if not self.allow_pickle:
            require_safetensors(self.name, self.revision)
            options["use_safetensors"] = True
        try:
            model = load_strictly(model_class, self.name, revision=self.revision, dtype=self.dtype, **options)
        except OSError as error:
            raise FileNotFoundError(f"cannot load {self.name}: {str(error).splitlines()[0]}") from error
        return model.to(self.device)

    def choose_layer_settings(
        self, family: str, layers: int, model: Any = None, shipped: Path | None = None
    ) -> LayerSettings:
        """Return the settings given to `load`, the model's calibration, the paper's settings, or a default by depth.

        Args:
            family: model family.
            layers: depth of the model.
            model: the loaded model, whose weights identify the calibration of a hub model; None ignores that one.
            shipped: calibration file distributed with the model.
        """
        if isinstance(self.layer_settings, LayerSettings):
            return require_depth(self.layer_settings, layers)
        if self.layer_settings is not None:
            return read_settings(self.layer_settings, layers)
        files = [self.folder / CALIBRATION_FILE] if self.folder else []
        if model is not None:
            files = [calibration_file(self.name, model.state_dict(), self.revision, self.bidirectional)]
        return settings_for(family, layers, *files, shipped=shipped)


@dataclass(frozen=True)
class Backbone:
    """A family of models.

    Args:
        load: create an encoder from a checkpoint.
        claims: whether a checkpoint's configuration belongs to this family; None if it is selected by name only.
        has_name: whether its registered name is a model name, with priority over a folder of the same name.
    """

    load: Callable[[Checkpoint], Encoder]
    claims: Callable[[Checkpoint], bool] | None = None
    has_name: bool = False


# Other packages register families in this entry point group, also families without checkpoints.
BACKBONES: Registry[Backbone] = Registry(
    "anchorfold.backbones",
    "backbone",
    {
        "nano": "anchorfold.backbones.nano.retriever:BACKBONE",
        "retrieval-heads": "anchorfold.backbones.retrieval_heads:BACKBONE",
        "colpali-engine": "anchorfold.backbones.colpali_engine:BACKBONE",
        "colqwen": "anchorfold.backbones.colqwen:BACKBONE",
        "nemotron": "anchorfold.backbones.nemotron:BACKBONE",
        "given-vectors": "anchorfold.backbones.given_vectors:BACKBONE",
    },
)


def did_you_mean(name: str) -> str:
    """Return a question that suggests published models with a similar name; empty for a published model."""
    from anchorfold.backbones.catalogue import similar_models

    models = similar_models(name)
    if name in models:
        return ""
    return f"did you mean {' or '.join(models)}? If not, " if models else ""


def _from_hub(name: str, file: str, revision: str | None, cached: bool = False) -> Path | None:
    """Return the local path of a hub model's file, or None if the model does not have it.

    Args:
        name: hub name.
        file: path in the model's repository.
        revision: revision of the model.
        cached: use the local cache only.

    Raises:
        FileNotFoundError: the hub has no such model.
        ConnectionError: the hub is unreachable, and the file is not in the cache.
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
            f"cannot reach the model hub for {name!r}, and it is not in the local cache: {did_you_mean(name)}connect "
            "to the network once, or give a local folder."
        ) from None
