"""`anchorfold info`, `check`, `remove`, `metadata` and `export`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from anchorfold import __version__
from anchorfold.cli.app import app, err, out
from anchorfold.cli.options import AsJson, DocumentFilter, IndexLocation, Quantization, Wait, complete_path
from anchorfold.cli.printing import (
    collection_size,
    compression_ratio,
    disk_usage,
    format_count,
    format_size,
    info_as_json,
    layer_settings,
    path_bytes,
    print_table,
    report_unmatched,
    shown_location,
)
from anchorfold.errors import AnchorFoldError

MAX_NAMES = 10  # documents listed per problem


@app.command("info", rich_help_panel="Manage")
def info_command(
    index: Annotated[str | None, typer.Argument(help="Index directory or URL.", show_default=False, autocompletion=complete_path)] = None,  # noqa: E501
    system: Annotated[bool, typer.Option("--system", help="Show versions and the search kernel instead.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show the content, size and settings of an index, or of the installation.

    \b
    Examples
      anchorfold info my.index --json
      anchorfold info --system
    """
    if system:
        facts = system_info()
        if as_json:
            print(json.dumps(facts))
        else:
            print_table(["system", ""], list(facts.items()))
        return
    if index is None:
        raise typer.BadParameter("name an index directory, or use --system.")
    from anchorfold.indexes.index import Index

    opened = Index.open(index)
    info = opened.info()
    if as_json:
        print(json.dumps(info_as_json(info, opened.settings)))
        return
    settings = dict(info.settings)
    unreadable = f" ({info.unreadable_pages} unreadable)" if info.unreadable_pages else ""
    rows: list[tuple[str, object]] = [
        ("documents", f"{info.documents:,}"),
        ("pages", f"{info.pages:,}{unreadable}"),
        ("vectors", f"{info.vectors:,} of {info.full_vectors:,}"),
        ("vector bytes", f"{format_size(info.vector_bytes)} of {format_size(info.full_vector_bytes)}"),
        ("compression ratio", compression_ratio(info)),
        ("on disk", disk_usage(info)),
        ("model", f"{info.model} ({settings.pop('fingerprint')})"),
        ("columns", ", ".join(f"{name} {kind}" for name, kind in info.columns.items())),
        ("method", f"{info.method} " + "  ".join(f"{k} {v}" for k, v in settings.items())),
        ("layer settings", layer_settings(opened.settings)),
    ]
    print_table(["index", opened.location], rows)


def system_info() -> dict[str, str]:
    """Return versions, processors and the search kernel of this installation."""
    import platform
    from importlib.metadata import version

    from anchorfold.retrieval.kernels import kernel, processors

    return {
        "anchorfold": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "numpy": version("numpy"),
        "torch": version("torch"),
        "processors": str(processors()),
        "search kernel": kernel(),
    }


