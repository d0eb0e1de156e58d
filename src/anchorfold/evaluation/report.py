"""All findings as one report: the paper's tables with ours in them, then every corpus by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anchorfold.compressors import FullIndex, title_of
from anchorfold.evaluation import paper
from anchorfold.evaluation.benchmarks import PAPER_SUITES
from anchorfold.evaluation.measure import paired_difference
from anchorfold.evaluation.methods import OURS, RATIOS
from anchorfold.evaluation.results import Row, beside, budget_of
from anchorfold.evaluation.suites import Findings, Suite, headlines, paper_headline
from anchorfold.evaluation.tables import Table, method_tables
from anchorfold.evaluation.validation import calibration_table, efficiency_table, table_lines

ABREAST = 5  # data sets of a table, as in the paper's appendix
VIDORE = ("vidore-v1", "vidore-v2")


def report_tables(findings: Findings) -> list[tuple[str, list[Table]]]:
    """Chapters of tables: `(heading, tables)`, empty ones left out."""
    suites = [s for s in findings.suites if s.benchmark is not None and s.experiment == "methods"]
    alone = [s for s in findings.suites if s.benchmark is None]
    chapters = [
        ("In short", headline_tables(findings.suites)),
        ("Suites", suite_tables(suites)),
        ("Against trained compression", cap_tables(findings.suites)),
        ("Ablations, windows and depths", [table_lines(a) for a in findings.ablations]),
        ("Calibration", [_named(calibration_table(c, d["family"], d["pairs"]), d) for d, c in findings.calibrations]),
        ("What it costs to index", [efficiency_table(e) for e in findings.efficiencies]),
        ("Data sets", [t for s in suites for t in data_set_tables(s)]),
        ("Corpora", [t for s in alone for results in s.sets.values() for t in corpus_tables(results)]),
    ]
    return [(heading, tables) for heading, tables in chapters if tables]


def headline_tables(suites: Sequence[Suite]) -> list[Table]:
    """Mean retention over backbone-suite pairs, and the margin to the best training-free baseline."""
    tables = []
    for name, benchmarks in (("ViDoRe v1 and v2", VIDORE), ("REAL-MM-RAG", ("real-mm-rag",))):
        lines = []
        for line in headlines(suites, benchmarks):
            whole = paper_headline(benchmarks, line.ratio)
            lines.append((
                f"{line.ratio:g}", str(line.pairs), f"{line.retention:.1f}", _figure(line.paper_retention),
                "" if whole is None else f"{whole[0]:.1f}", _figure(line.margin, "+"), _figure(line.paper_margin, "+"),
                "" if whole is None else f"{whole[1]:+.1f}",
            ))  # fmt: skip
        heads = (
            "ratio", "backbone-suite pairs", "AnchorFold retains, %", "paper, same pairs", "paper, all pairs",
            "margin to the best baseline", "paper, same pairs", "paper, all pairs",
        )  # fmt: skip
        if lines:
            note = "Only suites of which all data sets were evaluated count; margins are points of retention."
            tables.append(Table(f"{name}: mean NDCG@5 retention", heads, lines, note=note))
    return tables


def suite_tables(suites: Sequence[Suite]) -> list[Table]:
    """The paper's table of benchmarks: a line a backbone and method, two columns a ratio."""
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
                strong |= {len(lines)} if method == OURS else set()
                rows = [suite.row(method, r) for r in ratios]
                shown = [_pair(row, suite) for row in rows]
                start = (title_of(method), suite.model, f"{full.ndcg:.1f} {_theirs(full)}".strip())
                lines.append((*start, *(c for pair in shown for c in pair)))
            notes += _notes(suite)
        tables.append(Table(f"{benchmark}", heads, lines, frozenset(strong), " ".join(notes)))
    return tables


def data_set_tables(suite: Suite) -> list[Table]:
    """The appendix's layout: a line a method and ratio, two columns a data set, five data sets abreast."""
    tables = []
    names = list(suite.sets)
    for start in range(0, len(names), ABREAST):
        part = names[start : start + ABREAST]
        heads = ["method", "ratio", *(h for name in part for h in (name, "retained, %"))]
        lines: list[tuple[str, ...]] = []
        strong: set[int] = set()
        for number, row in enumerate(suite.rows):
            shown = [next(r for r in suite.sets[n]["rows"] if r["label"] == row.label) for n in part]
            strong |= {number} if row.method == OURS else set()
            values = (
                (f"{r['ndcg']:.1f} {_beside(r['ndcg'], r['paper'])}".strip(), f"{r['ndcg_retention']:.1f}")
                for r in shown
            )
            lines.append((title_of(row.method), budget_of(vars(row)), *(c for pair in values for c in pair)))
        tables.append(Table(f"{suite.name} with {suite.model}", heads, lines, frozenset(strong)))
    return tables


