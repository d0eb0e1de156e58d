"""The whole paper in miniature: three backbones, its three suites of 18 data sets, every experiment, one report.

Checkpoints are tiny and random, data sets of mteb's own task class with a few pages each; the paths are those of the
real ones. The report's cells are compared with figures that are computed here from vectors, by other code.
"""

import json
import re
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from typer.testing import CliRunner

import anchorfold
from anchorfold.cli.app import app, load_commands
from anchorfold.compressors import compressor_title
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation import benchmarks, efficiency, paper
from anchorfold.evaluation.benchmarks import BENCHMARKS, PAPER_SUITES, BenchmarkTask
from anchorfold.evaluation.figures.style import method_colour
from anchorfold.evaluation.methods import NORMALIZED_BASELINES, Method, paper_methods
from tests.drawn_figures import points, recorded_figures, shows_colours
from tests.evaluation.plain_figures import FULL, loaded, pair_retention, plain_result, plain_suite
from tests.evaluation.tiny_suites import NUMBERS, PAGES, WORDS, queries_of, tiny_task
from tests.number_reader import write_pdf

load_commands()

pytestmark = pytest.mark.slow
KINDS, RATIOS = ("colpali", "colqwen2.5", "nemotron"), (0.5, 0.2)
METHODS = (*paper_methods(), *NORMALIZED_BASELINES)