@app.command("check", rich_help_panel="Manage")
def check_command(
    index: IndexLocation,
    repair: Annotated[bool, typer.Option("--repair", help="Keep intact data and move damaged files to lost/.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify all checksums, counts and references of an index.

    \b
    Examples
      anchorfold check my.index
      anchorfold check my.index --repair && anchorfold index ./reports -o my.index
    """
    from anchorfold.indexes.index import CheckReport

    damages, name = CheckReport.of(index, repair).problems, shown_location(index)
    if as_json:
        print(json.dumps([asdict(damage) for damage in damages]))
    for damage in [] if as_json else damages:
        more = f", and {len(damage.documents) - MAX_NAMES} more" if len(damage.documents) > MAX_NAMES else ""
        affected = f"; affected: {', '.join(damage.documents[:MAX_NAMES])}{more}" if damage.documents else ""
        result = f" ({damage.repair})" if damage.repair else ""
        err.print(f"{damage.file}: {damage.problem}{affected}{result}", style="yellow", markup=False)
    if not damages:
        err.print(f"{name}: OK, no problems found.", markup=False)
        return
    if repair:
        again = f"`anchorfold index` with the same documents and -o {index}"
        err.print(f"Repaired. Run {again} to encode the missing pages again.", markup=False)
        return
    keep = f"`anchorfold check {name} --repair` keeps all intact data and moves damaged files to {name}/lost."
    err.print(keep, markup=False)
    raise typer.Exit(1)


@app.command("remove", rich_help_panel="Manage")
def remove_command(
    index: IndexLocation,
    documents: Annotated[list[str], typer.Argument(help="Names, directories or patterns.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    wait: Wait = True,
) -> None:
    """Remove documents from an index. The files are not deleted.

    A directory or pattern that matches several documents requires confirmation.

    \b
    Examples
      anchorfold remove my.index reports/old.pdf
      anchorfold remove my.index 'reports/2019/*'
    """
    from anchorfold.indexes.index import Index

    opened = Index.open(index)
    names = opened.matching(documents)
    if len(names) > len(documents) and not yes:
        listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        if not typer.confirm(f"Remove {len(names)} documents ({listed}) from {opened.location}?", err=True):
            raise AnchorFoldError("nothing was removed.")
    for name in opened.remove(documents, wait=-1 if wait else 0):
        out.print(f"removed {name}", markup=False)


@app.command("metadata", rich_help_panel="Manage")
def metadata_command(
    index: IndexLocation,
    table: Annotated[Path, typer.Argument(help="CSV, JSON lines or Parquet; the first column is a path, directory or pattern.", show_default=False)],  # noqa: E501
    document: DocumentFilter = None,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Set document metadata for filters, without reading or encoding documents.

    Each column has one type: integer, float, boolean (true, false), date (2024-01-31) or text. Later rows override
    earlier ones; a column that is empty in all rows of a document is removed from it.

    \b
    Examples
      anchorfold metadata my.index metadata.csv
      anchorfold search my.index "staff costs" --where "year >= 2024"
    """
    from anchorfold.indexes.index import Index

    report = Index.open(index).set_metadata(table, documents=document or None, wait=-1 if wait else 0)
    report_unmatched(report.unmatched)
    if as_json:
        print(json.dumps({"documents": report.documents, "unmatched": report.unmatched}))
    else:
        out.print(f"Updated metadata of {format_count(report.documents, 'document')}.", markup=False)


@app.command("export", rich_help_panel="Manage")
def export_command(
    index: IndexLocation,
    format_: Annotated[str, typer.Option("--format", help="qdrant, parquet, npz, or a format that a plugin adds.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Output file (parquet, npz). Default: beside the index.")] = None,  # noqa: E501
    url: Annotated[str | None, typer.Option(help="Database URL, or a directory for its local mode.")] = None,
    collection: Annotated[str | None, typer.Option(help="Collection name. Default: the name of the index.")] = None,
    quantization: Quantization = None,
    thumbnails: Annotated[bool | None, typer.Option("--thumbnails", help="Qdrant: upload thumbnails instead of references.", show_default=False)] = None,  # noqa: E501
) -> None:  # fmt: skip
    """Export all pages to a vector database or a file.

    \b
    Examples
      anchorfold export my.index --format qdrant --url http://localhost:6333
      anchorfold export my.index --format qdrant --url http://localhost:6333 --quantization turbo4
      anchorfold export my.index --format parquet -o pages.parquet
      anchorfold export my.index --format npz
    """
    from anchorfold.databases.urls import is_url, without_password
    from anchorfold.exporters import EXPORTERS
    from anchorfold.indexes.index import Index

    opened, exporter = Index.open(index), EXPORTERS[format_]
    path = opened.store.name if is_url(index) else str(Path(index).resolve())
    target = exporter.target(path, output, url)
    options = exporter.require_options({"quantization": quantization, "thumbnails": thumbnails})
    if exporter.has_collections:
        options["collection"] = collection or Path(path).stem
    if "announce" in exporter.options:
        options["announce"] = lambda estimate: out.print(
            f"The collection takes {collection_size(estimate, quantization)}.", markup=False
        )
    shown = without_password(target)
    with err.status(f"exporting to {shown}") as status:
        pages = opened.export(
            format_, target, **options, progress=lambda n: status.update(f"exporting to {shown}: {n:,} pages")
        )
    if exporter.is_file:
        done = f"wrote {format_count(pages, 'page')} ({format_size(path_bytes(target))}) to {shown}"
    else:
        done = f"uploaded {format_count(pages, 'new page')} to {shown}"
    named = f", collection {options['collection']}" if exporter.has_collections else ""
    out.print(f"{done}{named}", markup=False)
