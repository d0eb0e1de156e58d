"""`anchorfold index`."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.cli.app import app, err, note, out, quiet_libraries
from anchorfold.cli.describe_command import note_unmatched
from anchorfold.cli.options import CLUSTER, AllowPickle, Bidirectional, Device, TrustRemoteCode
from anchorfold.cli.printing import as_json_info, layer_settings, on_disk, plain, size, table, times_smaller
from anchorfold.errors import AnchorFoldError, LockedError
from anchorfold.index.sizes import SMALL_BITS, SMALL_RATIO

if TYPE_CHECKING:
    from anchorfold.index import AddReport, Index
    from anchorfold.index import Progress as State

GONE_SHOWN = 3  # workers that the progress line names
PLAIN_EVERY = 10.0  # seconds between lines without a terminal


@app.command("index", rich_help_panel="Documents")
def index_command(
    paths: Annotated[list[Path], typer.Argument(help="PDFs, images, or folders of them.", show_default=False)],
    to: Annotated[Path, typer.Option("--to", help="The index: a folder, made if it does not exist.")],
    model: Annotated[str | None, typer.Option(help="A model name or folder. Default: nano, which ships with this package.")] = None,  # noqa: E501
    ratio: Annotated[float | None, typer.Option(help="Vectors to keep of each page, 0 to 1. Default: 0.2, near lossless.")] = None,  # noqa: E501
    cap: Annotated[int | None, typer.Option(help="Or at most that many vectors a page.")] = None,
    method: Annotated[str | None, typer.Option(help="A compressor: `anchorfold methods` lists them. Default: anchorfold.")] = None,  # noqa: E501
    bits: Annotated[int | None, typer.Option(help="Bits a stored number takes: 16 (default), 8, 4, 2, 1, or 32.")] = None,  # noqa: E501
    small: Annotated[bool, typer.Option("--small", help=f"The same as --ratio {SMALL_RATIO} --bits {SMALL_BITS}: the least that keeps the answers.")] = False,  # noqa: E501
    thumbnails: Annotated[bool, typer.Option(help="Keep a small picture of each page.")] = True,
    provenance: Annotated[bool, typer.Option(help="Keep where vectors come from: `explain` and heatmaps need it.")] = True,  # noqa: E501
    text: Annotated[bool | None, typer.Option(help="Keep the text of pages, for `search --mode text` and hybrid; adds it to an index without. Default: yes.")] = None,  # noqa: E501
    ocr: Annotated[bool | None, typer.Option("--ocr", help="Read pages without a text layer, with RapidOCR.", show_default=False)] = None,  # noqa: E501
    metadata: Annotated[Path | None, typer.Option(help="A table (CSV, JSON lines, Parquet) for filters: first column a path or pattern.")] = None,  # noqa: E501
    password: Annotated[str | None, typer.Option(help="Password of encrypted PDFs, not stored. The variable ANCHORFOLD_PDF_PASSWORD keeps it out of the process list.", show_default=False)] = None,  # noqa: E501
    prune: Annotated[bool, typer.Option("--prune", help="Drop documents that are gone from these folders.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait if another process is writing to the index.")] = True,
    device: Device = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Pages a forward pass.")] = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    bidirectional: Bidirectional = None,
    ray: Annotated[str | None, typer.Option(help="Encode on a Ray cluster: auto, local, or the HOST:PORT of its head.", rich_help_panel=CLUSTER)] = None,  # noqa: E501
    workers: Annotated[int | None, typer.Option(min=1, help="Encoders on the cluster. Default: as many as fit.", rich_help_panel=CLUSTER)] = None,  # noqa: E501
    worker_cpus: Annotated[float, typer.Option(min=0, help="CPUs a worker.", rich_help_panel=CLUSTER)] = 1.0,
    worker_gpus: Annotated[float | None, typer.Option(min=0, help="GPUs a worker. Default: 1 if the cluster has any.", rich_help_panel=CLUSTER)] = None,  # noqa: E501
    shared: Annotated[bool, typer.Option("--shared/--ship", help="Workers read documents where they see them, or are sent all.", rich_help_panel=CLUSTER)] = True,  # noqa: E501
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:  # fmt: skip
    """Make an index of documents, or bring it up to date: only what changed is read again.

    \b
    Examples
      anchorfold index ./reports --to my.index
      anchorfold index a.pdf scans/ --to my.index --small
      anchorfold index ./reports --to my.index --prune
      anchorfold index ./reports --to my.index --metadata about.csv
      anchorfold index ./reports --to my.index --ray auto
    """
    from anchorfold.documents.listing import list_documents
    from anchorfold.documents.ocr import require_ocr
    from anchorfold.documents.pages import PASSWORD_VARIABLE
    from anchorfold.index import Index
    from anchorfold.index.options import choose_compressor
    from anchorfold.index.store.folder import require_target

    if password is not None:
        if ray is not None:
            raise AnchorFoldError(
                f"--password cannot be sent to a cluster: set {PASSWORD_VARIABLE} in the environment of its nodes."
            )
        os.environ[PASSWORD_VARIABLE] = password  # the renderer's process inherits it
    cluster = None
    if ray is not None:
        from anchorfold.cluster import Cluster
        from anchorfold.cluster.connection import import_ray

        import_ray()
        cluster = Cluster(ray, workers=workers, cpus=worker_cpus, gpus=worker_gpus, shared=shared)
    if ocr:
        require_ocr()
    require_target(to)
    listing = list_documents(paths, exclude=to)
    listing.require_some()
    if small:
        ratio, bits = SMALL_RATIO if ratio is None and cap is None else ratio, bits or SMALL_BITS
    given = method is not None or ratio is not None or cap is not None
    quiet_libraries()
    with removing_empty(to) as is_new:
        index = Index.open_or_create(
            to, model, choose_compressor(method, ratio, cap) if given else None, bits=bits, thumbnails=thumbnails,
            provenance=provenance, text=text, ocr=ocr, device=device, trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle, bidirectional=bidirectional,
        )  # fmt: skip
        with stopping() as stop, showing() as progress:
            report = index.add(
                listing,
                metadata=metadata,
                prune=prune,
                progress=progress,
                stop=stop,
                batch_size=batch,
                cluster=cluster,
                wait=-1 if wait else 0,
                waiting=note,
            )
        failed = is_new and not report.interrupted and not index.info().pages
        summarise(index, report, as_json, with_table=not failed)
    if failed:
        count = len(listing.documents)
        raise AnchorFoldError(
            f"nothing was indexed: {count:,} of {count:,} documents failed for the reasons above, and {to} was not "
            "created. Fix the files and run the command again."
        )
    if report.interrupted:
        raise typer.Exit(130)
    if report.skipped:
        raise typer.Exit(3)


@contextmanager
def removing_empty(folder: Path) -> Iterator[bool]:
    """Remove an index that this command creates and that holds no page in the end; gives whether it is new."""
    from anchorfold.index import Index
    from anchorfold.index.store.faults import is_there
    from anchorfold.index.store.lock import writer_lock

    is_new = not is_there(folder)
    try:
        yield is_new
    finally:
        if is_new and is_there(folder):
            with suppress(LockedError), writer_lock(folder, 0):  # another process may have started to fill it
                if not Index.open(folder).info().pages:
                    shutil.rmtree(folder)


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Ctrl-C stops after the current batch; a second one stops at once."""
    stopping = False

    def ask(*_: object) -> None:
        nonlocal stopping
        if stopping:
            raise KeyboardInterrupt
        stopping = True
        err.print("stopping: what is done is kept; press Ctrl-C again to stop at once")

    before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def showing() -> Iterator[Callable[[State], None]]:
    """A progress bar in a terminal, a line now and then elsewhere; both on standard error."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    from anchorfold.index.progress import ENCODING

    began = time.monotonic()
    starts = {ENCODING: began}

    def pace(state: State) -> str:
        seconds = time.monotonic() - starts.setdefault(state.stage, time.monotonic())
        left = seconds * (1 - state.share) / state.share if state.share > 0.001 else None
        rate = f"{state.pages / max(seconds, 1e-3):.2f} pages/s"
        parts = [f"{state.pages} pages", rate, *crew(state), "" if left is None else f"{clock(left)} left"]
        stage = [] if state.stage == ENCODING else [state.stage]
        return "  ".join([*stage, *parts])

    if not err.is_terminal:
        last = [began]

        def line(state: State) -> None:
            starts.setdefault(state.stage, time.monotonic())
            if time.monotonic() - last[0] >= PLAIN_EVERY:
                last[0] = time.monotonic()
                print(f"{state.documents}/{state.of_documents} documents  {pace(state)}", file=sys.stderr, flush=True)

        yield line
        return
    columns = (
        SpinnerColumn(),
        BarColumn(30),
        TextColumn("{task.fields[pace]}"),
        TextColumn("[dim]{task.fields[name]}"),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("index", total=1.0, pace="", name="")

        def move(state: State) -> None:
            name = plain(state.current[-40:])
            bar.update(
                task, completed=state.share, pace=pace(state), name=f"{state.documents}/{state.of_documents} {name}"
            )

        yield move


def crew(state: State) -> list[str]:
    """The workers of a cluster: how many pages a second each, and which are gone."""
    there = [worker for worker in state.workers if not worker.gone]
    gone = [worker.name for worker in state.workers if worker.gone and worker.name]
    if not there and not gone:
        return []
    seconds = sum(worker.seconds for worker in there)
    rate = sum(worker.pages for worker in there) / seconds if seconds else 0.0
    lines = [f"{len(there)} workers, {rate:.2f} pages/s each"]
    if gone:
        more = f" and {len(gone) - GONE_SHOWN} more" if len(gone) > GONE_SHOWN else ""
        lines.append(f"gone: {', '.join(gone[-GONE_SHOWN:])}{more}")
    return lines


def clock(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes}:{rest:02}"


def summarise(index: Index, report: AddReport, as_json: bool, with_table: bool = True) -> None:
    """What was done, what was skipped and why, and how much smaller it is."""
    import json
    from dataclasses import asdict

    from anchorfold.documents.listing import ignored_summary

    info = index.info()
    for name, why in report.skipped:
        err.print(f"skipped {name}: {why}", style="yellow", markup=False)
    if report.missing:
        note(
            f"{len(report.missing)} indexed documents are gone from disk ({report.missing[0]} ...): --prune drops them."
        )
    note_unmatched(report.unmatched)
    if as_json:
        print(json.dumps({**asdict(report), "index": as_json_info(info, index.settings)}))
    if as_json or not with_table:
        return
    changes = f"{report.added} new, {report.changed} changed, {report.unchanged} unchanged"
    changes += f", {report.removed} removed" if report.removed else ""
    changes += f", {report.described} described anew" if report.described else ""
    rows: list[tuple[str, object]] = [
        ("documents", f"{info.documents} ({changes})"),
        ("pages", f"{info.pages:,} ({report.pages:,} in {clock(report.seconds)})"),
        ("vectors before", f"{info.full_vectors:,} ({size(info.full_vector_bytes)} as float16)"),
        ("vectors after", f"{info.vectors:,} ({size(info.vector_bytes)} as {index.settings.type_name})"),
        ("times smaller", times_smaller(info)),
        ("on disk", on_disk(info)),
        ("layer settings", layer_settings(index.settings)),
        ("skipped", len(report.skipped)),
    ]
    if report.texts:
        rows.insert(2, ("texts", f"{report.texts:,} of pages that were there before"))
    table([("index", "left"), (str(index.path), "left")], rows)
    if report.ignored:
        out.print(ignored_summary(report.ignored), markup=False)
    if report.interrupted:
        out.print("Stopped early: run the same command again to finish.")
