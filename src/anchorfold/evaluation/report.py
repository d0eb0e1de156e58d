"""Build the tables of a report: the paper's layout with its figures beside ours, then every local corpus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anchorfold.attention.layer_settings import describe_source
from anchorfold.compressors import FullIndex, Pooling1D, compressor_title
from anchorfold.evaluation import paper
from anchorfold.evaluation.benchmarks import PAPER_SUITES
from anchorfold.evaluation.methods import ANCHORFOLD, RATIOS
from anchorfold.evaluation.metrics import paired_difference
from anchorfold.evaluation.result_sets import ResultCollection, Suite, mean_retentions, paper_mean_retention
from anchorfold.evaluation.results import Row, budget_of, with_paper_figure
from anchorfold.evaluation.tables import Table, ablation_table, calibration_table, efficiency_table, method_tables

ABREAST = 5  # data sets per table, as in the paper's appendix
VIDORE = ("vidore-v1", "vidore-v2")


def report_tables(findings: ResultCollection) -> list[tuple[str, list[Table]]]:
    """Return `(heading, tables)` per section, without empty sections."""
    suites = [s for s in findings.suites if s.benchmark is not None and s.experiment == "methods"]
    alone = [s for s in findings.suites if s.benchmark is None]
    chapters = [
        ("Layer settings", layer_tables(findings)),
        ("Mean retention", mean_retention_tables(findings.suites)),
        ("Suites", suite_tables(suites)),
        ("Against trained compression", cap_tables(findings.suites)),
        ("Ablations, windows and depths", [ablation_table(a) for a in findings.ablations]),
        (
            "Calibration",
            [_with_model_name(calibration_table(c, d["family"], d["pairs"]), d) for d, c in findings.calibrations],
        ),
        ("Indexing cost", [efficiency_table(e, quality_of(e, findings.suites)) for e in findings.efficiencies]),
        ("Data sets", [t for s in suites for t in data_set_tables(s)]),
        ("Corpora", [t for s in alone for results in s.sets.values() for t in corpus_tables(results)]),
    ]
    return [(heading, tables) for heading, tables in chapters if tables]


def layer_tables(findings: ResultCollection) -> list[Table]:
    """Tabulate the layer windows and depths that the results were measured with, and their source."""
    lines: dict[tuple[str, ...], None] = {}
    for suite in findings.suites:
        for data in suite.sets.values():
            windows = ("-".join(map(str, data.get(name, ()))) for name in ("window", "sap_window"))
            source = describe_source(data["source"]) if "source" in data else ""
            lines[(data["model"], suite.name, *windows, str(data["steps"]), str(data["layers"]), source)] = None
    heads = ("backbone", "evaluated on", "window", "SAP's window", "depth K", "layers", "source")
    run = dict.fromkeys(d["environment"] for s in findings.suites for d in s.sets.values() if "environment" in d)
    note = f"Measured with {'; '.join(run)}." if run else ""
    return [Table("Windows (zero-based, inclusive) and depths", heads, list(lines), note=note)] if lines else []


def quality_of(efficiency: dict[str, Any], suites: Sequence[Suite]) -> dict[str, Row]:
    """Return the rows by label of the same model on the corpus of an efficiency result."""
    key = (efficiency["fingerprint"], efficiency["corpus"])
    return {row.label: row for s in suites if (s.fingerprint, s.name) == key for row in s.rows}


def mean_retention_tables(suites: Sequence[Suite]) -> list[Table]:
    """Tabulate mean retention over backbone-suite pairs and the margin to the best training-free baseline."""
    tables = []
    for name, benchmarks in (("ViDoRe v1 and v2", VIDORE), ("REAL-MM-RAG", ("real-mm-rag",))):
        lines = []
        for line in mean_retentions(suites, benchmarks):
            whole = paper_mean_retention(benchmarks, line.ratio)
            lines.append((
                f"{line.ratio:g}", str(line.pairs), f"{line.retention:.1f}", _figure(line.paper_retention),
                "" if whole is None else f"{whole[0]:.1f}", _figure(line.margin, "+"), _figure(line.paper_margin, "+"),
                "" if whole is None else f"{whole[1]:+.1f}", _figure(line.strong_margin, "+"),
            ))  # fmt: skip
        heads = (
            "ratio", "backbone-suite pairs", "AnchorFold retention, %", "paper, same pairs", "paper, all pairs",
            "margin to the paper's best baseline", "paper, same pairs", "paper, all pairs",
            "margin to normalised means",
        )  # fmt: skip
        if lines:
            note = "Only suites with all data sets are included; margins are points of retention."
            tables.append(Table(f"{name}: mean NDCG@5 retention", heads, lines, note=note))
    return tables


def suite_tables(suites: Sequence[Suite]) -> list[Table]:
    """Tabulate benchmarks as in the paper: one row per backbone and method, two columns per ratio."""
    tables = []
    for benchmark in dict.fromkeys(s.benchmark for s in suites):
        group = [s for s in suites if s.benchmark == benchmark]
        ratios = sorted({r for s in group for r in s.ratios}, reverse=True)
        heads = ["method", "backbone", "full", *(h for r in ratios for h in (f"NDCG@5 at {r:g}", "retained, %"))]
        lines: list[tuple[str, ...]] = []
        strong: set[int] = set()
        notes: list[str] = []
        for suite in group:
            full = suite.row(FullIndex.name, 1.0)
            if full is None:
                continue
            for method in _methods(suite):
                strong |= {len(lines)} if method == ANCHORFOLD else set()
                rows = [suite.row(method, r) for r in ratios]
                shown = [_pair(row, suite) for row in rows]
                start = (compressor_title(method), suite.model, f"{full.ndcg:.1f} {_theirs(full)}".strip())
                lines.append((*start, *(c for pair in shown for c in pair)))
            notes += _notes(suite)
        tables.append(Table(f"{benchmark}", heads, lines, frozenset(strong), " ".join(notes)))
    return tables


def data_set_tables(suite: Suite) -> list[Table]:
    """Tabulate data sets as in the appendix: one row per method and ratio, two columns per data set."""
    tables = []
    names = list(suite.sets)
    for start in range(0, len(names), ABREAST):
        part = names[start : start + ABREAST]
        heads = ["method", "ratio", *(h for name in part for h in (name, "retained, %"))]
        lines: list[tuple[str, ...]] = []
        strong: set[int] = set()
        for number, row in enumerate(suite.rows):
            shown = [next(r for r in suite.sets[n]["rows"] if r["label"] == row.label) for n in part]
            strong |= {number} if row.method == ANCHORFOLD else set()
            retentions = [
                paper.reported(str(suite.benchmark), suite.family, row.method, row.ratio or 0, name, "retention")
                for name in part
            ]
            values = (
                (
                    f"{r['ndcg']:.1f} {_in_brackets(r['ndcg'], r['paper'])}".strip(),
                    f"{r['ndcg_retention']:.1f} {_in_brackets(r['ndcg_retention'], theirs)}".strip(),
                )
                for r, theirs in zip(shown, retentions, strict=True)
            )
            lines.append((compressor_title(row.method), budget_of(vars(row)), *(c for pair in values for c in pair)))
        tables.append(Table(f"{suite.name} with {suite.model}", heads, lines, frozenset(strong)))
    return tables


def cap_tables(suites: Sequence[Suite]) -> list[Table]:
    """Compare AGC on its trained model with AnchorFold on an untrained one at one cap (appendix C)."""
    tables = []
    trained = [s for s in suites if any(r.method == "agc" and r.cap is not None for r in s.rows)]
    for agc in trained:
        cap = next(r.cap for r in agc.rows if r.method == "agc" and r.cap is not None)
        others = [s for s in suites if s.name == agc.name and s.family == agc.family and s.row(ANCHORFOLD, cap=cap)]
        free = sorted(others, key=lambda s: s.fingerprint == agc.fingerprint)  # another model, if there is one
        if not free:
            continue
        ours = free[0]
        lines = []
        for name in (n for n in agc.sets if n in ours.sets):
            pair = [_cell(s.sets[name]["rows"], m, cap) for s, m in ((agc, "agc"), (ours, ANCHORFOLD))]
            if pair[0] and pair[1]:
                queries = [s.sets[name]["queries"][r["label"]]["ndcg"] for s, r in ((ours, pair[1]), (agc, pair[0]))]
                gap = paired_difference(*queries)
                line = _comparison_row(name, pair[0]["ndcg"], pair[1]["ndcg"], agc, name, cap)
                lines.append((*line, f"{gap['low']:+.1f} to {gap['high']:+.1f}"))
        averages = agc.row("agc", cap=cap), ours.row(ANCHORFOLD, cap=cap)
        if len(lines) > 1 and averages[0] and averages[1]:
            whole = "average" if agc.complete and ours.complete else None
            lines.append((*_comparison_row("average", averages[0].ndcg, averages[1].ndcg, agc, whole, cap), ""))
        heads = (
            "data set", "AGC (trained)", "AnchorFold", "difference", "paper: AGC", "AnchorFold", "difference",
            "ours: 95 % interval",
        )  # fmt: skip
        note = f"AGC on {agc.model}; AnchorFold on {ours.model}."
        tables.append(Table(f"{agc.name}: at most {cap} vectors per page", heads, lines, note=note))
    return tables


def corpus_tables(results: dict[str, Any]) -> list[Table]:
    """Tabulate one evaluation: all methods, query kinds, and paired differences of AnchorFold to the others."""
    title = (
        f"{results['corpus']} with {results['model']}: {results['pages']:,} pages, {results['queries_asked']:,} queries"
    )
    tables = method_tables(results["rows"], title, " ".join(setting_notes(results)))
    if lines := paired_comparisons(results):
        heads = ("AnchorFold against", "ratio", "NDCG@5", "95 % interval", "score retained", "95 % interval")
        tables.append(Table("Paired differences, in points, over the same queries", heads, lines))
    return tables


def paired_comparisons(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return AnchorFold minus every other method at the same budget, with paired 95 % intervals."""
    queries, lines = results["queries"], []
    for row in results["rows"]:
        method, budget = row["label"].split("@")
        ours = queries.get(f"{ANCHORFOLD}@{budget}")
        if method == ANCHORFOLD or ours is None:
            continue
        line = [method, budget_of(row)]
        for value in ("ndcg", "retention"):
            gap = paired_difference(ours[value], queries[row["label"]][value])
            line += [f"{gap['difference']:+.1f}", f"{gap['low']:+.1f} to {gap['high']:+.1f}"]
        lines.append(tuple(line))
    return lines


