"""What text search matches, and what is reported when nothing matches."""

import subprocess
import sys

import numpy as np
import pytest

from anchorfold import Index
from anchorfold.storage.hits import SearchRequest
from anchorfold.storage.records import PageText
from tests.number_reader import DIM, NumberReader
from tests.storage.page_rows import make_store, page_row

TEXTS = {
    1: "Organic growth of the ferry business in North America",
    2: "The organization of growth: organic food, growth in demand",
    3: "Internet penetration by country",
    4: "Notes on and about the weather in the north",
    5: "",
}


@pytest.fixture
def store(tmp_path):
    rows = [page_row(number, text=PageText(text)) for number, text in TEXTS.items()]
    return make_store(tmp_path / "my.index", rows, text=True)


def pages(store, query):
    return [hit.page for hit in store.search_text(SearchRequest([query], top_k=10))[0]]


def test_a_quoted_phrase_is_mandatory(store):
    assert pages(store, '"organic growth"') == [1]
    assert pages(store, '"organic growth" weather') == [1]
    assert set(pages(store, "organic growth")) == {1, 2}


def test_words_are_not_stemmed(store):
    assert pages(store, "organ") == []
    assert pages(store, "organization") == [2]


def test_stop_words_do_not_match(store):
    assert pages(store, "internet penetration in the south") == [3]
    (hit,) = store.search_text(SearchRequest(["penetration in and on"], top_k=10))[0]
    assert [hit.snippet[a:b] for a, b in hit.matches] == ["penetration"]


def test_a_query_of_stop_words_only_is_searched(store):
    assert 4 in pages(store, "on and about")


def test_no_hit_has_score_zero(store):
    assert all(hit.score > 0 for hit in store.search_text(SearchRequest(["growth the north food"], top_k=10))[0])


@pytest.mark.parametrize(
    ("query", "mode", "reason"),
    [
        ("zeppelin", "text", "no page contains these words"),
        ("...", "text", "the query contains no word"),
        (" ", "visual", "the query contains no word"),
        (" ", None, "the query contains no word"),
        ('"zeppelin"', "text", "no page contains the quoted phrase"),
        ('"zeppelin" "airship"', "text", "no page contains all quoted phrases"),
    ],
)
def test_reasons_for_no_result(store, query, mode, reason):
    index = Index.open(store.folder, NumberReader())
    assert index.search(query, mode=mode) == []
    assert reason in index.no_result_reason(query, mode)


def test_a_query_that_the_model_cannot_read_is_reported(store, monkeypatch):
    index = Index.open(store.folder, NumberReader())
    monkeypatch.setattr(
        type(index), "encode_queries", lambda self, texts: [np.zeros((0, DIM), np.float32)] * len(texts)
    )
    unread = f"the model {index.settings.model} recognizes no word of the query"
    assert index.search("zeppelin", mode="visual") == index.search("zeppelin") == []
    assert index.no_result_reason("zeppelin", "visual") == unread
    assert index.no_result_reason("zeppelin") == f"{unread}, and no page contains these words"


def test_a_filter_that_matches_nothing_is_named(store):
    index = Index.open(store.folder, NumberReader())
    assert index.search("3", where="page > 99") == []
    assert index.no_result_reason("3", where="page > 99") == "the filter matches no page"
    assert "no page that the filter allows" in index.no_result_reason("growth", "text", "page > 99")


def test_the_command_exits_with_1_without_a_result(store):
    command = [sys.executable, "-m", "anchorfold", "search", str(store.folder), "zeppelin", "--mode", "text"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    assert "no page contains these words" in result.stderr


def test_an_empty_index_is_reported(tmp_path):
    index = Index.open(make_store(tmp_path / "empty.index", text=True).folder, NumberReader())
    assert index.search("3") == []
    assert index.no_result_reason("3") == "the index is empty"
