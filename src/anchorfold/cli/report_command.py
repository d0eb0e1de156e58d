"""`anchorfold report`: tables and figures of everything that was measured, as one page and as pictures."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.cli.app import app, out
from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    from anchorfold.evaluation.suites import Findings

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:80rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;display:block;overflow-x:auto}
td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child{text-align:left}
.ours td{font-weight:600}img{max-width:100%}"""


@app.command("report", rich_help_panel="Science")
def report_command(
    folder: Annotated[Path, typer.Argument(help="Where eval, ablate, calibrate and bench wrote.")] = Path("results"),
    to: Annotated[Path | None, typer.Option("--to", help="Where the report goes. Default: into that folder.")] = None,
) -> None:  # fmt: skip
    """Compare all that was measured below a folder: report.html, report.md and PNG files.

    Suites of several backbones stand beside each other and beside the paper's figures: mean retention first, then every
    suite, trained compression, ablations, calibration, efficiency, and every data set.

    \b
    Example
      anchorfold report results/
    """
    from anchorfold.evaluation.report import report_tables
    from anchorfold.evaluation.suites import read_findings
    from anchorfold.evaluation.tables import as_html, as_markdown

    findings = read_findings(folder)
    if not any((findings.suites, findings.ablations, findings.calibrations, findings.efficiencies)):
        raise AnchorFoldError(f"{folder} holds no results: make some with `anchorfold eval CORPUS --to {folder}`.")
    target = to or folder
    target.mkdir(parents=True, exist_ok=True)
    pictures = draw_figures(findings, target)
    page = [f"<p><img src='{html.escape(name)}' alt='{html.escape(alt)}'>" for name, alt in pictures.items()]
    notes = [f"![{alt}]({name})" for name, alt in pictures.items()]
    for heading, tables in report_tables(findings):
        page += [f"<h2>{html.escape(heading)}</h2>", *map(as_html, tables)]
        notes += [f"## {heading}", *map(as_markdown, tables)]
    head = f"<!doctype html><meta charset=utf-8><title>AnchorFold results</title><style>{STYLE}</style>"
    (target / "report.html").write_text(head + "<h1>AnchorFold results</h1>" + "".join(page), "utf-8")
    (target / "report.md").write_text("\n\n".join(["# AnchorFold results", *notes]) + "\n", "utf-8")
    out.print(f"wrote {target / 'report.html'}, report.md and {len(pictures)} pictures", markup=False)


def draw_figures(findings: Findings, target: Path) -> dict[str, str]:
    """Draw what there is to draw; file names to what they show."""
    from anchorfold.evaluation.figures.calibration import draw_calibration
    from anchorfold.evaluation.figures.latency import draw_latency
    from anchorfold.evaluation.figures.retention import draw_retention, draw_storage
    from anchorfold.evaluation.run import slug

    pictures: dict[str, str] = {}
    compared = [s for s in findings.suites if s.ratios]
    for name in dict.fromkeys(s.name for s in compared):
        group = [s for s in compared if s.name == name]
        draw_retention(group, target / f"{slug(name)}-retention.png")
        draw_storage(group, target / f"{slug(name)}-storage.png")
        pictures[f"{slug(name)}-retention.png"] = f"{name}: what is retained at each ratio"
        pictures[f"{slug(name)}-storage.png"] = f"{name}: NDCG@5 against storage"
    for timed in findings.efficiencies:
        for suite in (s for s in compared if (s.fingerprint, s.name) == (timed["fingerprint"], timed["corpus"])):
            file = f"{slug(suite.name)}-{suite.fingerprint[:8]}-latency.png"
            draw_latency(suite, timed, target / file)
            pictures[file] = f"{suite.name}: fidelity against indexing time with {suite.model}"
    if findings.calibrations:
        draw_calibration({data["model"]: c for data, c in findings.calibrations}, target / "calibration.png")
        pictures["calibration.png"] = "calibration: paired gaps of the depths, and layer profiles"
    return pictures
