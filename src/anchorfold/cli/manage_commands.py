"""`anchorfold remove`, `anchorfold info` and `anchorfold export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from anchorfold.cli.app import app, err, out
from anchorfold.cli.options import Quantization
from anchorfold.cli.printing import (
    as_json_info,
    collection_size,
    layer_settings,
    on_disk,
    path_bytes,
    size,
    table,
    times_smaller,
)
from anchorfold.errors import AnchorFoldError


@app.command("remove", rich_help_panel="Documents")
def remove_command(
    index: Annotated[Path, typer.Argument(help="The index.", show_default=False)],
    documents: Annotated[list[str], typer.Argument(help="Names as given, folders, or patterns.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before removing several documents.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait if another process is writing to the index.")] = True,
) -> None:
    """Remove documents from an index. The files themselves are not touched.

    A folder or pattern that means several documents is asked about first.

    \b
    Examples
      anchorfold remove my.index reports/old.pdf
      anchorfold remove my.index 'reports/2019/*'
    """
    from anchorfold.index import Index

    opened = Index.open(index)
    chosen = opened.matching(documents)
    if len(chosen) > len(documents) and not yes:
        shown = ", ".join(chosen[:3]) + (", ..." if len(chosen) > 3 else "")
        if not typer.confirm(f"Remove {len(chosen)} documents ({shown}) from {index}?", err=True):
            raise AnchorFoldError("nothing was removed.")
    removed = opened.remove(documents, wait=-1 if wait else 0)
    for name in removed:
        out.print(f"removed {name}", markup=False)


@app.command("info", rich_help_panel="Documents")
def info_command(
    index: Annotated[Path, typer.Argument(help="The index.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """What an index holds, how it was made, and how many times smaller it is than the full one.

    \b
    Example
      anchorfold info my.index --json
    """
    from anchorfold.index import Index

    opened = Index.open(index)
    info = opened.info()
    if as_json:
        print(json.dumps(as_json_info(info, opened.settings)))
        return
    settings = dict(info.settings)
    rows: list[tuple[str, object]] = [
        ("documents", f"{info.documents:,}"),
        (
            "pages",
            f"{info.pages:,}" + (f" ({info.unreadable_pages} could not be read)" if info.unreadable_pages else ""),
        ),
        ("vectors", f"{info.vectors:,} of {info.full_vectors:,}"),
        ("vector bytes", f"{size(info.vector_bytes)} of {size(info.full_vector_bytes)}"),
        ("times smaller", times_smaller(info)),
        ("on disk", on_disk(info)),
        ("model", f"{info.model} ({settings.pop('fingerprint')})"),
        ("columns", ", ".join(f"{name} {kind}" for name, kind in info.columns.items())),
        ("method", f"{info.method} " + "  ".join(f"{k} {v}" for k, v in settings.items())),
        ("layer settings", layer_settings(opened.settings)),
    ]
    table([("index", "left"), (str(index), "left")], rows)


@app.command("export", rich_help_panel="Documents")
def export_command(
    index: Annotated[Path, typer.Argument(help="The index.", show_default=False)],
    to: Annotated[str, typer.Option("--to", help="qdrant, parquet, npz, or a target that another package offers.")],
    url: Annotated[str | None, typer.Option(help="A database: its address, or a folder for its local engine.")] = None,
    collection: Annotated[str | None, typer.Option(help="A database: where in it. Default: the index's name.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-o", help="A file: its name. Default: beside the index.")] = None,  # noqa: E501
    quantization: Quantization = None,
    thumbnails: Annotated[bool | None, typer.Option("--thumbnails", help="Qdrant: upload thumbnails into the payload, not only references to them.", show_default=False)] = None,  # noqa: E501
) -> None:  # fmt: skip
    """Write all pages into a vector database or a file.

    \b
    Examples
      anchorfold export my.index --to qdrant --url http://localhost:6333
      anchorfold export my.index --to qdrant --url http://localhost:6333 --quantization turbo4
      anchorfold export my.index --to parquet --file my.parquet
      anchorfold export my.index --to npz
    """
    from anchorfold.index import Index
    from anchorfold.index.export import EXPORTERS

    opened, exporter = Index.open(index), EXPORTERS[to]
    target = exporter.target(index, file, url)
    options = exporter.require_options({"quantization": quantization, "thumbnails": thumbnails})
    if exporter.has_collections:
        options["collection"] = collection or index.resolve().stem
    if "announce" in exporter.options:
        options["announce"] = lambda estimate: out.print(
            f"The collection takes {collection_size(estimate, quantization)}.", markup=False
        )
    with err.status(f"exporting to {target}") as status:
        written = opened.export(
            to, target, **options, progress=lambda n: status.update(f"exporting to {target}: {n:,} pages")
        )
    if exporter.is_file:
        what = f"wrote {written:,} pages ({size(path_bytes(target))}) to"
    else:
        what = f"uploaded {written:,} new pages to"
    named = f", collection {options['collection']}" if exporter.has_collections else ""
    out.print(f"{what} {target}{named}", markup=False)
