"""`anchorfold compress`: compress existing vectors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.cli.app import app, err, note, out, quiet_libraries
from anchorfold.cli.options import AllowPickle, AsJson, Device, Quantization, TrustRemoteCode, Wait
from anchorfold.cli.printing import (
    collection_size,
    disk_usage,
    format_duration,
    format_size,
    path_bytes,
    print_table,
    stop_on_interrupt,
)
from anchorfold.errors import LockedError

if TYPE_CHECKING:
    from anchorfold.indexes.locations import Location
    from anchorfold.vectors import CompressionReport, VectorSource
    from anchorfold.vectors.compression_target import CompressionTarget

DEFAULT_METHOD = "semantic-clustering"


@app.command("compress", rich_help_panel="Existing vectors")
def compress_command(
    source: Annotated[str, typer.Argument(help="Source: a directory of .npy files, an .npz, .safetensors or Parquet file, a Lance table, a Qdrant URL or directory, or a PostgreSQL URL.", show_default=False)],  # noqa: E501
    output: Annotated[str, typer.Option("--output", "-o", help="Target: an index directory or URL, a file such as small.parquet, or an http:// URL of Qdrant.")],  # noqa: E501
    method: Annotated[str, typer.Option(help="Compression method that requires only vectors.")] = DEFAULT_METHOD,
    ratio: Annotated[float | None, typer.Option(help="Fraction of vectors to keep per page, in (0, 1]. Default: 0.2.")] = None,  # noqa: E501
    cap: Annotated[int | None, typer.Option(help="Maximum vectors per page (instead of --ratio).")] = None,
    bits: Annotated[int | None, typer.Option(help="Bits per vector component: 16 (default) or 32; in an index also 8, 4, 2 or 1.")] = None,  # noqa: E501
    model: Annotated[str | None, typer.Option(help="Model that created the vectors; required to search the new index with text queries.")] = None,  # noqa: E501
    source_format: Annotated[str | None, typer.Option(help="Source format, if it cannot be detected.")] = None,
    collection: Annotated[str | None, typer.Option(help="Collection or table of the source database.")] = None,
    vectors_field: Annotated[str | None, typer.Option(help="Source field of the vectors.")] = None,
    document_field: Annotated[str | None, typer.Option(help="Source field of the document name.")] = None,
    page_field: Annotated[str | None, typer.Option(help="Source field of the page number.")] = None,
    format_: Annotated[str | None, typer.Option("--format", help="Target format, if it cannot be detected: index, or a format of `export`.")] = None,  # noqa: E501
    target_collection: Annotated[str | None, typer.Option(help="Collection of the target database.")] = None,
    quantization: Quantization = None,
    wait: Wait = True,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Compress existing multi-vectors without re-encoding.

    Run the same command again to resume after an interruption. Methods that read attention cannot be used, because
    vectors do not contain it.

    \b
    Examples
      anchorfold compress ./vectors -o small.index --ratio 0.1
      anchorfold compress pages.parquet -o small.parquet --method ward --ratio 0.05
      anchorfold compress http://localhost:6333 --collection pages -o http://localhost:6333 --target-collection small
    """
    from anchorfold.compressors.default import DefaultCompressor
    from anchorfold.databases.urls import without_password
    from anchorfold.indexes.creation import choose_compressor
    from anchorfold.vectors import FieldNames, compress_source, open_source
    from anchorfold.vectors.compression_target import choose_target

    quiet_libraries()
    shown, shown_output = without_password(source), without_password(output)
    compressor = choose_compressor(DEFAULT_METHOD if method == DefaultCompressor.name else method, ratio, cap)
    target = choose_target(output, format_, target_collection, quantization)
    opened = open_source(source, FieldNames(vectors_field, document_field, page_field, collection), source_format)
    folder = target.folder(opened, compressor, bits)
    total = len(opened)
    with report_unfinished(target, folder), stop_on_interrupt() as stop, err.status(f"compressing {shown}") as status:
        report = compress_source(
            opened, folder, compressor, model=model, bits=bits, stop=stop, wait=-1 if wait else 0, waiting=note,
            progress=lambda r: status.update(f"compressing {shown}: {r.pages + r.unchanged:,} of {total:,} pages"),
            device=device, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle,
        )  # fmt: skip
        for name, reason in report.skipped:
            err.print(f"skipped {name}: {reason}", style="yellow", markup=False)
        summary = summarize(folder, report)
        if not report.interrupted:
            status.update(f"comparing results with {shown}")
            summary.update(compare_results(opened, folder))
        if target.exporter is not None:
            del summary["on disk"]  # of the intermediate index, not of the export
            if not report.interrupted:
                opened.close()  # the target may be in the same database
                target.export(
                    folder,
                    lambda n: status.update(f"writing {shown_output}: {n:,} pages"),
                    lambda s: summary.update({"collection": (s.total, collection_size(s, quantization))}),
                )
                if target.is_file:
                    written = path_bytes(output)
                    summary["on disk"] = written, format_size(written)
    if as_json:
        print(json.dumps({**asdict(report), "output": shown_output, **{k: v for k, (v, _) in summary.items()}}))
    else:
        print_table(["compressed", shown_output], [(name, text) for name, (_, text) in summary.items()])
    if report.interrupted:
        out.print("Interrupted: run the same command again to continue.")
        raise typer.Exit(130)
    if report.skipped:
        raise typer.Exit(3)


def compare_results(source: VectorSource, folder: Location) -> dict[str, tuple[object, str]]:
    """Return the agreement of the first ten results before and after, if the source can search."""
    from anchorfold.indexes.index import Index
    from anchorfold.vectors.result_agreement import result_agreement

    agreement = result_agreement(source, Index.open(folder))
    if agreement is None:
        return {}
    text = f"{agreement.first_ten:.0%} of the first ten pages, {agreement.queries} queries sampled from the pages"
    return {"same results": (round(agreement.first_ten, 3), text)}


@contextmanager
def report_unfinished(target: CompressionTarget, folder: Location) -> Iterator[None]:
    """Report the intermediate index of an export that did not finish; remove it if it has no pages."""
    try:
        yield
    finally:
        with suppress(LockedError):  # another process continues with it
            if pages := target.discard_empty(folder):
                note(f"{pages:,} compressed pages are stored in {folder}: run the same command again to continue.")


def summarize(folder: Location, report: CompressionReport) -> dict[str, tuple[object, str]]:
    """Return the value and text of each row of the summary."""
    from anchorfold.indexes.index import Index

    opened = Index.open(folder)
    info = opened.info()
    ratio = info.full_vectors / max(info.vectors, 1)
    before, after = format_size(info.full_vector_bytes), format_size(info.vector_bytes)
    return {
        "total pages": (info.pages, f"{info.pages:,} ({report.pages:,} new in {format_duration(report.seconds)})"),
        "vectors before": (info.full_vectors, f"{info.full_vectors:,} ({before} as float16)"),
        "vectors after": (info.vectors, f"{info.vectors:,} ({after} as {opened.settings.type_name})"),
        "compression ratio": (round(ratio, 2), f"{ratio:.1f} (number of vectors)"),
        "on disk": (info.bytes, disk_usage(info)),
        "skipped": (len(report.skipped), str(len(report.skipped))),
    }
