"""Tables and sizes as people read them: lined up in a terminal and in a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorfold.cli.app import out

if TYPE_CHECKING:
    from anchorfold.index.export import CollectionSize
    from anchorfold.index.store.info import IndexInfo
    from anchorfold.index.store.settings import IndexSettings


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def path_bytes(path: str | Path) -> int:
    """Bytes of a file, or of a folder with all that is in it."""
    from anchorfold.index.store.info import folder_bytes

    return folder_bytes(Path(path)) if os.path.isdir(path) else os.path.getsize(path)


def on_disk(info: IndexInfo) -> str:
    """The whole folder, and what it is made of."""
    parts = {"vectors": info.vector_bytes, "provenance": info.provenance_bytes, "pictures": info.thumbnail_bytes}
    parts["text"] = info.text_bytes
    parts["database and checksums"] = info.bytes - sum(parts.values())
    return f"{size(info.bytes)}: " + ", ".join(f"{name} {size(count)}" for name, count in parts.items() if count)


def collection_size(estimate: CollectionSize, copy: str | None) -> str:
    """What a collection will take and what it is made of; `copy` is the quantization."""
    parts = [f"vectors {size(estimate.vectors)}"]
    if copy is not None:
        parts.append(f"{copy} copy {size(estimate.quantized)} (in RAM)")
    parts.append(f"payload {size(estimate.payload)}")
    return f"about {size(estimate.total)}: {', '.join(parts)}"


def times_smaller(info: IndexInfo) -> str:
    """Against the full index as float16: all that is on disk, pictures apart, and the vectors alone."""
    apart = "pictures and text" if info.text_bytes else "pictures"
    return f"{info.times_smaller:.1f} without {apart}; vectors alone {info.vectors_times_smaller:.1f}"


def layer_settings(settings: IndexSettings) -> str:
    """Return the layer settings that an index was made with, and their source."""
    from anchorfold.attention.layer_settings import LayerSettings

    if settings.layers is None:
        return "not recorded"
    return str(LayerSettings.from_dict(settings.layers))


def as_json_info(info: IndexInfo, settings: IndexSettings) -> dict[str, Any]:
    """What an index holds as JSON."""
    from dataclasses import asdict

    ratios = {name: round(getattr(info, name), 3) for name in ("times_smaller", "vectors_times_smaller")}
    return {**asdict(info), **ratios, "layer_settings": settings.layers}


def table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """Print rows below column heads; a column is `(name, "left" or "right")`.

    A terminal gets rules and colours; a file or pipe gets plain columns that are never cut.
    """
    if out.is_terminal:
        from rich.table import Table

        shown = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
        for name, side in columns:
            shown.add_column(name, justify="right" if side == "right" else "left", overflow="fold")
        for row in rows:
            shown.add_row(*(plain(c) for c in row))
        out.print(shown)
        return
    if title:
        print(title)
    cells = [[name for name, _ in columns], *[[str(c) for c in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        line = (
            c.rjust(w) if side == "right" else c.ljust(w) for c, w, (_, side) in zip(row, widths, columns, strict=True)
        )
        print("  ".join(line).rstrip())


def plain(value: object) -> str:
    """Text without the meaning that brackets have for the terminal."""
    return str(value).replace("[", r"\[")
