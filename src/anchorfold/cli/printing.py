"""Tables, sizes and progress, for terminals and for pipes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorfold.cli.app import err, note, out

if TYPE_CHECKING:
    from anchorfold.evaluation.tables import Table as ReportTable
    from anchorfold.exporters import CollectionSize
    from anchorfold.ingestion.progress import Progress as State
    from anchorfold.storage.hits import Hit
    from anchorfold.storage.index_settings import IndexSettings
    from anchorfold.storage.info import IndexInfo

LOG_INTERVAL = 10.0  # seconds between progress lines without a terminal
MAX_LOST_WORKERS = 3  # shown in the progress line


def format_size(count: float) -> str:
    """Format a number of bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun, in the plural unless the count is 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """Format a duration as minutes and seconds, or as hours and minutes."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes}:{rest:02}"


def path_bytes(path: str | Path) -> int:
    """Return the size of a file, or of a directory with its content."""
    from anchorfold.storage.file_errors import folder_bytes

    return folder_bytes(Path(path)) if os.path.isdir(path) else os.path.getsize(path)


def shown_location(location: str) -> str:
    """Return the location of an index as messages show it."""
    from anchorfold.databases.urls import is_url, without_password

    return without_password(location) if is_url(location) else str(Path(location))


def disk_usage(info: IndexInfo) -> str:
    """Format the size of an index and of its parts."""
    parts = {"vectors": info.vector_bytes, "provenance": info.provenance_bytes, "thumbnails": info.thumbnail_bytes}
    parts["text"] = info.text_bytes
    parts["database and checksums"] = info.bytes - sum(parts.values())
    sizes = ", ".join(f"{name} {format_size(count)}" for name, count in parts.items() if count)
    return f"{format_size(info.bytes)}: {sizes}"


def collection_size(estimate: CollectionSize, quantization: str | None) -> str:
    """Format the estimated size of a collection and of its parts."""
    parts = [f"vectors {format_size(estimate.vectors)}"]
    if quantization is not None:
        parts.append(f"{quantization} copy {format_size(estimate.quantized)} (in RAM)")
    parts.append(f"payload {format_size(estimate.payload)}")
    return f"about {format_size(estimate.total)}: {', '.join(parts)}"


def compression_ratio(info: IndexInfo) -> str:
    """Format the compression ratios of an index: of the vectors, and of all files but thumbnails and text."""
    excluded = "thumbnails and text" if info.text_bytes else "thumbnails"
    return f"{info.vector_compression_ratio:.1f} (vectors), {info.compression_ratio:.1f} (all files but {excluded})"


def layer_settings(settings: IndexSettings) -> str:
    """Format the layer settings of an index with their source."""
    from anchorfold.attention.layer_settings import LayerSettings

    if settings.layers is None:
        return "not recorded"
    return LayerSettings.from_dict(settings.layers).describe(settings.options.get("graph"))


def info_as_json(info: IndexInfo, settings: IndexSettings) -> dict[str, Any]:
    """Return the counts, sizes and settings of an index as JSON."""
    ratios = {name: round(getattr(info, name), 3) for name in ("compression_ratio", "vector_compression_ratio")}
    return {**asdict(info), **ratios, "layer_settings": settings.layers}


def mode_scores(hit: Hit) -> tuple[str, str]:
    """Format the visual and text scores of a hit; empty if a mode did not find the page."""
    return "" if hit.visual is None else f"{hit.visual:.3f}", format_score(hit.text, 2) if hit.text else ""


def format_score(score: float, digits: int = 3) -> str:
    """Format a score; a positive one is never shown as zero, such as BM25 of a word that half of the pages contain.

    Examples:
        >>> format_score(1.25), format_score(0.0), format_score(1e-6), format_score(1e-6, 2)
        ('1.250', '0.000', '<0.001', '<0.01')
    """
    smallest = 10.0**-digits
    return f"<{smallest:.{digits}f}" if 0 < score < smallest / 2 else f"{score:.{digits}f}"


def report_unmatched(rows: Sequence[str]) -> None:
    """Print how many rows of a metadata table matched no document."""
    if rows:
        note(f"{format_count(len(rows), 'row')} matched no document ({rows[0]}{' ...' if rows[1:] else ''}).")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """Print a table: with borders in a terminal, as plain columns that are never cut elsewhere.

    Args:
        columns: names; those that start with ">" are aligned to the right.
        rows: cells.
        title: printed above the table.
    """
    names, right = [name.removeprefix(">") for name in columns], [name.startswith(">") for name in columns]
    if out.is_terminal:
        from rich.table import Table

        table = Table(title=title and escape(title), title_justify="left", title_style="bold", header_style="bold")
        for name, is_right in zip(names, right, strict=True):
            table.add_column(name, justify="right" if is_right else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(escape, row))
        out.print(table)
        return
    if title:
        print(title)
    cells = [names, *[[str(cell) for cell in row] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True))
        print("  ".join(padded).rstrip())


def print_report_table(table: ReportTable) -> None:
    """Print a table of an evaluation report and its note."""
    print_table([f">{head}" if i else head for i, head in enumerate(table.heads)], table.lines, table.title)
    if table.note:
        out.print(table.note, markup=False)


def escape(value: object) -> str:
    """Escape the markup of Rich."""
    return str(value).replace("[", r"\[")


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed; a second Ctrl-C raises KeyboardInterrupt."""
    is_interrupted = False

    def handle(*_: object) -> None:
        nonlocal is_interrupted
        if is_interrupted:
            raise KeyboardInterrupt
        is_interrupted = True
        err.print("Stopping after the current batch; press Ctrl-C again to stop immediately.")

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: is_interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress_display() -> Iterator[Callable[[State], None]]:
    """Show the progress of indexing on stderr: a bar in a terminal, else a line every ten seconds."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    from anchorfold.ingestion.progress import ENCODING

    started = time.monotonic()
    stage_started = {ENCODING: started}

    def describe(state: State) -> str:
        seconds = time.monotonic() - stage_started.setdefault(state.stage, time.monotonic())
        parts = [] if state.stage == ENCODING else [state.stage]
        parts += [f"{state.pages} pages", f"{state.pages / max(seconds, 1e-3):.2f} pages/s", *describe_workers(state)]
        if state.share > 0.001:
            parts.append(f"{format_duration(seconds * (1 - state.share) / state.share)} left")
        return "  ".join(parts)

    if not err.is_terminal:
        last = started

        def print_line(state: State) -> None:
            nonlocal last
            stage_started.setdefault(state.stage, time.monotonic())
            if time.monotonic() - last >= LOG_INTERVAL:
                last = time.monotonic()
                line = f"{state.documents}/{state.of_documents} documents  {describe(state)}"
                print(line, file=sys.stderr, flush=True)

        yield print_line
        return
    columns = (
        SpinnerColumn(),
        BarColumn(30),
        TextColumn("{task.fields[pace]}"),
        TextColumn("[dim]{task.fields[name]}"),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("index", total=1.0, pace="", name="")

        def update_bar(state: State) -> None:
            name = f"{state.documents}/{state.of_documents} {escape(state.current[-40:])}"
            bar.update(task, completed=state.share, pace=describe(state), name=name)

        yield update_bar


def describe_workers(state: State) -> list[str]:
    """Describe the workers of a cluster: their number, the pages per second of each, and which were lost."""
    active = [worker for worker in state.workers if not worker.dead]
    lost = [worker.name for worker in state.workers if worker.dead and worker.name]
    if not active and not lost:
        return []
    seconds = sum(worker.seconds for worker in active)
    rate = sum(worker.pages for worker in active) / seconds if seconds else 0.0
    parts = [f"{len(active)} workers, {rate:.2f} pages/s each"]
    if lost:
        more = f" and {len(lost) - MAX_LOST_WORKERS} more" if len(lost) > MAX_LOST_WORKERS else ""
        parts.append(f"lost: {', '.join(lost[-MAX_LOST_WORKERS:])}{more}")
    return parts
