"""`anchorfold check`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from anchorfold.cli.app import app, err

NAMED = 10  # documents that are listed


@app.command("check", rich_help_panel="Documents")
def check_command(
    index: Annotated[Path, typer.Argument(help="The index.", show_default=False)],
    repair: Annotated[bool, typer.Option("--repair", help="Drop what is broken; the next `anchorfold index` reads it again.")] = False,  # noqa: E501
    as_json: Annotated[bool, typer.Option("--json", help="Print what is broken as JSON.")] = False,
) -> None:  # fmt: skip
    """Verify every checksum, count and reference of an index.

    \b
    Examples
      anchorfold check my.index
      anchorfold check my.index --repair && anchorfold index ./reports --to my.index
    """
    from anchorfold.index.store.checking import check, repair_index

    damages = repair_index(index) if repair else check(index)
    if as_json:
        print(json.dumps([asdict(damage) for damage in damages]))
    for damage in [] if as_json else damages:
        more = f", and {len(damage.documents) - NAMED} more" if len(damage.documents) > NAMED else ""
        affected = f"; affected: {', '.join(damage.documents[:NAMED])}{more}" if damage.documents else ""
        err.print(f"{damage.file}: {damage.problem}{affected}", style="yellow", markup=False)
    if not damages:
        err.print(f"{index} is whole: every checksum, count and reference is right.", markup=False)
    elif repair:
        err.print(f"what was broken is dropped: run `anchorfold index` with the same documents and --to {index}.", markup=False)  # fmt: skip  # noqa: E501
    else:
        err.print(f"`anchorfold check {index} --repair` drops what is broken, so that the next `anchorfold index` makes it again.", markup=False)  # fmt: skip  # noqa: E501
        raise typer.Exit(1)
