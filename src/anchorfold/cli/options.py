"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from anchorfold.errors import AnchorFoldError

CLUSTER = "Cluster"  # the panel of its options
Model = Annotated[str, typer.Option(help="A model name or folder.")]
ModelPlace = Annotated[
    str | None, typer.Option("--model", help="Where the index's model is now, if it was moved: a name or folder.")
]
Device = Annotated[
    str | None, typer.Option(help="cuda, mps or cpu.", callback=lambda name: name and check_device(name))
]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Let the model run its own code.")]
AllowPickle = Annotated[
    bool, typer.Option("--allow-pickle", help="Load weights from pickle files, which can run code.")
]
Bidirectional = Annotated[
    bool | None, typer.Option("--bidirectional/--causal", help="ColQwen2.5: without or with its causal mask.")
]
Methods = Annotated[
    str,
    typer.Option(help="Names with commas between, or all; NAME@0.1 or NAME@cap128 for a budget of its own."),
]

Calibration = Annotated[
    str | None,
    typer.Option(
        help="Held-out pages for methods that want some: a corpus folder, a benchmark or a dataset with images. "
        "Default: the ColPali training set where a hub can be reached, else the evaluated pages."
    ),
]
Batch = Annotated[int | None, typer.Option(help="Pages a forward pass.", min=1)]
Loaders = Annotated[
    int | None, typer.Option(help="Processes that render and decode pages ahead. Default: 2, none on a CPU.", min=0)
]

Quantization = Annotated[
    Literal["scalar", "binary", "turbo4", "turbo2", "turbo1"] | None,
    typer.Option(
        help="Qdrant: search a quantized copy of the vectors: scalar (8 bits per component), binary (1), or TurboQuant."
    ),
]

Documents = Annotated[list[str] | None, typer.Option("--document", help="Only these files of a folder.")]


def check_device(name: str) -> str:
    """The name of a device that can be used here; told before anything is read or written."""
    from anchorfold.backbones.device import choose_device

    choose_device(name)
    return name


def numbers(text: str, kind: type) -> list[Any]:
    """Numbers with commas between."""
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise AnchorFoldError(f"{text!r} should be numbers with commas between.") from error
