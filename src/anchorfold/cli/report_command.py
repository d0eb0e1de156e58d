"""`anchorfold report`: tables and figures of evaluations, as one page and as pictures."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from anchorfold.cli.app import app, out
from anchorfold.errors import AnchorFoldError

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse}
td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child{text-align:left}
.ours td{font-weight:600}img{max-width:100%}"""


@app.command("report", rich_help_panel="Science")
def report_command(
    folder: Annotated[Path, typer.Argument(help="A folder with results of `anchorfold eval`.")] = Path("results"),
    to: Annotated[Path | None, typer.Option("--to", help="Where the report goes. Default: into that folder.")] = None,
) -> None:  # fmt: skip
    """Draw figures and write tables of all results in a folder: report.html and PNG files.

    Where `anchorfold bench efficiency` wrote an efficiency.json beside results, fidelity against latency is drawn too.

    \b
    Example
      anchorfold report results/
    """
    from anchorfold.figures.latency import draw_latency
    from anchorfold.figures.retention import draw_retention, draw_storage

    found = sorted(folder.rglob("results.json"))
    if not found:
        raise AnchorFoldError(f"{folder} holds no results: make some with `anchorfold eval CORPUS --to {folder}/NAME`.")
    place = to or folder
    place.mkdir(parents=True, exist_ok=True)
    parts = []
    for path in found:
        results = json.loads(path.read_text())
        name = path.parent.name
        draw_retention(results, place / f"{name}-retention.png")
        draw_storage(results, place / f"{name}-storage.png")
        extra = ""
        if (timed := path.parent / "efficiency.json").is_file():
            draw_latency(results, json.loads(timed.read_text()), place / f"{name}-latency.png")
            extra = f"<img src='{html.escape(name)}-latency.png' alt='fidelity against indexing time'>"
        parts.append(section(results, name) + extra)
        out.print(f"wrote {place / name}-retention.png and -storage.png", markup=False)
    page = f"<!doctype html><meta charset=utf-8><title>AnchorFold results</title><style>{STYLE}</style>{''.join(parts)}"
    (place / "report.html").write_text(page, "utf-8")
    out.print(f"wrote {place / 'report.html'}", markup=False)


def section(results: dict[str, Any], name: str) -> str:
    """One evaluation as HTML."""
    from anchorfold.evaluation.results import HEADS, cells

    lines = []
    for row in results["rows"]:
        kind = ' class="ours"' if row["method"] == "anchorfold" else ""
        lines.append(f"<tr{kind}>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells(row)) + "</tr>")
    title = f"{results['corpus']} with {results['model']}"
    about = f"{results['pages']:,} pages, {results['queries_asked']:,} queries"
    return (
        f"<h1>{html.escape(title)}</h1><p>{about}</p><table><tr>{''.join(f'<th>{h}</th>' for h in HEADS)}</tr>"
        f"{''.join(lines)}</table><p><img src='{html.escape(name)}-retention.png' alt='what is kept at each ratio'>"
        f"<img src='{html.escape(name)}-storage.png' alt='effectiveness against storage'></p>"
    )
