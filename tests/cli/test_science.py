"""`anchorfold eval` and `anchorfold calibrate`, in this process, on a tiny checkpoint."""

import json
import re
import shutil

import pytest
from typer.testing import CliRunner

from anchorfold.cli import ablate_command, bench_command, calibrate_command, eval_command, report_command  # noqa: F401
from anchorfold.cli.app import app
from tests.number_reader import write_pdf


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_pdf(folder / "pdfs/a.pdf", list(range(0, 900, 100)))
    lines = [{"id": f"q{i}", "text": f"words number {i}", "relevant": [["a.pdf", i]]} for i in range(9)]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def run(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_eval_prints_a_line_a_method_and_writes_everything(corpus, checkpoints, tmp_path):
    output = run(
        "eval", corpus, "--model", checkpoints["colpali"], "--ratios", "0.5,0.25", "--caps", "3", "--to", tmp_path
    )
    assert output.count("semantic-clustering") == 3
    assert output.count("docpruner") == 2
    found = json.loads((tmp_path / "results.json").read_text())
    assert len(found["rows"]) == 1 + 4 * 3 + 2
    assert len(found["queries"]["sap@0.5"]["ndcg"]) == 9
    again = run(
        "eval", corpus, "--model", checkpoints["colpali"], "--ratios", "0.5,0.25", "--caps", "3", "--to", tmp_path
    )
    assert again.splitlines()[:4] == output.splitlines()[:4]


def test_calibrate_writes_what_load_picks_up(corpus, checkpoints, tmp_path):
    import anchorfold

    model = shutil.copytree(checkpoints["colpali"], tmp_path / "model")
    figure = tmp_path / "panels.png"
    output = run(
        "calibrate", model, "--pairs", corpus, "--count", "6", "--compare", "--ratios", "0.25", "--figure", figure
    )
    assert "chosen" in output
    assert "keeps the most score at ratio 0.25" in output
    assert "AnchorFold suits this backbone" in output or "AnchorFold does not suit this backbone" in output
    assert figure.stat().st_size > 10_000
    settings = anchorfold.load(model).settings
    assert settings.source.endswith("anchorfold.json")
    assert settings.steps in (2, 3, 4, 6, 8, 10, 12)


def test_report_draws_what_eval_found(corpus, checkpoints, tmp_path):
    run(
        "eval",
        corpus,
        "--model",
        checkpoints["colpali"],
        "--ratios",
        "0.5,0.25",
        "--caps",
        "1",
        "--to",
        tmp_path / "one",
    )
    timed = [{"method": m, "total": t, "total_sd": 0.1} for m, t in (("none@1", 90), ("anchorfold@0.5", 99))]
    (tmp_path / "one" / "efficiency.json").write_text(json.dumps(timed))
    run("report", tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<tr") == (1 + 1 + 4 * 3 + 2) + (1 + 3 * 3 + 2)  # every method; AnchorFold against the others
    notes = (tmp_path / "report.md").read_text()
    assert re.search(r"^\| \*\*anchorfold\*\* +\| +\*\*0\.25\*\* \|", notes, re.MULTILINE)
    assert re.search(r"^\| sap +\| +0\.25 \| +[+-]\d", notes, re.MULTILINE)
    assert len({len(line) for line in notes.split("\n\n")[1].splitlines()}) == 1  # columns line up
    for name in ("one-retention.png", "one-storage.png", "one-latency.png"):
        assert name in page
        assert (tmp_path / name).stat().st_size > 10_000


def test_bench_times_each_method_in_a_process_of_its_own(corpus, checkpoints, tmp_path):
    arguments = (
        "--corpus",
        corpus,
        "--model",
        checkpoints["colpali"],
        "--methods",
        "anchorfold,docpruner",
        "--ratio",
        "0.25",
    )
    output = run(
        "bench", "efficiency", *arguments, "--pages", 4, "--warm-up", 2, "--passes", 2, "--to", tmp_path / "e.json"
    )
    assert "1.109" in output  # the paper's figure stands beside ours
    found = json.loads((tmp_path / "e.json").read_text())
    assert [f["method"] for f in found] == ["none@1", "anchorfold@0.25", "docpruner@0.25"]
    assert all(0 <= f["compression"] < f["total"] <= f["p95"] * 4 for f in found)


def test_bench_needs_nothing_but_the_package(tmp_path):
    sizes = ("--pages", 2, "--warm-up", 1, "--passes", 1, "--to", tmp_path / "e.json")
    run("bench", "efficiency", "--methods", "1d-pooling", *sizes)
    assert [f["method"] for f in json.loads((tmp_path / "e.json").read_text())] == ["none@1", "1d-pooling@0.1"]


@pytest.mark.parametrize(
    ("what", "lines", "paper"), [("variants", 5, "58.53"), ("windows", 9, "59.47"), ("depths", 7, "59.85")]
)
def test_ablate_is_one_command_and_a_table(corpus, checkpoints, tmp_path, what, lines, paper):
    output = run(
        "ablate", what, corpus, "--model", checkpoints["colpali"], "--ratio", "0.25", "--pairs", 4, "--to", tmp_path
    )
    assert paper in output
    assert len(json.loads((tmp_path / "results.json").read_text())["rows"]) == lines + 1
