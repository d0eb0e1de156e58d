"""Arguments and options that several commands share."""

from __future__ import annotations

from glob import escape, glob
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from anchorfold.errors import AnchorFoldError

CLUSTER = "Cluster"  # help panel


def complete_path(incomplete: str) -> list[str]:
    """Return the paths that start with a text, for completion in a shell."""
    return sorted(glob(f"{escape(incomplete)}*"))


# Text, because a Path would shorten the "//" of a URL.
IndexLocation = Annotated[
    str, typer.Argument(help="Index directory or URL.", show_default=False, autocompletion=complete_path)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Wait = Annotated[bool, typer.Option(help="Wait if another process is writing to the index.")]
DocumentFilter = Annotated[
    list[str] | None,
    typer.Option("--document", "-d", help="Only these documents: names, directories or patterns such as '*.pdf'."),
]
Model = Annotated[str, typer.Option(help="Model name or path.")]
ModelOverride = Annotated[
    str | None, typer.Option("--model", help="Override the model name or path stored in the index.")
]
Device = Annotated[
    str | None,
    typer.Option(
        help="Torch device: cuda, mps or cpu. Default: the first available.",
        callback=lambda name: name and check_device(name),
    ),
]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Allow the model to run its own code.")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Load pickle files, which can run code.")]
Bidirectional = Annotated[
    bool | None, typer.Option("--bidirectional/--causal", help="ColQwen models: disable or keep the causal mask.")
]
Dim = Annotated[
    int | None,
    typer.Option("--dim", help="Truncate vectors to this many dimensions, for models trained for it (Matryoshka).", min=1),  # noqa: E501
]  # fmt: skip
Methods = Annotated[
    str, typer.Option(help="Comma-separated method names, or all; NAME@0.1 or NAME@cap128 sets a budget per method.")
]
Calibration = Annotated[
    str | None,
    typer.Option(
        help="Held-out pages for methods that need calibration: a corpus directory, a benchmark or a dataset with "
        "images. Default: the ColPali training set if the hub is reachable, else the evaluated pages."
    ),
]
Settings = Annotated[
    str | None,
    typer.Option(
        help="Layer window and depth: paper, calibrated, or a calibration file. Default: paper for its backbones on "
        "its benchmarks, else the model's own."
    ),
]
BatchSize = Annotated[int | None, typer.Option("--batch-size", help="Batch size in pages.", min=1)]
Loaders = Annotated[
    int | None, typer.Option(help="Processes that render and decode pages in advance. Default: 2 (0 on CPU).", min=0)
]
Quantization = Annotated[
    Literal["scalar", "binary", "turbo4", "turbo2", "turbo1"] | None,
    typer.Option(help="Qdrant: quantization of the searched copy: scalar (8 bits per component), binary (1), or TurboQuant."),  # noqa: E501
]  # fmt: skip
CorpusDocuments = Annotated[
    list[str] | None, typer.Option("--document", "-d", help="Only these files of a corpus directory.")
]
ResultsPath = Annotated[Path, typer.Option("--output", "-o", help="Results directory; each model gets a subdirectory.")]


def check_device(name: str) -> str:
    """Return the name of a device, or raise before anything is read or written if it is not available."""
    from anchorfold.backbones.loading import choose_device

    choose_device(name)
    return name


def parse_numbers(text: str, kind: type, option: str) -> list[Any]:
    """Parse comma-separated numbers."""
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise AnchorFoldError(f"{option} must be comma-separated numbers, got {text!r}.") from error
