"""`anchorfold index --metadata`, `metadata`, `info` and `search --where`, from other folders."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from anchorfold.cli.app import app, load_commands
from anchorfold.errors import AnchorFoldError

load_commands()
TABLE = "path,year,department\nreports/*.pdf,2024,sales\nscan.png,1999,\n"


@pytest.fixture
def folder(report_folder, tmp_path):
    shutil.copytree(report_folder, tmp_path / "work")
    (tmp_path / "work/about.csv").write_text(TABLE)
    return tmp_path / "work"


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, AnchorFoldError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def found(folder, where):
    result = run("search", folder / "my.index", "net revenue", "--where", where, "--json")
    return [hit["document"] for hit in json.loads(result.stdout)["results"]]


def test_metadata_and_search_from_another_folder(folder, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = run("metadata", folder / "my.index", "../work/about.csv")
    assert "Updated metadata of 2 documents" in result.stdout
    assert set(found(folder, "year >= 2024 and department = 'sales'")) == {"reports/annual.pdf"}
    assert found(folder, "department is null") == ["reports/scan.png"]
    assert "year integer" in run("info", folder / "my.index").stdout
    assert json.loads(run("info", folder / "my.index", "--json").stdout)["columns"]["year"] == "integer"
    result = run("search", folder / "my.index", "net revenue", "--where", "year = 1", code=1)
    assert "the filter matches no page" in result.stderr
    hit = json.loads(run("search", folder / "my.index", "net revenue", "-w", "page = 2", "--json").stdout)["results"][0]
    assert hit["metadata"]["year"] == 2024
    assert hit["metadata"]["modified"].startswith("20")


def test_index_again_with_a_table_encodes_nothing(folder, report_folder, monkeypatch):
    monkeypatch.chdir(report_folder)
    monkeypatch.setattr("anchorfold.indexes.index_model.load_model", lambda *_: pytest.fail("a model was loaded"))
    (folder / "about.csv").write_text(TABLE + "gone.pdf,1,\n")
    result = run("index", "reports", "-o", folder / "my.index", "--metadata", folder / "about.csv", "--json")
    report = json.loads(result.stdout)
    assert (report["pages"], report["unchanged"], report["metadata_updated"], report["unmatched"]) == (
        0,
        2,
        2,
        ["gone.pdf"],
    )
    assert "1 row matched no document (gone.pdf)" in result.stderr


def test_a_table_that_matches_no_document_is_refused(folder, report_folder, monkeypatch):
    monkeypatch.chdir(report_folder)
    (folder / "about.csv").write_text("path;year\nannual;2024\nscans;2023\n")
    words = r"about\.csv matches none of the 2 documents: its first column contains 'annual'\. Write names"
    with pytest.raises(AnchorFoldError, match=words):
        run("metadata", folder / "my.index", folder / "about.csv")
    with pytest.raises(AnchorFoldError, match=words):
        run("index", "reports", "-o", folder / "my.index", "--metadata", folder / "about.csv")
    with pytest.raises(AnchorFoldError, match=words):
        run("index", "reports", "-o", folder / "new.index", "--metadata", folder / "about.csv")
    assert not (folder / "new.index").exists()


def test_a_semicolon_separated_table_with_commas_in_its_header(folder):
    (folder / "about.csv").write_text("path;cost (net, EUR)\nannual.pdf;2024\n")
    assert "Updated metadata of 1 document" in run("metadata", folder / "my.index", folder / "about.csv").stdout


def test_usage_errors_are_one_sentence(folder):
    with pytest.raises(AnchorFoldError, match="there is no column 'yaer': the columns are document"):
        run("search", folder / "my.index", "net revenue", "--where", "yaer = 1")
    with pytest.raises(AnchorFoldError, match="cannot be read: no such file"):
        run("metadata", folder / "my.index", folder / "nothing.csv")
