"""`anchorfold report`: tables and figures of evaluations, as one page and as pictures."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Annotated

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
    """Draw figures and write tables of all results in a folder: report.html, report.md and PNG files.

    Where `anchorfold bench efficiency` wrote an efficiency.json beside results, fidelity against latency is drawn too.

    \b
    Example
      anchorfold report results/
    """
    from anchorfold.evaluation.figures.latency import draw_latency
    from anchorfold.evaluation.figures.retention import draw_retention, draw_storage
    from anchorfold.evaluation.report import as_html, as_markdown, averages, read_results, tables

    found = read_results(folder)
    if not found:
        raise AnchorFoldError(f"{folder} holds no results: make some with `anchorfold eval CORPUS --to {folder}/NAME`.")
    place = to or folder
    place.mkdir(parents=True, exist_ok=True)
    total = averages(found)
    pages, notes = [as_html(t) for t in total], [as_markdown(t) for t in total]
    for evaluation in found:
        name, results = evaluation.name, evaluation.results
        pictures = {f"{name}-retention.png": "what is kept at each ratio", f"{name}-storage.png": "what a vector buys"}
        draw_retention(results, place / f"{name}-retention.png")
        draw_storage(results, place / f"{name}-storage.png")
        if (timed := evaluation.folder / "efficiency.json").is_file():
            draw_latency(results, json.loads(timed.read_text()), place / f"{name}-latency.png")
            pictures[f"{name}-latency.png"] = "fidelity against indexing time"
        made = tables(results)
        pages += [as_html(t) for t in made]
        pages += [f"<p><img src='{html.escape(p)}' alt='{html.escape(alt)}'>" for p, alt in pictures.items()]
        notes += [as_markdown(t) for t in made] + [f"![{alt}]({p})" for p, alt in pictures.items()]
        out.print(f"wrote {', '.join(pictures)}", markup=False)
    head = f"<!doctype html><meta charset=utf-8><title>AnchorFold results</title><style>{STYLE}</style>"
    (place / "report.html").write_text(head + "<h1>AnchorFold results</h1>" + "".join(pages), "utf-8")
    (place / "report.md").write_text("\n\n".join(notes) + "\n", "utf-8")
    out.print(f"wrote {place / 'report.html'} and report.md", markup=False)
