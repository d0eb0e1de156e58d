"""`anchorfold report`: tables and figures of evaluation results."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.cli.app import app, out
from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    from anchorfold.evaluation.result_sets import ResultCollection

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:80rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;display:block;overflow-x:auto}
td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child{text-align:left}
.ours td{font-weight:600}img{max-width:100%}"""


@app.command("report", rich_help_panel="Research")
def report_command(
    folder: Annotated[Path, typer.Argument(help="Results directory of eval, ablate, calibrate and bench.")] = Path("results"),  # noqa: E501
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Output directory. Default: the results directory.")] = None,  # noqa: E501
) -> None:  # fmt: skip
    """Build a report (HTML, Markdown, PNG) from a results directory.

    The report compares all models with each other and with the paper: mean retention, suites, trained compression,
    ablations, calibration, efficiency, and each dataset.

    \b
    Example
      anchorfold report results/
    """
    from anchorfold.evaluation.report import report_tables
    from anchorfold.evaluation.result_sets import read_results
    from anchorfold.evaluation.tables import as_html, as_markdown

    results = read_results(folder)
    if not any((results.suites, results.ablations, results.calibrations, results.efficiencies)):
        raise AnchorFoldError(f"{folder} contains no results: create some with `anchorfold eval CORPUS -o {folder}`.")
    target = output or folder
    target.mkdir(parents=True, exist_ok=True)
    figures = draw_figures(results, target)
    page = [f"<p><img src='{html.escape(name)}' alt='{html.escape(alt)}'>" for name, alt in figures.items()]
    markdown = [f"![{alt}]({name})" for name, alt in figures.items()]
    for heading, tables in report_tables(results):
        page += [f"<h2>{html.escape(heading)}</h2>", *map(as_html, tables)]
        markdown += [f"## {heading}", *map(as_markdown, tables)]
    head = f"<!doctype html><meta charset=utf-8><title>AnchorFold results</title><style>{STYLE}</style>"
    (target / "report.html").write_text(head + "<h1>AnchorFold results</h1>" + "".join(page), "utf-8")
    (target / "report.md").write_text("\n\n".join(["# AnchorFold results", *markdown]) + "\n", "utf-8")
    out.print(f"wrote {target / 'report.html'}, report.md and {len(figures)} figures", markup=False)


def draw_figures(results: ResultCollection, target: Path) -> dict[str, str]:
    """Draw all figures that the results allow, and return their descriptions by file name."""
    from anchorfold.evaluation.figures.calibration_profiles import draw_calibration
    from anchorfold.evaluation.figures.latency import draw_latency
    from anchorfold.evaluation.figures.retention import draw_retention, draw_storage
    from anchorfold.evaluation.run import slug

    figures: dict[str, str] = {}
    suites = [s for s in results.suites if s.ratios]
    for name in dict.fromkeys(s.name for s in suites):
        group = [s for s in suites if s.name == name]
        draw_retention(group, target / f"{slug(name)}-retention.png")
        draw_storage(group, target / f"{slug(name)}-storage.png")
        figures[f"{slug(name)}-retention.png"] = f"{name}: retention at each ratio"
        figures[f"{slug(name)}-storage.png"] = f"{name}: NDCG@5 against storage"
    for latency in results.efficiencies:
        for suite in (s for s in suites if (s.fingerprint, s.name) == (latency["fingerprint"], latency["corpus"])):
            file = f"{slug(suite.name)}-{suite.fingerprint[:8]}-latency.png"
            draw_latency(suite, latency, target / file)
            figures[file] = f"{suite.name}: retention against indexing time with {suite.model}"
    if results.calibrations:
        draw_calibration({data["model"]: c for data, c in results.calibrations}, target / "calibration.png")
        figures["calibration.png"] = "calibration: paired gaps of depths, and layer profiles"
    return figures
