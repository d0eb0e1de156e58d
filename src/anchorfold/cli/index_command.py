"""`anchorfold index`: create or update an index."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.cli.app import app, err, note, out, quiet_libraries
from anchorfold.cli.options import (
    CLUSTER,
    AllowPickle,
    AsJson,
    BatchSize,
    Bidirectional,
    Device,
    Dim,
    TrustRemoteCode,
    Wait,
    complete_path,
)
from anchorfold.cli.printing import (
    compression_ratio,
    disk_usage,
    format_count,
    format_duration,
    format_size,
    info_as_json,
    layer_settings,
    print_table,
    progress_display,
    report_unmatched,
    shown_location,
    stop_on_interrupt,
)
from anchorfold.errors import AnchorFoldError, LockedError

if TYPE_CHECKING:
    from anchorfold.indexes.index import Index
    from anchorfold.ingestion.progress import AddReport

SMALL_RATIO, SMALL_BITS = 0.05, 2  # the preset --small; docs/scale.md has its measurements


@app.command("index", rich_help_panel="Start")
def index_command(
    paths: Annotated[list[Path], typer.Argument(help="PDFs, images, office files, web pages, mail, or directories of them.", show_default=False)],  # noqa: E501
    output: Annotated[str, typer.Option("--output", "-o", help="Index directory or URL; created if it does not exist.", autocompletion=complete_path)],  # noqa: E501
    model: Annotated[str | None, typer.Option(help="Model name or path. Default: nano, which is part of this package.")] = None,  # noqa: E501
    method: Annotated[str | None, typer.Option(help="Compression method (see `anchorfold methods`). Default: auto (anchorfold or focus-clustering, by model).")] = None,  # noqa: E501
    graph: Annotated[str | None, typer.Option(help="Attention graph of anchorfold, focus-clustering or spread-fold. Default: attention (the paper's).")] = None,  # noqa: E501
    ratio: Annotated[float | None, typer.Option(help="Fraction of vectors to keep per page, in (0, 1]. Default: 0.2.")] = None,  # noqa: E501
    cap: Annotated[int | None, typer.Option(help="Maximum vectors per page (instead of --ratio).")] = None,
    bits: Annotated[int | None, typer.Option(help="Bits per vector component: 32, 16, 8, 4, 2 or 1. Default: 16.")] = None,  # noqa: E501
    small: Annotated[bool, typer.Option("--small", help=f"Smallest preset: --ratio {SMALL_RATIO} --bits {SMALL_BITS} (lower accuracy).")] = False,  # noqa: E501
    thumbnails: Annotated[bool, typer.Option(help="Store a thumbnail of each page.")] = True,
    provenance: Annotated[bool, typer.Option(help="Store patch provenance (needed by `explain` and heatmaps).")] = True,
    text: Annotated[bool | None, typer.Option(help="Store page text (needed by text and hybrid search); adds it to an index without. Default: --text.")] = None,  # noqa: E501
    ocr: Annotated[bool | None, typer.Option("--ocr", help="Recognize the text of pages without a text layer (RapidOCR).", show_default=False)] = None,  # noqa: E501
    metadata: Annotated[Path | None, typer.Option(help="Metadata table for filters (CSV, JSON lines, Parquet); its first column is a path or pattern.")] = None,  # noqa: E501
    password: Annotated[str | None, typer.Option(help="Password of encrypted PDFs; not stored. ANCHORFOLD_PDF_PASSWORD keeps it out of the process list.", show_default=False)] = None,  # noqa: E501
    prune: Annotated[bool, typer.Option("--prune", help="Remove documents whose files were deleted.")] = False,
    batch_size: BatchSize = None,
    wait: Wait = True,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    bidirectional: Bidirectional = None,
    dim: Dim = None,
    as_json: AsJson = False,
    ray: Annotated[str | None, typer.Option(help="Encode on a Ray cluster: auto, local, or HOST:PORT of its head node.", rich_help_panel=CLUSTER)] = None,  # noqa: E501
    workers: Annotated[int | None, typer.Option(min=1, help="Number of workers. Default: as many as fit.", rich_help_panel=CLUSTER)] = None,  # noqa: E501
    worker_cpus: Annotated[float, typer.Option(min=0, help="CPUs per worker.", rich_help_panel=CLUSTER)] = 1.0,
    worker_gpus: Annotated[float | None, typer.Option(min=0, help="GPUs per worker. Default: 1 if the cluster has any.", rich_help_panel=CLUSTER)] = None,  # noqa: E501
    shared: Annotated[bool, typer.Option("--shared/--ship", help="Read files from shared storage, or ship them to the workers.", rich_help_panel=CLUSTER)] = True,  # noqa: E501
) -> None:  # fmt: skip
    """Create or update an index. Unchanged files are skipped.

    \b
    Examples
      anchorfold index ./reports -o my.index
      anchorfold index a.pdf scans/ -o my.index --small
      anchorfold index ./reports -o my.index --prune
      anchorfold index ./reports -o my.index --metadata metadata.csv
      anchorfold index ./reports -o my.index --ray auto
    """
    from anchorfold.documents.listing import list_documents
    from anchorfold.documents.ocr import require_ocr
    from anchorfold.documents.pdf_reader import PASSWORD_VARIABLE
    from anchorfold.indexes.creation import choose_compressor
    from anchorfold.indexes.index import Index
    from anchorfold.indexes.locations import require_target

    if password is not None:
        if ray is not None:
            raise AnchorFoldError(
                f"--password cannot be sent to a cluster: set {PASSWORD_VARIABLE} in the environment of its nodes."
            )
        os.environ[PASSWORD_VARIABLE] = password  # the render process inherits it
    cluster = None
    if ray is not None:
        from anchorfold.cluster import Cluster
        from anchorfold.cluster.connection import import_ray

        import_ray()
        cluster = Cluster(ray, workers=workers, cpus=worker_cpus, gpus=worker_gpus, shared=shared)
    if ocr:
        require_ocr()
    require_target(output)
    listing = list_documents(paths, exclude=output)
    listing.require_documents()
    if small:
        ratio, bits = SMALL_RATIO if ratio is None and cap is None else ratio, bits or SMALL_BITS
    has_budget = method is not None or graph is not None or ratio is not None or cap is not None
    quiet_libraries()
    with remove_if_empty(output) as is_new:
        index = Index.open_or_create(
            output, model, choose_compressor(method, ratio, cap, graph) if has_budget else None, bits=bits,
            thumbnails=thumbnails, provenance=provenance, text=text, ocr=ocr, device=device,
            trust_remote_code=trust_remote_code, allow_pickle=allow_pickle, bidirectional=bidirectional,
            dim=dim,
        )  # fmt: skip
        with stop_on_interrupt() as stop, progress_display() as progress:
            report = index.add(
                listing, metadata=metadata, prune=prune, progress=progress, stop=stop, batch_size=batch_size,
                cluster=cluster, wait=-1 if wait else 0, waiting=note,
            )  # fmt: skip
        failed = is_new and not report.interrupted and not index.info().pages
        print_summary(index, report, as_json, with_table=not failed)
    if failed:
        count = len(listing.documents)
        raise AnchorFoldError(
            f"nothing was indexed: {count:,} of {format_count(count, 'document')} failed for the reasons above, and "
            f"{shown_location(output)} was not created. Fix the files and run the command again."
        )
    if report.interrupted:
        raise typer.Exit(130)
    if report.skipped:
        raise typer.Exit(3)


@contextmanager
def remove_if_empty(location: str) -> Iterator[bool]:
    """Yield whether the index is new; at the end, remove a new index without pages."""
    from anchorfold.indexes.locations import contains_index, open_store

    is_new = not contains_index(location)
    try:
        yield is_new
    finally:
        if is_new and contains_index(location):
            store = open_store(location)
            with suppress(LockedError), store.writing(0):  # another process may be writing to it
                if not store.info().pages:
                    store.delete()


def print_summary(index: Index, report: AddReport, as_json: bool, with_table: bool = True) -> None:
    """Print skipped and ignored files, counts and sizes."""
    from anchorfold.documents.listing import ignored_summary

    info = index.info()
    for name, reason in report.skipped:
        err.print(f"skipped {name}: {reason}", style="yellow", markup=False)
    if report.missing:
        count = format_count(len(report.missing), "indexed document")
        note(f"{count} no longer on disk ({report.missing[0]} ...): --prune removes them from the index.")
    report_unmatched(report.unmatched)
    if as_json:
        print(json.dumps({**asdict(report), "index": info_as_json(info, index.settings)}))
    if as_json or not with_table:
        return
    changes = f"{report.added} new, {report.changed} changed, {report.unchanged} unchanged"
    changes += f", {report.removed} removed" if report.removed else ""
    changes += f", {report.metadata_updated} with new metadata" if report.metadata_updated else ""
    rows: list[tuple[str, object]] = [
        ("documents", f"{info.documents:,} ({changes})"),
        ("pages", f"{info.pages:,} ({report.pages:,} encoded in {format_duration(report.seconds)})"),
        ("vectors before", f"{info.full_vectors:,} ({format_size(info.full_vector_bytes)} as float16)"),
        ("vectors after", f"{info.vectors:,} ({format_size(info.vector_bytes)} as {index.settings.type_name})"),
        ("compression ratio", compression_ratio(info)),
        ("on disk", disk_usage(info)),
        ("method", " ".join(filter(None, (index.settings.method, index.settings.options.get("graph"))))),
        ("layer settings", layer_settings(index.settings)),
        ("skipped", len(report.skipped)),
    ]
    if report.texts:
        rows.insert(2, ("text added", f"to {format_count(report.texts, 'existing page')}"))
    print_table(["index", index.location], rows)
    if report.ignored:
        out.print(ignored_summary(report.ignored), markup=False)
    if report.interrupted:
        out.print("Interrupted: run the same command again to continue.")
