"""Text on the command line: stored or not, added later, searched, checked."""

import json

import pytest

from anchorfold import AnchorFold, Index
from anchorfold.cli import printing
from anchorfold.cli.search_command import print_hits
from anchorfold.storage.hits import Hit
from tests.cli.processes import run
from tests.report_pages import write_report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """reports/annual.pdf, with.index and without.index of it, made with nano."""
    folder = tmp_path_factory.mktemp("cli-text")
    write_report(folder)
    for name in ("with", "without"):
        index = Index.create(folder / f"{name}.index", compressor=AnchorFold(ratio=0.05), text=name == "with")
        index.add(folder / "reports")
    return folder


def test_text_and_hybrid_search(folder):
    shown = run("search", "with.index", "revenue of regions", "--mode", "text", cwd=folder).stdout
    assert "Net revenue by region" in shown
    hits = {}
    for mode in ("visual", "text", "hybrid"):
        answer = json.loads(run("search", "with.index", "revenue", "--mode", mode, "--json", cwd=folder).stdout)
        hits[mode] = answer["results"]
    assert [hit["page"] for hit in hits["text"]] == [2]
    assert hits["text"][0]["visual"] is None
    best = hits["hybrid"][0]
    assert (best["page"], best["snippet"], best["matches"]) == (2, "Net revenue by region", [[4, 11]])
    assert best["visual"] == next(hit["score"] for hit in hits["visual"] if hit["page"] == 2)
    assert best["text"] == hits["text"][0]["score"]
    assert "text" not in hits["visual"][0]


def test_a_positive_score_is_not_printed_as_zero(capsys):
    """BM25 is about 0.000001 for a word that half of the pages contain."""
    print_hits([Hit("a.pdf", 1, 1e-6, "/a.pdf", text=1e-6)])
    shown = capsys.readouterr().out
    assert "<0.001" in shown
    assert "<0.01\n" in shown


def test_text_is_added_to_an_index_without(folder):
    refused = run("search", "without.index", "revenue", "--mode", "hybrid", code=1, cwd=folder).stderr
    assert refused.count("\n") == 1
    assert "without.index stores no text: search it with --mode visual" in refused
    assert "text no" in run("info", "without.index", cwd=folder).stdout
    added = run("index", "reports", "-o", "without.index", "--text", cwd=folder).stdout
    assert "to 2 existing pages" in added
    assert "(0 encoded in " in added  # no page was encoded
    assert "Net revenue" in run("search", "without.index", "revenue", "--mode", "text", cwd=folder).stdout
    again = run("index", "reports", "-o", "without.index", "--no-text", code=1, cwd=folder).stderr
    assert "keeps the text of its pages" in again
    info = json.loads(run("info", "without.index", "--json", cwd=folder).stdout)
    assert info["text_bytes"] > 0


def test_reading_text_of_stored_pages_prints_the_progress_line(folder, monkeypatch, capsys):
    monkeypatch.setattr(printing, "LOG_INTERVAL", 0.0)
    index = Index.create(folder / "later.index", compressor=AnchorFold(ratio=0.05), text=False)
    index.add(folder / "reports")
    with printing.progress_display() as progress:
        Index.open_or_create(folder / "later.index", text=True).add(folder / "reports", progress=progress)
    lines = [line for line in capsys.readouterr().err.splitlines() if "reading text" in line]
    assert lines[0].startswith("0/1 documents  reading text  0 pages")
    assert "reading text  2 pages" in lines[-1]
    assert lines[-1].endswith("0:00 left")


def test_damage_is_reported_and_repaired(folder):
    path = folder / "with.index/index.db"
    path.write_bytes(path.read_bytes().replace(b"shareholders", b"shareholdres"))
    assert "index.db: " in run("check", "with.index", code=1, cwd=folder).stderr
    run("check", "with.index", "--repair", cwd=folder)
    run("check", "with.index", cwd=folder)
    run("index", "reports", "-o", "with.index", cwd=folder)
    assert "Letter to our shareholders" in run("search", "with.index", "letter", "--mode", "text", cwd=folder).stdout


def test_missing_ocr_package(folder, monkeypatch):
    from anchorfold.documents import ocr
    from anchorfold.errors import AnchorFoldError

    monkeypatch.setattr(ocr, "find_spec", lambda name: None)
    with pytest.raises(AnchorFoldError, match=r"pip install 'anchorfold\[ocr\]'"):
        ocr.require_ocr()
    with pytest.raises(AnchorFoldError, match="requires RapidOCR"):
        Index.open_or_create(folder / "with.index", ocr=True)


@pytest.mark.slow
def test_demo_finds_all_expected_pages(tmp_path):
    shown = run("demo", cwd=tmp_path).stdout
    assert "16 of 16 queries return the expected page first" in shown
    hybrid = shown.partition("Hybrid search")[2].splitlines()
    (text,) = [line for line in hybrid if "handbook.pdf" in line]
    assert "Astrid Moe" in text.partition("handbook.pdf")[2]
    (scan,) = [line for line in hybrid if "without text layer" in line]
    assert "scans.tiff" in scan
