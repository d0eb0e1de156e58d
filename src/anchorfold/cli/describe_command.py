"""`anchorfold describe`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from anchorfold.cli.app import app, note, out


@app.command("describe", rich_help_panel="Documents")
def describe_command(
    index: Annotated[Path, typer.Argument(help="The index.", show_default=False)],
    metadata: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV, JSON lines or Parquet. The first column is a path, folder or pattern.", show_default=False)],  # noqa: E501
    document: Annotated[list[str] | None, typer.Option("--document", "-d", help="Only these: names, folders or patterns.")] = None,  # noqa: E501
    wait: Annotated[bool, typer.Option(help="Wait if another process is writing to the index.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:  # fmt: skip
    """Store what is known of indexed documents, for filters: no document is read, and nothing is encoded.

    Columns have one type: integer, float, boolean (true, false), date (2024-01-31), else text. Rows further down win;
    a column that is empty in all rows of a document is taken away from it.

    \b
    Examples
      anchorfold describe my.index about.csv
      anchorfold search my.index "staff costs" --where "year >= 2024"
    """
    from anchorfold.index import Index

    described = Index.open(index).describe(metadata, documents=document or None, wait=-1 if wait else 0)
    note_unmatched(described.unmatched)
    if as_json:
        print(json.dumps({"documents": described.documents, "unmatched": described.unmatched}))
    else:
        out.print(f"described {described.documents:,} documents anew", markup=False)


def note_unmatched(rows: Sequence[str]) -> None:
    """Rows of a table that mean no document are often a slip of the pen."""
    if rows:
        note(f"{len(rows):,} rows of the table mean none of these documents ({rows[0]}{' ...' if rows[1:] else ''}).")
