"""`anchorfold convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorfold.cli.app import app, err, note, out


@app.command("convert", rich_help_panel="Documents")
def convert_command(
    index: Annotated[Path, typer.Argument(help="An index of version 0.1.", show_default=False)],
    bits: Annotated[int | None, typer.Option(help="Bits a stored number takes from now on: 16, 8, 4, 2, 1, or 32. Default: as before.")] = None,  # noqa: E501
) -> None:  # fmt: skip
    """Bring an index of version 0.1 to the present format, in its place and without encoding a page again.

    The old table stays until the new one is whole; a conversion that is cut short is begun again.

    \b
    Example
      anchorfold convert my.index
    """
    from anchorfold.index.store.old_format import convert_index

    with err.status(f"converting {index}") as status:
        pages = convert_index(index, bits, lambda n: status.update(f"converting {index}: {n:,} pages"), note)
    out.print(f"converted {pages:,} pages of {index}", markup=False)
    note(f"it keeps no text: `anchorfold index DOCUMENTS --to {index} --text` adds that without encoding a page again.")
