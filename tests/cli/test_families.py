"""Every family from the command line: index, info, search and explain with its tiny checkpoint."""

import json
import warnings

import pytest
import transformers
from PIL import Image
from typer.testing import CliRunner

from anchorfold.cli.app import app, load_commands
from anchorfold.testing import tiny
from tests.conftest import KINDS
from tests.report_pages import write_report

load_commands()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    write_report(folder)
    return folder / "reports"


@pytest.fixture
def checkpoint(checkpoints, tmp_path):
    def find(kind):
        if kind in checkpoints:
            return checkpoints[kind]
        pytest.importorskip("sentence_transformers")
        if not hasattr(transformers, "UltraVBertModel"):
            pytest.skip("this version of transformers has no UltraVBERT")
        return tiny.make(kind, tmp_path / kind)

    return find


def run(*words):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        completed = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert completed.exit_code == 0, completed.output
    return completed.stdout


@pytest.mark.parametrize("graph", [None, "vision-tower"])
@pytest.mark.parametrize("kind", [*KINDS, *tiny.MULTIVECTOR_MAKERS])
def test_every_family(checkpoint, reports, tmp_path, kind, graph):
    index, options = tmp_path / "my.index", ["--graph", graph] if graph else []
    run("index", reports, "-o", index, "--model", checkpoint(kind), "--ratio", 0.5, *options)
    info = json.loads(run("info", index, "--json"))
    assert info["vectors"] < info["full_vectors"]
    assert graph in (None, info["settings"].get("graph"))
    hits = json.loads(run("search", index, "net revenue", "--mode", "visual", "--json"))
    assert sorted(hit["page"] for hit in hits["results"]) == [1, 2]
    assert "annual.pdf page" in run("explain", index, "net revenue", "-o", tmp_path / "why.png")
    with Image.open(tmp_path / "why.png") as heatmap:
        assert min(heatmap.size) > 100


def test_truncated_dimensions(checkpoints, reports, tmp_path):
    index = tmp_path / "my.index"
    run("index", reports, "-o", index, "--model", checkpoints["colgemma3"], "--ratio", 0.5, "--dim", 8)
    assert json.loads(run("info", index, "--json"))["settings"]["dim"] == 8
    hits = json.loads(run("search", index, "net revenue", "--mode", "visual", "--json"))
    assert sorted(hit["page"] for hit in hits["results"]) == [1, 2]