def cap_tables(suites: Sequence[Suite]) -> list[Table]:
    """Appendix C: AGC on the model that was trained for it beside AnchorFold on the one that was not, at one cap."""
    tables = []
    trained = [s for s in suites if any(r.method == "agc" and r.cap is not None for r in s.rows)]
    for agc in trained:
        cap = next(r.cap for r in agc.rows if r.method == "agc" and r.cap is not None)
        others = [s for s in suites if s.name == agc.name and s.family == agc.family and s.row(OURS, cap=cap)]
        free = sorted(others, key=lambda s: s.fingerprint == agc.fingerprint)  # a model of its own, if there is one
        if not free:
            continue
        ours = free[0]
        lines = []
        for name in (n for n in agc.sets if n in ours.sets):
            pair = [_cell(s.sets[name]["rows"], m, cap) for s, m in ((agc, "agc"), (ours, OURS))]
            if pair[0] and pair[1]:
                queries = [s.sets[name]["queries"][r["label"]]["ndcg"] for s, r in ((ours, pair[1]), (agc, pair[0]))]
                gap = paired_difference(*queries)
                line = _duel(name, pair[0]["ndcg"], pair[1]["ndcg"], agc, name, cap)
                lines.append((*line, f"{gap['low']:+.1f} to {gap['high']:+.1f}"))
        averages = agc.row("agc", cap=cap), ours.row(OURS, cap=cap)
        if len(lines) > 1 and averages[0] and averages[1]:
            whole = "average" if agc.complete and ours.complete else None
            lines.append((*_duel("average", averages[0].ndcg, averages[1].ndcg, agc, whole, cap), ""))
        heads = (
            "data set", "AGC (trained)", "AnchorFold", "difference", "paper: AGC", "AnchorFold", "difference",
            "ours: 95 % interval",
        )  # fmt: skip
        note = f"AGC on {agc.model}; AnchorFold on {ours.model}."
        tables.append(Table(f"{agc.name}: at most {cap} vectors a page", heads, lines, note=note))
    return tables


def corpus_tables(results: dict[str, Any]) -> list[Table]:
    """One evaluation: every method, kinds of queries, and AnchorFold against each other method."""
    title = (
        f"{results['corpus']} with {results['model']}: {results['pages']:,} pages, {results['queries_asked']:,} queries"
    )
    tables = method_tables(results["rows"], title, " ".join(setting_notes(results)))
    if lines := duels(results):
        heads = ("AnchorFold against", "ratio", "NDCG@5", "95 % interval", "score retained", "95 % interval")
        tables.append(Table("Paired differences, in points, over the same queries", heads, lines))
    return tables


def duels(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """AnchorFold minus every other method under the same budget, with paired intervals."""
    queries, lines = results["queries"], []
    for row in results["rows"]:
        method, budget = row["label"].split("@")
        ours = queries.get(f"{OURS}@{budget}")
        if method == OURS or ours is None:
            continue
        line = [method, budget_of(row)]
        for value in ("ndcg", "retention"):
            gap = paired_difference(ours[value], queries[row["label"]][value])
            line += [f"{gap['difference']:+.1f}", f"{gap['low']:+.1f} to {gap['high']:+.1f}"]
        lines.append(tuple(line))
    return lines


def setting_notes(results: dict[str, Any]) -> list[str]:
    """The layer settings and their source, and which pages thresholds were calibrated on, if any method has one."""
    layers = results.get("layer_settings")
    notes = [f"Layer settings of {results['model']}: {layers}."] if layers else []
    source = results.get("calibrated_on")
    return [*notes, *([f"Thresholds (DocPruner) were calibrated on {source}."] if source else [])]


def _notes(suite: Suite) -> list[str]:
    notes = list(dict.fromkeys(note for results in suite.sets.values() for note in setting_notes(results)))
    size = paper.suite_size(suite.benchmark) if suite.benchmark in PAPER_SUITES else None
    if size is not None and not suite.complete:
        notes.append(f"{suite.model}: {len(suite.sets)} of {size} data sets, so without the paper's figures.")
    return notes


def _methods(suite: Suite) -> list[str]:
    names = dict.fromkeys(r.method for r in suite.rows if r.method != FullIndex.name and r.ratio is not None)
    return sorted(names, key=lambda n: n == OURS)  # ours last, as in the paper's tables


def _pair(row: Row | None, suite: Suite) -> tuple[str, str]:
    if row is None:
        return "", ""
    theirs = None
    if suite.complete and row.ratio in RATIOS:
        theirs = _reported(suite, row)
    return (
        f"{row.ndcg:.1f} {_theirs(row)}".strip(),
        f"{row.ndcg_retention:.1f} {_beside(row.ndcg_retention, theirs)}".strip(),
    )


def _reported(suite: Suite, row: Row) -> float | None:
    """The paper's retention of a suite's cell."""
    for cell in paper.table("benchmarks"):
        same = (cell["benchmark"], cell["backbone"], cell["method"]) == (suite.benchmark, suite.family, row.method)
        if same and float(cell["ratio"]) == row.ratio:
            return float(cell["retention"])
    return None


def _theirs(row: Row) -> str:
    return _beside(row.ndcg, row.paper)


def _beside(ours: float, theirs: float | None) -> str:
    """In brackets, as it stands beside a figure of ours in one cell."""
    return f"[{beside(ours, theirs)}]" if theirs is not None else ""


def _figure(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.1f}"


def _cell(rows: Sequence[dict[str, Any]], method: str, cap: int | None) -> dict[str, Any] | None:
    return next((r for r in rows if (r["method"], r["cap"]) == (method, cap)), None)


def _duel(name: str, agc: float, ours: float, suite: Suite, data_set: str | None, cap: int | None) -> tuple[str, ...]:
    line = (name, f"{agc:.1f}", f"{ours:.1f}", f"{ours - agc:+.1f}")
    if data_set is None or suite.benchmark is None or cap is None:
        return (*line, "", "", "")
    theirs = [paper.reported_cap(suite.benchmark, suite.family, m, cap, data_set) for m in ("agc", OURS)]
    if theirs[0] is None or theirs[1] is None:
        return (*line, "", "", "")
    return (*line, f"{theirs[0]:.1f}", f"{theirs[1]:.1f}", f"{theirs[1] - theirs[0]:+.1f}")


def _named(table: Table, data: dict[str, Any]) -> Table:
    return Table(f"{data['model']}: {table.title} of {data['pairs']}", table.heads, table.lines, table.strong)
