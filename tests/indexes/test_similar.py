"""Similar pages, and the best page of each document."""

import json

import pytest
from typer.testing import CliRunner

from anchorfold import Index, Pooling1D
from anchorfold.cli.app import app, load_commands
from anchorfold.indexes.reader import NoSuchPageError
from tests.number_reader import NumberReader, write_pdf

load_commands()


@pytest.fixture
def index(tmp_path):
    """Five documents of twenty pages with equal numbers on equal pages."""
    for name in "abcde":
        write_pdf(tmp_path / "docs" / f"{name}.pdf", list(range(100, 120)))
    index = Index.create(tmp_path / "my.index", NumberReader(), Pooling1D(ratio=1.0))
    index.add(tmp_path / "docs")
    return index


def test_similar_pages_are_those_with_the_same_content(index):
    hits = index.similar("*a.pdf", 7, top_k=4)
    assert [hit.page for hit in hits] == [7] * 4
    assert not any(hit.source.endswith("a.pdf") for hit in hits)
    assert len(index.similar("*a.pdf", 7, top_k=200)) == 99


def test_unknown_page(index):
    with pytest.raises(NoSuchPageError, match="contains no page 99"):
        index.similar("*a.pdf", 99)


def test_best_page_of_each_document(index):
    everything = index.search("page 105", top_k=100)
    best = index.search("page 105", top_k=5, per_document=True)
    assert len({hit.source for hit in best}) == 5
    assert best == [next(h for h in everything if h.source == hit.source) for hit in best]
    assert index.search("page 105", top_k=2, per_document=True) == best[:2]
    assert len(index.search("page 105", top_k=50, per_document=True)) == 5
    several = index.search(["page 105", "page 119"], top_k=3, per_document=True)
    assert [len(hits) for hits in several] == [3, 3]


def test_commands(index):
    path = str(index.path)
    completed = CliRunner().invoke(app, ["similar", path, "*a.pdf", "7", "-k", "2", "--json"])
    assert completed.exit_code == 0
    assert [hit["page"] for hit in json.loads(completed.stdout)] == [7, 7]
    assert CliRunner().invoke(app, ["similar", path, "*a.pdf", "0"]).exit_code == 2
