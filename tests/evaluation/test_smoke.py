"""`anchorfold eval smoke`, as the notebook calls it, with a tiny checkpoint and a task of mteb's own class."""

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anchorfold.cli.app import app, load_commands
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation import benchmarks, held_out_pages, paper
from tests.evaluation.tiny_suites import NUMBERS, tiny_task

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_hour.ipynb"

load_commands()


def notebook_command():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    (command,) = (line for c in cells for line in c["source"] if line.startswith("!anchorfold"))
    return shlex.split(command.removeprefix("!anchorfold"))


def unreachable():
    raise AnchorFoldError("no hub")


def test_smoke_prints_the_papers_cells_and_saves_a_report(checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmarks, "load_task", lambda name: tiny_task(name, NUMBERS[name]))
    monkeypatch.setattr(held_out_pages, "require_training_set", unreachable)
    monkeypatch.chdir(tmp_path)
    arguments = [str(checkpoints["colpali"]) if word == "{MODEL}" else word for word in notebook_command()]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "TabFQuAD" in done.output
    assert "Attach results/report.md" in done.output
    report = Path("results/report.md").read_text()
    assert re.search(r"Measured with anchorfold .*torch .*float32 on cpu", report)
    for name in ("anchorfold", "semantic-clustering-raw", "1d-pooling-raw", "docpruner", "sap"):
        for ratio in (0.2, 0.1, 0.05):
            figure = paper.reported("vidore-v1", "colpali", name, ratio, "TabFQuAD")
            assert f"[{figure:.1f} (" in report
            assert f"{figure:.1f} (" in done.output
    assert Path("results/vidore-v1-storage.png").is_file()


def test_smoke_is_the_smallest_data_set_of_the_paper():
    (task,) = (t for t in benchmarks.BENCHMARKS["vidore-v1"].values() if t.name == benchmarks.SMOKE_TASK)
    metadata = pytest.importorskip("mteb").get_task(task.name).metadata
    assert tuple(metadata.eval_splits) == task.splits
