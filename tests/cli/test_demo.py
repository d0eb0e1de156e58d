"""`anchorfold demo FOLDER`: ratios compared on the user's own documents."""

import re

import pytest
import torch
from typer.testing import CliRunner

from anchorfold.cli.app import app, load_commands
from anchorfold.demo.drawn_queries import draw_queries
from anchorfold.demo.ratio_sample import RatioComparison, RatioResult, _agreement
from tests.report_pages import write_report

load_commands()


@pytest.mark.slow
def test_a_folder_compares_ratios_and_ends_with_the_next_command(tmp_path, monkeypatch):
    write_report(tmp_path)
    (tmp_path / "reports" / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["demo", "reports"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines() if re.match(r"(full|0\.\d+) ", line)]
    assert [row[0] for row in rows] == ["full", "0.2", "0.1", "0.05"]
    assert rows[0][-2:] == ["100%", "100%"]
    vectors = [int(row[1].replace(",", "")) for row in rows]
    assert vectors[3] < vectors[2] < vectors[1] < vectors[0] / 4
    assert "'Letter to our shareholders'" in done.stdout
    assert "skipped reports/broken.pdf" in done.stderr
    assert re.search(r"Next: anchorfold index reports -o my\.index --ratio 0\.\d+$", done.stdout.strip())
    assert not (tmp_path / "anchorfold-demo").exists()


def test_smallest_ratio_that_agrees_is_recommended():
    def comparison(*overlaps):
        results = [RatioResult(r, 1, 1, o, o) for r, o in zip((1.0, 0.2, 0.1, 0.05), overlaps, strict=True)]
        return RatioComparison(24, ("a query",), 10, tuple(results), ())

    assert comparison(1, 0.99, 0.93, 0.8).recommended().ratio == 0.1
    assert comparison(1, 0.5, 0.4, 0.3).recommended() is None
    assert comparison(None, None, None, None).recommended() is None


def test_agreement_ignores_the_order_below_the_first():
    full = torch.tensor([[0, 1, 2], [3, 4, 5]])
    assert _agreement(full, torch.tensor([[0, 2, 1], [4, 6, 7]])) == (torch.tensor(2 / 3).item(), 0.5)


def test_queries_are_titles_and_rare_phrases():
    texts = ["Harbour news\ncommon words here and common words again", "common words here again", ""]
    queries = draw_queries(texts)
    assert [(q.page, q.kind) for q in queries] == [(0, "title"), (0, "phrase"), (1, "title")]
    assert "harbour" in queries[1].text
