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
    repair: Annotated[bool, typer.Option("--repair", help="Keep what is intact, move the rest to lost/.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print problems as JSON.")] = False,
) -> None:  # fmt: skip
    """Verify every checksum, count and reference of an index.

    \b
    Examples
      anchorfold check my.index
      anchorfold check my.index --repair && anchorfold index ./reports --to my.index
    """
    from anchorfold.index.embedded import check_index

    damages = check_index(index, repair)
    if as_json:
        print(json.dumps([asdict(damage) for damage in damages]))
    for damage in [] if as_json else damages:
        more = f", and {len(damage.documents) - NAMED} more" if len(damage.documents) > NAMED else ""
        affected = f"; affected: {', '.join(damage.documents[:NAMED])}{more}" if damage.documents else ""
        done = f" ({damage.repair})" if damage.repair else ""
        err.print(f"{damage.file}: {damage.problem}{affected}{done}", style="yellow", markup=False)
    if not damages:
        err.print(f"{index}: OK, no problems found.", markup=False)
    elif repair:
        err.print(f"Repaired. Run `anchorfold index` with the same documents and --to {index} to read what is missing.", markup=False)  # fmt: skip  # noqa: E501
    else:
        err.print(f"`anchorfold check {index} --repair` keeps everything that is intact and moves the rest to {index}/lost.", markup=False)  # fmt: skip  # noqa: E501
        raise typer.Exit(1)
