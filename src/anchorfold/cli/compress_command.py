"""`anchorfold compress`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.cli.app import app, err, note, out, quiet_libraries
from anchorfold.cli.index_command import clock, stopping
from anchorfold.cli.options import AllowPickle, Device, Quantization, TrustRemoteCode
from anchorfold.cli.printing import collection_size, on_disk, path_bytes, size, table
from anchorfold.errors import LockedError

if TYPE_CHECKING:
    from anchorfold.vectors import CompressReport
    from anchorfold.vectors.target import Target

DEFAULT_METHOD = "semantic-clustering"


@app.command("compress", rich_help_panel="Documents")
def compress_command(
    source: Annotated[str, typer.Argument(help="Where the vectors are: a folder of .npy files, an .npz, .safetensors or Parquet file, a Lance table, a Qdrant address or folder.", show_default=False)],  # noqa: E501
    to: Annotated[str, typer.Option("--to", help="An index (a folder), a file such as small.parquet, or a Qdrant address.")],  # noqa: E501
    method: Annotated[str, typer.Option(help="A compressor that needs vectors alone.")] = DEFAULT_METHOD,
    ratio: Annotated[float | None, typer.Option(help="Vectors to keep of each page, 0 to 1. Default: 0.2.")] = None,
    cap: Annotated[int | None, typer.Option(help="Or at most that many vectors a page.")] = None,
    bits: Annotated[int | None, typer.Option(help="Bits per vector component: 16 (default) or 32; into an index also 8, 4, 2 or 1.")] = None,  # noqa: E501
    model: Annotated[str | None, typer.Option(help="The model that made the vectors: an index can then be searched by text.")] = None,  # noqa: E501
    kind: Annotated[str | None, typer.Option("--from", help="What the source is, if that is not plain.")] = None,
    collection: Annotated[str | None, typer.Option(help="Of a database: the source's collection or table.")] = None,
    vectors: Annotated[str | None, typer.Option(help="The field that holds a page's vectors.")] = None,
    document: Annotated[str | None, typer.Option(help="The field that holds its document's name.")] = None,
    page: Annotated[str | None, typer.Option(help="The field that holds its number.")] = None,
    format_: Annotated[str | None, typer.Option("--format", help="What the target is, if its address does not tell: index, or what `export --to` takes.")] = None,  # noqa: E501
    to_collection: Annotated[str | None, typer.Option(help="Of a database: the target's collection.")] = None,
    quantization: Quantization = None,
    wait: Annotated[bool, typer.Option(help="Wait if another process is writing to the index.")] = True,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:  # fmt: skip
    """Make vectors that you have smaller, without encoding a page again.

    Run the same command again to go on after an interruption. Methods that listen to the model's attention cannot be
    used here: it is gone once the vectors are made.

    \b
    Examples
      anchorfold compress ./vectors --to small.index --ratio 0.1
      anchorfold compress pages.parquet --to small.parquet --method ward --ratio 0.05
      anchorfold compress http://localhost:6333 --collection pages --to http://localhost:6333 --to-collection small
    """
    from anchorfold.index.options import choose_compressor
    from anchorfold.vectors import Fields, compress_source, open_source
    from anchorfold.vectors.target import choose_target

    quiet_libraries()
    compressor = choose_compressor(method, ratio, cap)
    target = choose_target(to, format_, to_collection, quantization)
    opened = open_source(source, Fields(vectors, document, page, collection), kind)
    folder = target.folder(opened, compressor, bits)
    total = len(opened)
    with keeping(target, folder), stopping() as stop, err.status(f"compressing {source}") as status:
        report = compress_source(
            opened, folder, compressor, model=model, bits=bits, stop=stop, wait=-1 if wait else 0, waiting=note,
            progress=lambda r: status.update(f"compressing {source}: {r.pages + r.unchanged:,} of {total:,} pages"),
            device=device, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle,
        )  # fmt: skip
        for name, why in report.skipped:
            err.print(f"skipped {name}: {why}", style="yellow", markup=False)
        summary = summarise(str(folder), report)
        if target.exporter is not None:
            del summary["on disk"]  # of the intermediate index, not of the export
            if not report.interrupted:
                target.export(
                    folder,
                    lambda n: status.update(f"writing {to}: {n:,} pages"),
                    lambda s: summary.update({"collection": (s.total, collection_size(s, quantization))}),
                )
                if target.is_file:
                    written = path_bytes(to)
                    summary["on disk"] = written, size(written)
    if as_json:
        print(json.dumps({**asdict(report), "to": to, **{k: v for k, (v, _) in summary.items()}}))
    else:
        table([("compressed", "left"), (to, "left")], [(name, text) for name, (_, text) in summary.items()])
    if report.interrupted:
        out.print("Stopped early: run the same command again to finish.")
        raise typer.Exit(130)
    if report.skipped:
        raise typer.Exit(3)


@contextmanager
def keeping(target: Target, folder: Path) -> Iterator[None]:
    """Report where an export that did not finish can be resumed from; nothing is left behind if it has no page."""
    try:
        yield
    finally:
        with suppress(LockedError):  # another process continues with it
            if pages := target.discard_empty(folder):
                note(f"{pages:,} compressed pages are stored in {folder}: run the same command again to continue.")


def summarise(folder: str, report: CompressReport) -> dict[str, tuple[object, str]]:
    """For each line of the summary its value and how people read it."""
    from anchorfold.index import Index

    opened = Index.open(folder)
    info = opened.info()
    fewer = info.full_vectors / max(info.vectors, 1)
    return {
        "pages in all": (info.pages, f"{info.pages:,} ({report.pages:,} new in {clock(report.seconds)})"),
        "vectors before": (info.full_vectors, f"{info.full_vectors:,} ({size(info.full_vector_bytes)} as float16)"),
        "vectors after": (info.vectors, f"{info.vectors:,} ({size(info.vector_bytes)} as {opened.settings.type_name})"),
        "times fewer": (round(fewer, 2), f"{fewer:.1f}"),
        "on disk": (info.bytes, on_disk(info)),
        "skipped": (len(report.skipped), str(len(report.skipped))),
    }