def setting_notes(results: dict[str, Any]) -> list[str]:
    """State the layer settings with their source, and the pages that thresholds were calibrated on."""
    layers = results.get("layer_settings")
    notes = [f"Layer settings of {results['model']}: {layers}."] if layers else []
    source = results.get("calibrated_on")
    return [*notes, *([f"Thresholds (DocPruner) were calibrated on {source}."] if source else [])]


def _notes(suite: Suite) -> list[str]:
    notes = list(dict.fromkeys(note for results in suite.sets.values() for note in setting_notes(results)))
    size = paper.suite_size(suite.benchmark) if suite.benchmark in PAPER_SUITES else None
    if (single := suite.row(Pooling1D.name, cap=1)) is not None:
        notes.append(f"{suite.model} with a single mean vector per page: NDCG@5 {single.ndcg:.1f}.")
    if size is not None and not suite.complete:
        notes.append(f"{suite.model}: {len(suite.sets)} of {size} data sets; the paper's figures are omitted.")
    return notes


def _methods(suite: Suite) -> list[str]:
    names = dict.fromkeys(r.method for r in suite.rows if r.method != FullIndex.name and r.ratio is not None)
    return sorted(names, key=lambda n: n == ANCHORFOLD)  # AnchorFold last, as in the paper's tables


