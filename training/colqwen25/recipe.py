"""Recipes: all settings of a training run, read from TOML as differences from the paper's recipe."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from anchorfold.errors import AnchorFoldError

FOLDER = Path(__file__).parent
PAPER = "paper"


@dataclass(frozen=True)
class ModelRecipe:
    """Base model and its precision."""

    base: str
    bidirectional: bool
    visual_tokens: int
    dtype: Literal["bfloat16", "float32"]
    attention: str


@dataclass(frozen=True)
class DataRecipe:
    """Training and validation data."""

    train: str
    streaming: bool
    validation: str
    held_out: float
    validation_queries: int


@dataclass(frozen=True)
class LossRecipe:
    """Loss function."""

    kind: Literal["pairwise", "cross-entropy"]
    temperature: float
    page_vectors: Literal["all", "visual"]
    mask_known_answers: bool


@dataclass(frozen=True)
class AGCRecipe:
    """Number of universal tokens (0 for none) and of vectors per page."""

    tokens: int
    cap: int


@dataclass(frozen=True)
class Recipe:
    """Complete recipe; `lora` and `training` are arguments of `LoraConfig` and `TrainingArguments`."""

    model: ModelRecipe
    data: DataRecipe
    loss: LossRecipe
    agc: AGCRecipe
    lora: dict[str, Any]
    training: dict[str, Any]

    def save(self, path: Path) -> None:
        """Write all settings as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


SECTIONS: dict[str, type] = {"model": ModelRecipe, "data": DataRecipe, "loss": LossRecipe, "agc": AGCRecipe}
FREE = ("lora", "training")


def read_recipe(name: str | Path = PAPER, changes: Iterable[str] = ()) -> Recipe:
    """Read a recipe by name (`paper`, `agc`) or file; missing settings are those of the paper.

    Args:
        name: Name or TOML file.
        changes: TOML settings such as `training.learning_rate = 5e-5`; single words need no quotes.

    Examples:
        >>> read_recipe("agc", ["model.base=./my-base"]).agc.tokens
        128
    """
    settings = _read(FOLDER / f"{PAPER}.toml")
    named = FOLDER / f"{name}.toml"
    _overlay(settings, _read(named if named.is_file() else Path(name)), str(name))
    for change in changes:
        key, equals, value = change.partition("=")
        section, _, entry = key.strip().partition(".")
        if not equals or not entry:
            raise AnchorFoldError(f"{change!r} is no setting: write SECTION.NAME=VALUE.")
        _overlay(settings, {section: {entry: _value(value.strip())}}, change)
    sections = {section: kind(**settings[section]) for section, kind in SECTIONS.items()}
    return Recipe(**sections, **{section: settings[section] for section in FREE})


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as problem:
        ours = sorted(p.stem for p in FOLDER.glob("*.toml"))
        raise AnchorFoldError(f"there is no recipe {path}: give a TOML file, or one of {', '.join(ours)}.") from problem
    except ValueError as problem:
        raise AnchorFoldError(f"{path} is not TOML ({problem}).") from problem


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _overlay(settings: dict[str, Any], changes: dict[str, Any], source: str) -> None:
    """Apply `changes` to `settings`; unknown sections and names, and values of another type, are errors."""
    for section, entries in changes.items():
        if section not in settings or not isinstance(entries, dict):
            raise AnchorFoldError(f"{source} sets {section!r}: a recipe has the sections {', '.join(settings)}.")
        for name, value in entries.items():
            if section in SECTIONS:
                _check(section, name, value, source)
            settings[section][name] = value


def _check(section: str, name: str, value: Any, source: str) -> None:
    kinds = get_type_hints(SECTIONS[section])
    if name not in kinds:
        raise AnchorFoldError(f"{source} sets {section}.{name}: there are {', '.join(kinds)}.")
    choices = get_args(kinds[name])
    if choices:
        if value not in choices:
            raise AnchorFoldError(f"{source}: {section}.{name} is one of {', '.join(choices)}, not {value!r}.")
    elif type(value) not in ((float, int) if kinds[name] is float else (kinds[name],)):
        raise AnchorFoldError(f"{source}: {section}.{name} is of type {kinds[name].__name__}, not {value!r}.")