def run(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


class Miniature:
    """What was run: folders of checkpoints by kind, the report as tables of text cells."""

    held_out: str
    models: dict[str, str]
    trained: str
    to: Path
    output: str
    tables: dict[str, Any]
    figures: dict[str, Any]


@pytest.fixture(scope="module")
def miniature(checkpoints, tmp_path_factory):
    folder = tmp_path_factory.mktemp("miniature")
    with pytest.MonkeyPatch.context() as patch:
        for suite in PAPER_SUITES:
            patch.setitem(BENCHMARKS, suite, {n: BenchmarkTask(t.name) for n, t in BENCHMARKS[suite].items()})
        patch.setattr(benchmarks, "load_task", lambda name: tiny_task(name, NUMBERS[name]))
        patch.setattr(efficiency, "run_in_subprocess", efficiency.run_in_process)
        miniature = Miniature()
        miniature.held_out = held_out_corpus(folder / "held-out")
        miniature.models = {kind: str(checkpoints[kind]) for kind in KINDS}
        miniature.trained = trained_twin(checkpoints["colqwen2.5"], folder / "agc")
        miniature.to = folder / "results"
        miniature.output = run(
            "eval", "paper", *(a for m in miniature.models.values() for a in ("--model", m)), "--calibration",
            miniature.held_out, "--ratios", ",".join(map(str, RATIOS)), "-o", miniature.to,
        )  # fmt: skip
        run("eval", "paper", "--cap", 128, "--methods", "anchorfold,agc", "--model", miniature.models["colqwen2.5"],
            "--model", miniature.trained, "-o", miniature.to)  # fmt: skip
        pairs = ("--pairs", miniature.held_out, "--count", 4)
        for what in ("variants", "windows", "depths"):
            run("ablate", what, "vidore-v2", "--model", miniature.models["colqwen2.5"], *pairs, "-o", miniature.to)
        for kind in KINDS:
            model = shutil.copytree(miniature.models[kind], folder / kind)
            run("calibrate", model, *pairs, "--force", "--results", miniature.to)
        run("bench", "efficiency", "--corpus", "vidore-v2", "--model", miniature.models["colqwen2.5"], "--ratio", 0.2,
            "--pages", 8, "--warm-up", 1, "--passes", 2, "--calibration", miniature.held_out,
            "-o", miniature.to)  # fmt: skip
        with recorded_figures() as miniature.figures:
            run("report", miniature.to)
    miniature.tables = read_tables((miniature.to / "report.md").read_text())
    return miniature


def held_out_corpus(folder):
    write_pdf(folder / "pdfs/a.pdf", [111, 222, 333, 444])
    lines = [{"id": f"q{i}", "text": WORDS[i], "relevant": [["a.pdf", i]]} for i in range(4)]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return str(folder)


def trained_twin(source, folder):
    """The same checkpoint with universal tokens, as if it had been trained with them."""
    shutil.copytree(source, folder)
    model: Any = anchorfold.load(source, device="cpu")
    model.add_universal_tokens(2)
    model.model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return str(folder)


def read_tables(text):
    """Tables of a Markdown report by title, without marks of emphasis; those of one title in a list."""
    tables: dict[str, Any] = {}
    for title, body in re.findall(r"^\*\*([^|\n]+)\*\*\n\n((?:\|.*\n?)+)", text, re.MULTILINE):
        lines = [
            re.split(r"\s*\|\s*", line.strip().removeprefix("|").removesuffix("|").strip())
            for line in body.splitlines()
        ]
        cells = [[c.replace("**", "") for c in line] for line in (lines[0], *lines[2:])]
        tables.setdefault(title, []).append((cells[0], cells[1:]))
    return tables


def close(cell, value, digits=1):
    """Whether a cell's own figure (before the paper's in brackets) is the value, as rounded."""
    assert float(cell.split("[")[0].split("(")[0]) == pytest.approx(value, abs=0.5 * 10**-digits + 0.01), cell


def test_suite_tables(miniature):
    for suite in PAPER_SUITES:
        ((heads, lines),) = miniature.tables[suite]
        assert heads[:3] == ["method", "backbone", "full"]
        assert len(lines) == len(KINDS) * len(METHODS)
        for line in lines:
            kind = next(k for k in KINDS if miniature.models[k] == line[1])
            name = next(n for n in METHODS if compressor_title(n) == line[0])
            full = plain_suite(miniature.held_out, line[1], suite, FULL)
            close(line[2], full)
            for i, ratio in enumerate(RATIOS):
                ndcg = plain_suite(miniature.held_out, line[1], suite, Method(name, ratio))
                cells = line[3 + 2 * i : 5 + 2 * i]
                close(cells[0], ndcg)
                close(cells[1], 100 * ndcg / full)
                reported = paper.reported(suite, kind, name, ratio)
                if name in NORMALIZED_BASELINES:
                    assert reported is None
                    assert "[" not in cells[0]
                else:
                    assert cells[0].endswith(f"[{reported:.1f} ({ndcg - reported:+.1f})]")


def test_data_set_tables(miniature):
    checked = 0
    for suite in PAPER_SUITES:
        for kind in KINDS:
            for heads, lines in miniature.tables[f"{suite} with {miniature.models[kind]}"]:
                names = heads[2::2]
                assert len(lines) == 1 + len(METHODS) * len(RATIOS) + 1  # the full index, and one vector per page
                assert lines.pop()[:2] == ["1D-Pooling", "cap 1"]
                for line in lines:
                    name = next(n for n in ("none", *METHODS) if compressor_title(n) == line[0])
                    method = Method(name, float(line[1]))
                    for i, data_set in enumerate(names):
                        task = BENCHMARKS[suite][data_set].name
                        ndcg = plain_result(miniature.models[kind], task, method, miniature.held_out)
                        full = plain_result(miniature.models[kind], task, FULL, miniature.held_out)
                        cells = line[2 + 2 * i : 4 + 2 * i]
                        close(cells[0], ndcg)
                        close(cells[1], 100 * ndcg / full)
                        reported = paper.reported(suite, kind, name, float(line[1]), data_set)
                        assert reported is None or f"[{reported:.1f} (" in cells[0]
                        assert (reported is None) == (name in NORMALIZED_BASELINES)
                        retained = paper.reported(suite, kind, name, float(line[1]), data_set, "retention")
                        assert reported is None or f"[{retained:.1f} (" in cells[1]
                        checked += 1
    assert checked == 18 * 3 * 15


def test_headlines(miniature):
    for title, suites in (("ViDoRe v1 and v2", ("vidore-v1", "vidore-v2")), ("REAL-MM-RAG", ("real-mm-rag",))):
        ((_, lines),) = miniature.tables[f"{title}: mean NDCG@5 retention"]
        assert [line[0] for line in lines] == ["0.5", "0.2"]
        for line in lines:
            ratio = float(line[0])
            retained, margins, normalized_margins = [], [], []
            for suite in suites:
                for kind in KINDS:
                    full = plain_suite(miniature.held_out, miniature.models[kind], suite, FULL)
                    by_method = {
                        n: 100 * plain_suite(miniature.held_out, miniature.models[kind], suite, Method(n, ratio)) / full
                        for n in METHODS
                    }
                    ours = by_method.pop("anchorfold")
                    retained.append(ours)
                    margins.append(ours - max(v for n, v in by_method.items() if n not in NORMALIZED_BASELINES))
                    normalized_margins.append(ours - max(by_method[n] for n in NORMALIZED_BASELINES))
            assert int(line[1]) == len(retained)
            close(line[2], fmean(retained))
            close(line[5], fmean(margins))
            close(line[8], fmean(normalized_margins))
            assert line[3] == line[4]  # all of the paper's pairs are there
        if title.startswith("ViDoRe"):
            assert lines[1][3:5] == ["98.3", "98.3"]
            assert lines[1][6:8] == ["+2.7", "+2.7"]


def test_cap_against_agc(miniature):
    for suite in PAPER_SUITES:
        ((_, lines),) = miniature.tables[f"{suite}: at most 128 vectors per page"]
        assert [line[0] for line in lines] == [*BENCHMARKS[suite], "average"]
        agc, ours = [], []
        for line in lines[:-1]:
            task = BENCHMARKS[suite][line[0]].name
            agc.append(plain_result(miniature.trained, task, Method("agc", cap=128), ""))
            ours.append(plain_result(miniature.models["colqwen2.5"], task, Method("anchorfold", cap=128), ""))
            close(line[1], agc[-1])
            close(line[2], ours[-1])
            assert float(line[5]) == paper.reported_cap(suite, "colqwen2.5", "anchorfold", 128, line[0])
        close(lines[-1][1], fmean(agc))
        close(lines[-1][2], fmean(ours))
        assert float(lines[-1][4]) == paper.reported_cap(suite, "colqwen2.5", "agc", 128)


def test_ablations(miniature):
    model = loaded(miniature.models["colqwen2.5"])
    first: dict[str, Any] = {}
    for what in ("variants", "windows", "depths"):
        title = next(t for t in miniature.tables if t.startswith(f"{what} on vidore-v2"))
        ((heads, lines),) = miniature.tables[title]
        ndcg = heads.index("NDCG@5")
        stored = json.loads(next(p for p in miniature.to.rglob("ablation.json") if p.parent.name == what).read_text())
        for line, row in zip(lines, stored["rows"], strict=True):
            if what == "variants":
                method = Method(line[0], 0.2)
            else:
                steps = int(line[0].removeprefix("K=")) if what == "depths" else model.layer_settings.steps
                method = Method(line[0], 0.2, window=tuple(row["window"]), steps=steps)
            value = plain_suite(miniature.held_out, miniature.models["colqwen2.5"], "vidore-v2", method)
            close(line[ndcg], value, 2)
            first.setdefault(what, value)
            close(line[ndcg + 1], value - first[what], 2)
        if what != "variants":
            assert heads[2:4] == ["on pairs, %", "paper's"]
            close(
                lines[0][2],
                pair_retention(
                    model, miniature.held_out, stored["rows"][0], stored["steps"] if what == "windows" else 2
                ),
                3,
            )


def test_calibration_and_efficiency(miniature):
    # Of four pairs those count whose full page scores above 0: with random weights not all do.
    title_pattern = re.compile(r"score retained at ratio 0\.2, [1-4] pairs")
    tables = [table for title, table in miniature.tables.items() if title_pattern.search(title)]
    assert len(tables) == len(KINDS)
    for ((heads, lines),) in tables:
        assert [line[0] for line in lines] == ["2", "3", "4", "6", "8", "10", "12"]
        assert sum(line[-1] == "chosen" for line in lines) == 1
        assert "paper" not in heads  # it used other pairs
    title = next(t for t in miniature.tables if "8 pages of vidore-v2" in t)
    ((heads, lines),) = miniature.tables[title]
    rows = json.loads(next(miniature.to.rglob("efficiency.json")).read_text())["rows"]
    for line, row in zip(lines, rows, strict=True):
        assert line[heads.index("index / full")].split()[0] == f"{row['total'] / rows[0]['total']:.3f}"
    assert lines[0][heads.index("vectors kept, %")] == "100.00"
    suite = {line[0]: line for line in miniature.tables["vidore-v2"][0][1] if line[1] == miniature.models["colqwen2.5"]}
    for line, row in zip(lines, rows, strict=True):
        assert sum(row[part] for part in ("encoding", "capture", "compression")) == pytest.approx(row["total"])
        method = row["method"].split("@")[0]
        reported = next((r for r in paper.table("efficiency") if r["method"] == method), None)
        for head, column in (("NDCG@5", "ndcg"), ("P95, ms", "p95_ms"), ("index / full", "index_over_full")):
            assert (f"[{reported[column]}]" in line[heads.index(head)]) if reported else "[" not in line[2]
        if method != "none":
            cells = suite[compressor_title(method)]
            assert line[1].split()[0] == cells[3 + 2 * RATIOS.index(0.2)].split()[0]
    assert f"{rows[0]['vectors']:,} vectors" in title


def test_figures_of_suites(miniature):
    backbones = [*miniature.models.values()]
    for suite in PAPER_SUITES:
        panels = miniature.figures[f"{suite}-retention.png"].axes
        assert len(panels) == 2 * len(KINDS)
        for panel in panels[::2]:  # NDCG@5; the panel to its right is score retention
            model = next(m for m in backbones if panel.get_title().startswith(m))
            full = plain_suite(miniature.held_out, model, suite, FULL)
            assert len(lines := points(panel)) == len(METHODS)
            for name in METHODS:
                measured = [plain_suite(miniature.held_out, model, suite, Method(name, ratio)) for ratio in RATIOS]
                retained = [pytest.approx(100 * ndcg / full, abs=0.06) for ndcg in measured]
                assert lines[compressor_title(name)] == list(zip(RATIOS, retained, strict=True))
        assert shows_colours(miniature.to / f"{suite}-retention.png", [method_colour(n) for n in METHODS])
        assert len(miniature.figures[f"{suite}-storage.png"].axes) == len(KINDS)


def test_case_study_of_a_task(miniature, tmp_path, monkeypatch):
    monkeypatch.setitem(BENCHMARKS, "vidore-v2", {"ESG Reports": BenchmarkTask("Vidore2ESGReportsRetrieval")})
    monkeypatch.setattr(benchmarks, "load_task", lambda name: tiny_task(name, NUMBERS[name]))
    arguments = ("explain", "--task", "Vidore2ESGReportsRetrieval", "--model", miniature.models["colpali"])
    with recorded_figures() as figures:
        output = run(*arguments, "--query", "q3", "-o", tmp_path / "case.png")
    number = NUMBERS["Vidore2ESGReportsRetrieval"]
    assert queries_of(number)["q3"] in output
    assert "page test/p0" in output
    panels = figures["case.png"].axes
    assert len(panels) == 2 * 3
    assert panels[0].get_title().startswith("AnchorFold, 5x")
    for wrong, message in ((("--query", "q9"), "has no query 'q9'"), ((), "requires --query")):
        with pytest.raises(AnchorFoldError, match=message):
            run(*arguments, *wrong)


def test_plan_figures_and_paper_command(miniature):
    assert f"total: {18 * PAGES} pages" in miniature.output
    (latency,) = (path.name for path in miniature.to.glob("vidore-v2-*-latency.png"))
    drawn = {f"{suite}-{kind}.png" for suite in PAPER_SUITES for kind in ("retention", "storage")}
    assert set(miniature.figures) == {*drawn, "calibration.png", latency}
    (panel,) = miniature.figures[latency].axes
    assert set(points(panel)) == {compressor_title(name) for name in ("none", *METHODS)}
    assert len(miniature.figures["calibration.png"].axes) == 2 * len(KINDS)
    html = (miniature.to / "report.html").read_text()
    headings = ("Mean retention", "Suites", "Against trained", "Data sets", "Calibration")
    assert all(f"<h2>{heading}" in html for heading in headings)
    folders = {p.relative_to(miniature.to).parts[0] for p in miniature.to.rglob("results.json")}
    assert len(folders) == 4  # one a checkpoint