def _pair(row: Row | None, suite: Suite) -> tuple[str, str]:
    if row is None:
        return "", ""
    theirs = None
    if suite.complete and suite.benchmark is not None and row.ratio in RATIOS:
        theirs = paper.reported(suite.benchmark, suite.family, row.method, row.ratio, column="retention")
    return (
        f"{row.ndcg:.1f} {_theirs(row)}".strip(),
        f"{row.ndcg_retention:.1f} {_in_brackets(row.ndcg_retention, theirs)}".strip(),
    )


def _theirs(row: Row) -> str:
    return _in_brackets(row.ndcg, row.paper)


def _in_brackets(ours: float, theirs: float | None) -> str:
    """Format the paper's figure in brackets, to follow ours in one cell."""
    return f"[{with_paper_figure(ours, theirs)}]" if theirs is not None else ""


def _figure(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.1f}"


def _cell(rows: Sequence[dict[str, Any]], method: str, cap: int | None) -> dict[str, Any] | None:
    return next((r for r in rows if (r["method"], r["cap"]) == (method, cap)), None)


def _comparison_row(
    name: str, agc: float, ours: float, suite: Suite, data_set: str | None, cap: int | None
) -> tuple[str, ...]:
    line = (name, f"{agc:.1f}", f"{ours:.1f}", f"{ours - agc:+.1f}")
    if data_set is None or suite.benchmark is None or cap is None:
        return (*line, "", "", "")
    theirs = [paper.reported_cap(suite.benchmark, suite.family, m, cap, data_set) for m in ("agc", ANCHORFOLD)]
    if theirs[0] is None or theirs[1] is None:
        return (*line, "", "", "")
    return (*line, f"{theirs[0]:.1f}", f"{theirs[1]:.1f}", f"{theirs[1] - theirs[0]:+.1f}")


def _with_model_name(table: Table, data: dict[str, Any]) -> Table:
    return Table(f"{data['model']}: {table.title} of {data['pairs']}", table.heads, table.lines, table.strong)
