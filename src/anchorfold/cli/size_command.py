"""`anchorfold size`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from anchorfold.cli.app import app, out
from anchorfold.cli.options import AsJson
from anchorfold.cli.printing import format_size, print_table
from anchorfold.errors import AnchorFoldError

RATIOS = (1.0, 0.2, 0.1, 0.05)


@app.command("size", rich_help_panel="Lists")
def size_command(
    pages: Annotated[int, typer.Option(help="Number of pages.", min=1)] = 1_000_000,
    model: Annotated[str, typer.Option(help="Model listed by `anchorfold models`.")] = "nano",
    ratio: Annotated[
        list[float] | None,
        typer.Option(help="Share of the vectors to keep; repeatable. Default: 1, 0.2, 0.1 and 0.05."),
    ] = None,
    bits: Annotated[int, typer.Option(help="Bits per vector component of the embedded index.")] = 16,
    tokens: Annotated[
        int | None, typer.Option(help="Visual tokens per page. Default: the model's maximum.", min=1)
    ] = None,
    dim: Annotated[int | None, typer.Option(help="Dimension of the vectors. Default: the model's.", min=1)] = None,
    disk_price: Annotated[
        float | None, typer.Option(help="Price of a GB on disk per month, to add a cost column.", min=0)
    ] = None,
    memory_price: Annotated[
        float | None, typer.Option(help="Price of a GB of memory per month, to add a cost column.", min=0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the storage of an index by compression ratio and store.

    Text, thumbnails and payloads are not included.

    \b
    Examples
      anchorfold size --pages 1000000 --model vidore/colpali-v1.3-hf --bits 4
      anchorfold size --tokens 729 --dim 128 --ratio 0.1 --disk-price 0.1 --memory-price 4
    """
    from anchorfold.backbones.catalogue import KNOWN
    from anchorfold.exporters.sizing import estimate_storage

    known = {m.name: m for m in KNOWN}.get(model)
    tokens = tokens or (known.visual_tokens if known else None)
    dim = dim or (known.dim if known else None)
    if tokens is None or dim is None:
        raise AnchorFoldError(
            f"the size of {model!r} is unknown: give --tokens and --dim, or a model of `anchorfold models`."
        )
    rows: list[tuple[str, ...]] = []
    entries = []
    for share in ratio or RATIOS:
        for size in estimate_storage(pages, tokens, dim, ratio=share, bits=bits):
            cost = size.disk / 1e9 * (disk_price or 0) + size.memory / 1e9 * (memory_price or 0)
            entries.append({"ratio": share, **asdict(size), "cost": cost})
            cells = (format_size(size.disk), format_size(size.memory), f"{cost:,.2f}")
            cells = ("-", "-", "-") if size.problem else cells
            rows.append((f"{1 / share:.3g}x", f"{size.vectors:,}", size.store, *cells, size.problem or ""))
    if as_json:
        print(json.dumps(entries))
        return
    out.print(f"{pages:,} pages of {tokens:,} vectors with {dim:,} dimensions")
    columns = ["compression", ">vectors per page", "store", ">disk", ">memory", ">cost per month", ""]
    if disk_price is None and memory_price is None:
        columns.pop(5)
        rows = [(*row[:5], row[6]) for row in rows]
    print_table(columns, rows)
