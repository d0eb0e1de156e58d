"""`anchorfold eval` and `anchorfold calibrate`, in this process, on a tiny checkpoint."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from anchorfold.cli import calibrate_command, eval_command  # noqa: F401
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
